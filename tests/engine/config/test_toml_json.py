"""A config comes back from a file as it went in, and a mistake in a file is named with its place."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.config.test_pipeline_config import make_config
from tests.refusals import refusal
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions, TfDataOptions
from tfpipe.errors import ConfigError

FLAGS = ("max_intra_op_parallelism", "map_fusion", "inject_prefetch")
"""The options of tf.data beside these whose default is not None."""


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
        dct_scaling=draw(st.booleans()),
        matmul_dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        mean=tuple(mean for mean, _ in channels),
        std=tuple(std for _, std in channels),
    )


TF_DATA = st.builds(
    TfDataOptions,
    shuffle_buffer_size=AMOUNTS,
    ram_budget=st.none() | AMOUNTS,
    deterministic=st.none() | st.booleans(),
    autotune=st.none() | st.booleans(),
    **dict.fromkeys(("inject_prefetch", "map_fusion"), st.booleans()),
    **dict.fromkeys(("cycle_length", "read_parallel_calls", "num_parallel_calls"), st.none() | counts()),
    private_threadpool_size=st.none() | counts(),
    **dict.fromkeys(("block_length", "max_intra_op_parallelism"), counts()),
)
SERVICES = st.builds(
    ServiceOptions,
    workers=st.sampled_from([("a:1",), ("a:1", "[::1]:2")]),
    share=st.just("auto") | st.floats(0, 0.99),
    timeout_s=counts(),
)


@st.composite
def configs(draw: st.DrawFn) -> PipelineConfig:
    cache, order = draw(st.sampled_from(["none", "bytes", "decoded"])), draw(st.sampled_from(["auto", "throughput"]))
    optional = {
        "decoded_size": SIZES,
        "extra_features": st.lists(TEXTS, unique=True, max_size=3),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "max_bad_records": counts(0),
        "prefetch_batches": counts(0),
        **dict.fromkeys(("training", "one_hot", "as_supervised"), st.booleans()),
        **dict.fromkeys(("max_boxes", "block_records"), counts()),
        "cpu_budget": st.floats(0.01, 1),
        "tf_data": TF_DATA,
    }
    if cache == "none" and draw(st.booleans()):
        optional["service"] = SERVICES
        optional["max_bad_records"], order = st.just(0), "auto"
    elif cache == "bytes" and draw(st.booleans()):
        optional["cache_dir"] = TEXTS
    elif cache != "none":
        optional["cache_bytes"] = AMOUNTS
    if draw(st.booleans()):
        optional["augment"] = st.sampled_from(["host", "device", "none"])
    else:
        optional["image_dtype"] = st.sampled_from(["uint8", "float32", "bfloat16"])
    drawn = draw(st.fixed_dictionaries({}, optional=optional))
    if cache == "decoded":
        drawn["max_bad_records"] = 0  # a cache of decoded images leaves none out
    return PipelineConfig(
        batch_size=draw(counts()),
        image_size=draw(SIZES),
        augment_options=draw(augment_options()),
        cache=cache,
        order=order,
        **drawn,
    )


@settings(max_examples=60)
@given(configs(), st.sampled_from([".toml", ".json"]))
def test_a_config_comes_back_from_its_file(tmp_path_factory, config: Any, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"round_trip{suffix}"
    config.to_file(path)
    again = PipelineConfig.from_file(path)
    assert again == config
    assert hash(again) == hash(config)
    assert path.read_text(encoding="utf-8") == (config.to_toml() if suffix == ".toml" else config.to_json())


def test_files_hold_every_option_that_is_not_none() -> None:
    written = json.loads(make_config().to_json())
    expected = {
        field.name for field in dataclasses.fields(PipelineConfig) if getattr(make_config(), field.name) is not None
    }
    assert set(written) == expected
    assert written["augment_options"]["scale"] == [0.08, 1.0]
    assert set(written["tf_data"]) == {"shuffle_buffer_size", "block_length", *FLAGS}
    assert "\n[augment_options]\n" in make_config().to_toml()


def test_the_notes_of_a_trial_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", make_config().to_toml() + "\n[tuned]\nhost = 'a'\nimages_per_s = 1.5\n")
    assert PipelineConfig.from_file(path) == make_config()
    path = write(tmp_path, "a.json", '{"batch_size": 256, "tuned": {"host": {"cores": 8}}}')
    assert PipelineConfig.from_file(str(path)) == make_config()


OF_AUGMENT, NULL_AUGMENT = "batch_size = 1\n[augment_options]\n", '{"batch_size": 1, "augment_options": null}'
XYZZY, WHOLE = "`xyzzy` is not an option; see the fields of PipelineConfig.", "`batch_size` must be a whole number"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "batch_sise = 1", ": `batch_sise` is not an option; did you mean `batch_size`?"),
        ("a.json", '{"xyzzy": 1, "sede": 2}', f": {XYZZY} `sede` is not an option; did you mean `seed`?"),
        ("a.toml", f"{OF_AUGMENT}scael = 1", ": augment_options: `scael` is not an option; did you mean `scale`?"),
        ("a.toml", f"{OF_AUGMENT}flip = 1", ": augment_options: `flip` must be true or false, got 1."),
        ("a.toml", "batch_size = 1\naugment_options = 1", ": `augment_options` must be a table of options, got 1."),
        ("a.json", NULL_AUGMENT, ": `augment_options` must be a table of options, got None."),
        ("a.toml", "tuned = 1", ": `tuned` must be a table: `tfpipe profile --apply` keeps notes there. Rename it."),
        ("a.toml", "batch_size = 2024-01-01", f": {WHOLE}, got datetime.date(2024, 1, 1)."),
        ("a.json", '{"batch_size": "8"}', f": {WHOLE}, got '8'."),
        ("a.json", '{"batch_size": null}', f": {WHOLE}, got None."),
        ("a.toml", "", ": `batch_size` is missing, and it has no default. Give it."),
        ("a.json", '{"seed": 1, "seed": 1}', ": `seed` must be given once. Remove one of them."),
        ("a.json", "[1]", " must be a JSON object with options in it, got [1]."),
        ("a.json", b"\xff", " must be text in UTF-8, got byte 0xff."),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(tmp_path: Path, name: str, text: str | bytes, message: str):
    path = write(tmp_path, name, text)
    assert refusal(ConfigError, PipelineConfig.from_file, path) == f"{path}{message}"


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
def test_a_file_in_another_format_is_refused(tmp_path: Path, name: str, text: str, start: str) -> None:
    path = write(tmp_path, name, text)
    assert refusal(ConfigError, PipelineConfig.from_file, path).startswith(f"{path} {start}")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    sentence = f"There is no configuration file {tmp_path / 'a.toml'}. Check its name."
    assert refusal(ConfigError, PipelineConfig.from_file, tmp_path / "a.toml") == sentence
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match=r"folder.toml cannot be read: Is a directory\. Give"):
        PipelineConfig.from_file(tmp_path / "folder.toml")


def test_the_suffix_decides_about_the_format(tmp_path: Path) -> None:
    for act in (make_config().to_file, PipelineConfig.from_file):
        with pytest.raises(ConfigError, match=r"must end in \.toml or \.json, got '.*a\.yaml'"):
            act(tmp_path / "a.yaml")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.toml"
    make_config().to_file(path)

    def full(file: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"a\.toml cannot be written: No space left on device"):
        make_config(seed=1).to_file(path)
    assert PipelineConfig.from_file(path) == make_config()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        make_config().to_file(tmp_path / "missing" / "a.json")
