"""A config comes back from a file as it went in, and a mistake in a file is named with its place."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.engine.config.test_pipeline_config import make_config
from tests.refusals import refusal
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig, ServiceOptions, TfDataOptions
from tfpipe.errors import ConfigError


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


CHANGED: dict[str, Any] = {
    "batch_size": 2**40,
    "image_size": (1, 65_500),
    "training": False,
    "images": 3,
    "augment_options": AugmentOptions((1e-9, 0.1), (1e-3, 1 / 3), False, 1e-9, True, False, "bfloat16", (-1e6, 0, 0.1)),
    "decoded_size": 7,
    "one_hot": True,
    "extra_features": ('a "b" \n', "ü", "\U0001f600"),
    "pad_to": {"x": 3, "ü": (1, 2)},
    "multi_hot": ("b",),
    "max_boxes": 1,
    "as_supervised": True,
    "block_records": 2**40,
    "prefetch_batches": 0,
    "cpu_budget": 1 / 3,
}
CASES = (
    {"seed": 2**64 - 1, "image_dtype": "bfloat16", "cache": "decoded", "cache_bytes": 12345},
    {"seed": -(2**63), "augment": "device", "cache": "bytes", "cache_dir": "/tmp/ü", "max_bad_records": 9},
    {"service": ServiceOptions(workers=("a:1", "[::1]:2"), share="auto", token_file="t", certificate="c", timeout_s=1)},
    {
        "order": "throughput",
        "tf_data": TfDataOptions(
            **{"shuffle_buffer_size": "1 KB", "ram_budget": 2**40, "deterministic": False, "autotune": True},
            **dict.fromkeys(("cycle_length", "block_length", "read_parallel_calls", "num_parallel_calls"), 2),
            **{"private_threadpool_size": 3, "max_intra_op_parallelism": 0, "map_fusion": False},
            inject_prefetch=False,
        ),
    },
)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_config_comes_back_from_its_file(tmp_path: Path, case: dict[str, Any], suffix: str) -> None:
    path, config = tmp_path / f"round_trip{suffix}", PipelineConfig(**CHANGED, **case)
    config.to_file(path)
    again = PipelineConfig.from_file(path)
    assert again == config
    assert hash(again) == hash(config)
    assert path.read_text(encoding="utf-8") == (config.to_toml() if suffix == ".toml" else config.to_json())


def test_files_hold_every_option_and_each_was_changed() -> None:
    names = {field.name for field in dataclasses.fields(PipelineConfig)}
    assert names == {name for case in CASES for name in (*CHANGED, *case)}
    written = json.loads(make_config().to_json())
    expected = {
        field.name for field in dataclasses.fields(PipelineConfig) if getattr(make_config(), field.name) is not None
    }
    assert set(written) == expected
    assert written["augment_options"]["scale"] == [0.08, 1.0]
    flags = {"max_intra_op_parallelism", "map_fusion", "inject_prefetch"}
    assert set(written["tf_data"]) == {"shuffle_buffer_size", "block_length", *flags}
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


def test_a_missing_file_and_another_suffix_are_refused(tmp_path: Path) -> None:
    sentence = f"There is no configuration file {tmp_path / 'a.toml'}. Check its name."
    assert refusal(ConfigError, PipelineConfig.from_file, tmp_path / "a.toml") == sentence
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ConfigError, match=r"folder.toml cannot be read: Is a directory\. Give"):
        PipelineConfig.from_file(tmp_path / "folder.toml")
    for act in (make_config().to_file, PipelineConfig.from_file):
        with pytest.raises(ConfigError, match=r"must end in \.toml or \.json, got '.*a\.yaml'"):
            act(tmp_path / "a.yaml")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.toml"
    make_config().to_file(path)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, os.strerror(28))))
    with pytest.raises(ConfigError, match=r"a\.toml cannot be written: No space left on device"):
        make_config(seed=1).to_file(path)
    assert PipelineConfig.from_file(path) == make_config()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
        make_config().to_file(tmp_path / "missing" / "a.json")
