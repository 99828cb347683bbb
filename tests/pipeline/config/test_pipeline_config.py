"""`PipelineConfig` refuses what cannot be meant, and comes back from a file as it went in."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.errors import ConfigError
from tfpipe.pipeline.config.pipeline_config import AugmentOptions, PipelineConfig


def config(**options: Any) -> PipelineConfig:
    return PipelineConfig(**{"global_batch_size": 256, **options})


def refused(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**options)
    return str(caught.value)


def test_defaults_are_valid_and_hashable() -> None:
    assert hash(config()) == hash(PipelineConfig(global_batch_size=256))
    assert PipelineConfig(per_replica_batch_size=32) != config()


def test_every_option_is_checked() -> None:
    for field in dataclasses.fields(PipelineConfig):
        assert f"`{field.name}`" in refused(**{"global_batch_size": 256, field.name: object()})


def test_needs_no_library() -> None:
    code = "import sys, tfpipe; tfpipe.PipelineConfig(global_batch_size=1).to_json(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"tensorflow", "numpy", "PIL", "tomli_w", "tomllib", "difflib"} & set(done.stdout.split())


def test_lists_become_tuples() -> None:
    made = config(image_size=[160, 192], decoded_size=[200, 220], extra_features=["depth"])
    assert (made.image_size, made.decoded_size, made.extra_features) == ((160, 192), (200, 220), ("depth",))
    options = AugmentOptions(scale=[0.25, 1], mean=[0, 0, 0], std=[1, 1, 1], crop_fraction=1)  # type: ignore[arg-type]
    assert options == AugmentOptions(scale=(0.25, 1.0), mean=(0.0,) * 3, std=(1.0,) * 3, crop_fraction=1.0)
    assert hash(dataclasses.replace(made, augment_options=options))
    assert [type(value) for value in (*options.scale, options.crop_fraction)] == [float] * 3


def test_sizes() -> None:
    assert config().size == (224, 224)
    assert config(image_size=(160, 192)).size == (160, 192)
    assert config().resolve_decoded_size() == (256, 256)
    assert config(image_size=(160, 192)).resolve_decoded_size() == (183, 219)
    assert config().resolve_decoded_size(stored_square=240) == (240, 240)
    assert config(decoded_size=300).resolve_decoded_size(stored_square=240) == (300, 300)
    assert config(decoded_size=(300, 280)).resolve_decoded_size() == (300, 280)


BATCH = "Exactly one of `global_batch_size` and `per_replica_batch_size` must be given, got "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": None}, f"{BATCH}neither."),
        ({"per_replica_batch_size": 32}, f"{BATCH}256 and 32."),
        ({"global_batch_size": 0}, "`global_batch_size` must be at least 1, got 0."),
        ({"global_batch_size": True}, "`global_batch_size` must be a whole number, got True."),
        ({"cycle_length": 1.5}, "`cycle_length` must be a whole number, got 1.5."),
        ({"cycle_length": None}, "`cycle_length` must be a whole number, got None."),
        ({"max_bad_records": -1}, "`max_bad_records` must be at least 0, got -1."),
        ({"training": 1}, "`training` must be true or false, got 1."),
        ({"deterministic": "yes"}, "`deterministic` must be true or false, got 'yes'."),
        ({"augment": "gpu"}, "`augment` must be host, device or none, got 'gpu'."),
        ({"augment": ["host"]}, "`augment` must be host, device or none, got ['host']."),
        ({"order": None}, "`order` must be auto, exact or throughput, got None."),
        ({"augment_options": {}}, "`augment_options` must be AugmentOptions, got {}."),
        ({"image_size": 0}, "`image_size` must be a side from 1 to 65500 pixels, or (height, width), got 0."),
        (
            {"image_size": [1, 2, 3]},
            "`image_size` must be a side from 1 to 65500 pixels, or (height, width), got (1, 2, 3).",
        ),
        (
            {"decoded_size": (1, True)},
            "`decoded_size` must be a side from 1 to 65500 pixels, or (height, width), got (1, True).",
        ),
        ({"seed": 2**64}, "`seed` must be a whole number that fits into 64 bits, got 18446744073709551616."),
        ({"extra_features": "depth"}, "`extra_features` must be a list of names, none of them empty, got 'depth'."),
        ({"extra_features": [""]}, "`extra_features` must be a list of names, none of them empty, got ('',)."),
        ({"extra_features": [["a"]]}, "`extra_features` must be a list of names, none of them empty, got (['a'],)."),
        ({"extra_features": ["a", "a"]}, "`extra_features` must name each only once, got ('a', 'a')."),
        ({"shuffle_buffer_size": "big"}, "`shuffle_buffer_size` must be a size such as 128MiB or 2GB, got 'big'."),
        (
            {"shuffle_buffer_size": 0},
            "`shuffle_buffer_size` must be at least 1, a whole number or a size such as 128MiB or 2GB, got 0.",
        ),
        (
            {"ram_budget": 1.5},
            "`ram_budget` must be at least 1, a whole number or a size such as 128MiB or 2GB, got 1.5.",
        ),
        ({"cache": "bytes", "cache_dir": ""}, "`cache_dir` must be text in Unicode and not empty, got ''."),
        (
            {"cache": "bytes", "cache_dir": "\udc80"},
            "`cache_dir` must be text in Unicode and not empty, got '\\udc80'.",
        ),
        ({"service": "host:1"}, "`service` must begin with grpc://, as in 'grpc://host:5000', got 'host:1'."),
        ({"service": "grpc://"}, "`service` must begin with grpc://, as in 'grpc://host:5000', got 'grpc://'."),
        (
            {"order": "exact", "block_length": 8},
            "`block_length` must be at least `run_records`, 16, in exact order, got 8. "
            "Raise it, or lower `run_records`.",
        ),
        (
            {"order": "exact", "deterministic": False},
            "`deterministic` false excludes `order` exact. Leave it out, or use throughput.",
        ),
        (
            {"order": "exact", "service": "grpc://a:1"},
            "`service` excludes `order` exact: its workers deal records to whoever asks. Use throughput.",
        ),
        (
            {"cache": "bytes", "service": "grpc://a:1"},
            "`service` needs `cache` none, got 'bytes': its workers come and go.",
        ),
        (
            {"augment": "device", "image_dtype": "float32"},
            "`augment` device needs `image_dtype` uint8, got 'float32': the device normalizes.",
        ),
        (
            {"cache_dir": "/tmp/c"},
            "`cache_dir` needs a cache. Set `cache` to bytes or decoded, or leave the folder out.",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    assert refused(**options) == message


@pytest.mark.parametrize(
    "options",
    [
        {"order": "throughput", "block_length": 1},
        {"order": "exact", "deterministic": True, "block_length": 16},
        {"augment": "device", "cache": "decoded", "cache_dir": "/tmp/c"},
        {"autotune": False},
        {"service": "grpc://a:1", "order": "throughput"},
        {"prefetch_batches": 0, "max_bad_records": 0},
        {"shuffle_buffer_size": 1000, "ram_budget": "8 GiB"},
    ],
    ids=str,
)
def test_what_goes_together(options: dict[str, Any]) -> None:
    config(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "all"}, "`scale` must be a list of finite numbers, got 'all'."),
        ({"ratio": (1.0, float("inf"))}, "`ratio` must be a list of finite numbers, got (1.0, inf)."),
        ({"scale": (0.1, 0.2, 0.3)}, "`scale` must be two rising shares in (0, 1], got (0.1, 0.2, 0.3)."),
        ({"flip": 1}, "`flip` must be true or false, got 1."),
        ({"crop_fraction": "most"}, "`crop_fraction` must be in (0, 1], got 'most'."),
        ({"std": (1, 0, 1)}, "`std` must be numbers above 0, one for each channel, got (1.0, 0.0, 1.0)."),
        ({"mean": (0,)}, "`mean` and `std` must have one number for each channel, got (0.0,), (0.229, 0.224, 0.225)."),
    ],
)
def test_wrong_augment_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AugmentOptions(**options)
    assert str(caught.value) == message


# Files

ONE_BATCH = {"global_batch_size": 8}


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def counts(lowest: int = 1) -> st.SearchStrategy[int]:
    return st.integers(lowest, 2**40)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
SIDES = st.integers(1, 65_500)
SIZES = SIDES | st.tuples(SIDES, SIDES)
AMOUNTS = counts() | st.builds("{}{}".format, st.integers(1, 999), st.sampled_from(["", "B", " KB", "MiB", "tib"]))
SHARES = st.floats(1e-9, 1)
CHANNELS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6)), min_size=3, max_size=3)


@st.composite
def augment_options(draw: st.DrawFn) -> AugmentOptions:
    channels = draw(CHANNELS)
    return AugmentOptions(
        scale=tuple(sorted(draw(st.tuples(SHARES, SHARES)))),
        ratio=tuple(sorted(draw(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))))),
        flip=draw(st.booleans()),
        crop_fraction=draw(SHARES),
        antialias=draw(st.booleans()),
        matmul_dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        mean=tuple(mean for mean, _ in channels),
        std=tuple(std for _, std in channels),
    )


@st.composite
def configs(draw: st.DrawFn) -> PipelineConfig:
    cache, order = draw(st.sampled_from(["none", "bytes", "decoded"])), draw(st.sampled_from(["auto", "throughput"]))
    optional = {
        "decoded_size": SIZES,
        "extra_features": st.lists(TEXTS, unique=True, max_size=3),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "shuffle_buffer_size": AMOUNTS,
        "max_bad_records": counts(0),
        "deterministic": st.booleans(),
        "prefetch_batches": counts(0),
        "ram_budget": AMOUNTS,
        "on_bad_record": st.sampled_from(["raise", "skip"]),
        "auto_shard_policy": st.sampled_from(["off", "auto", "file", "data", "hint"]),
        **dict.fromkeys(
            ("training", "dct_scaling", "one_hot", "as_supervised", "autotune", "inject_prefetch"), st.booleans()
        ),
        **dict.fromkeys(("max_boxes", "num_streams", "run_records", "window_records"), counts()),
        **dict.fromkeys(("cycle_length", "block_length", "read_parallel_calls", "num_parallel_calls"), counts()),
        **dict.fromkeys(("cpu_budget", "private_threadpool_size", "max_intra_op_parallelism"), counts()),
    }
    if cache == "none":
        optional["service"] = TEXTS.map("grpc://{}".format)
    else:
        optional["cache_dir"] = TEXTS
    if draw(st.booleans()):
        optional["augment"] = st.sampled_from(["host", "device", "none"])
    else:
        optional["image_dtype"] = st.sampled_from(["uint8", "float32", "bfloat16"])
    batch = draw(st.sampled_from(["global_batch_size", "per_replica_batch_size"]))
    return PipelineConfig(
        **{batch: draw(counts())},
        image_size=draw(SIZES),
        augment_options=draw(augment_options()),
        cache=cache,
        order=order,
        **draw(st.fixed_dictionaries({}, optional=optional)),
    )


@settings(deadline=None, max_examples=150)
@given(configs(), st.sampled_from([".toml", ".json"]))
def test_a_config_comes_back_from_its_file(tmp_path_factory: pytest.TempPathFactory, made: Any, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"round_trip{suffix}"
    made.to_file(path)
    again = PipelineConfig.from_file(path)
    assert again == made
    assert hash(again) == hash(made)
    assert path.read_text(encoding="utf-8") == (made.to_toml() if suffix == ".toml" else made.to_json())


def test_files_hold_every_option_that_is_not_none() -> None:
    written = json.loads(config().to_json())
    expected = {field.name for field in dataclasses.fields(PipelineConfig) if getattr(config(), field.name) is not None}
    assert set(written) == expected
    assert written["augment_options"]["scale"] == [0.08, 1.0]
    assert "\n[augment_options]\n" in config().to_toml()


def test_a_tuners_notes_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", config().to_toml() + "\n[tuned]\nhost = 'a'\nimages_per_s = 1.5\n")
    assert PipelineConfig.from_file(path) == config()
    path = write(tmp_path, "a.json", '{"global_batch_size": 256, "tuned": {"host": {"cores": 8}}}')
    assert PipelineConfig.from_file(str(path)) == config()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "cycle_lenght = 1", "{}: `cycle_lenght` is no option; did you mean `cycle_length`?"),
        (
            "a.json",
            '{"xyzzy": 1, "sede": 2}',
            "{}: `xyzzy` is no option; see the fields of PipelineConfig. `sede` is no option; did you mean `seed`?",
        ),
        (
            "a.toml",
            "[augment_options]\nscael = 1",
            "{}: augment_options: `scael` is no option; did you mean `scale`?",
        ),
        ("a.toml", "[augment_options]\nflip = 1", "{}: augment_options: `flip` must be true or false, got 1."),
        ("a.toml", "augment_options = 1", "{}: `augment_options` must be a table of options, got 1."),
        ("a.json", '{"augment_options": null}', "{}: `augment_options` must be a table of options, got None."),
        ("a.toml", "tuned = 1", "{}: `tuned` must be a table: it is kept for a tuner's notes. Rename it."),
        (
            "a.toml",
            "global_batch_size = 2024-01-01",
            "{}: `global_batch_size` must be a whole number, got datetime.date(2024, 1, 1).",
        ),
        ("a.json", '{"global_batch_size": "8"}', "{}: `global_batch_size` must be a whole number, got '8'."),
        ("a.json", '{"global_batch_size": null}', f"{{}}: {BATCH}neither."),
        ("a.toml", "", f"{{}}: {BATCH}neither."),
        ("a.json", '{"seed": 1, "seed": 1}', "{}: `seed` must be given once. Remove one of them."),
        ("a.json", "[1]", "{} must be a JSON object with options in it, got [1]."),
        ("a.json", b"\xff", "{} must be text in UTF-8, got byte 0xff."),
    ],
)
def test_wrong_files(tmp_path: Path, name: str, text: str | bytes, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_file(path)
    assert str(caught.value) == message.replace("{}", str(path))


@pytest.mark.parametrize(
    ("name", "text", "start"),
    [
        ("a.toml", "seed = ", "is not TOML: "),
        ("a.toml", "seed = 1\nseed = 2", "is not TOML: "),
        ("a.toml", "seed = " + "1" * 5000, "is not TOML: "),
        ("a.json", "{", "is not JSON: "),
        ("a.json", "[" * 100_000, "is not JSON: "),
        ("a.json", '{"seed": ' + "1" * 5000 + "}", "is not JSON: "),
    ],
    ids=lambda value: value[:12],
)
def test_files_in_another_format(tmp_path: Path, name: str, text: str, start: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_file(path)
    assert str(caught.value).startswith(f"{path} {start}")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        PipelineConfig.from_file(tmp_path / "a.toml")
    assert str(caught.value) == f"There is no configuration file {tmp_path / 'a.toml'}. Check its name."
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match=r"folder.toml cannot be read: Is a directory\. Give"):
        PipelineConfig.from_file(tmp_path / "folder.toml")


def test_the_suffix_decides(tmp_path: Path) -> None:
    for act in (config().to_file, PipelineConfig.from_file):
        with pytest.raises(ConfigError, match=r"must end in \.toml or \.json, got '.*a\.yaml'"):
            act(tmp_path / "a.yaml")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.toml"
    config().to_file(path)

    def full(file: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"a\.toml cannot be written: No space left on device"):
        config(seed=1).to_file(path)
    assert PipelineConfig.from_file(path) == config()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        config().to_file(tmp_path / "missing" / "a.json")
