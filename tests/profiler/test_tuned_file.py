"""Where options were tuned, and the file that says so."""

import json
from pathlib import Path

import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config import toml_json
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.engine.source import tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.profiler import tuned_file
from tfpipe.system import host_limits

ENVIRONMENT = {"key": "0123abcd", "processor": "Any CPU"}


def test_an_environment(small_dataset: Path, monkeypatch) -> None:
    manifest = load_manifest(str(small_dataset))
    train, validation = (tuned_file.describe_environment(manifest, split) for split in ("train", "validation"))
    assert (train["dataset"], train["split"], train["records"]) == (f"'train' of {small_dataset}", "train", 12)
    assert train["processor"]
    assert train["cores"] >= 1
    foreign = tuned_file.describe_environment(tfrecord_files(str(small_dataset / "train-*")), None)
    assert (foreign["split"], foreign["records"]) == ("", 0)
    # The kernel takes more or less of the memory for itself.
    monkeypatch.setattr(host_limits, "memory_limit_bytes", lambda: 2**34)
    assert tuned_file.describe_environment(manifest, "train")["key"] == train["key"]
    monkeypatch.setattr(host_limits, "usable_cpus", lambda: 77)
    other = tuned_file.describe_environment(manifest, "train")
    assert len({one["key"] for one in (train, validation, foreign, other)}) == 4
    assert train["fingerprint"] not in (validation["fingerprint"], foreign["fingerprint"])


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_what_is_written_can_be_read(tmp_path: Path, ending: str) -> None:
    path, result = tmp_path / f"a.{ending}", {"images_per_second": 1234.5, "gain": {"ratio": 1.5}}
    tuned_file.write(str(path), {"batch_size": 64}, {"tf_data.cycle_length": 3}, ENVIRONMENT, result)
    tuned_file.check_path(str(path), ENVIRONMENT)
    assert PipelineConfig.from_file(path) == PipelineConfig(batch_size=64, tf_data=TfDataOptions(cycle_length=3))
    _, noted = toml_json.read_with_notes(path)
    assert {name: noted.pop(name) for name in (*ENVIRONMENT, *result)} == ENVIRONMENT | result
    assert (noted["at"][-6:], noted["tensorflow"][0]) == ("+00:00", "2")


def test_another_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    tuned_file.check_path(str(path), ENVIRONMENT)
    tuned_file.write(str(path), {"batch_size": 64}, {}, {**ENVIRONMENT, "key": "ffff"}, {})
    with pytest.raises(ConfigError, match=r"a\.toml was tuned on another host or other data\. Move it away, or name"):
        tuned_file.check_path(str(path), ENVIRONMENT)
    with pytest.raises(ConfigError, match=r"must end in \.toml or \.json, got 'a\.yaml'"):
        tuned_file.check_path("a.yaml", ENVIRONMENT)


def test_the_options_of_the_user_stay_and_no_others_are_written(tmp_path: Path) -> None:
    path, given = tmp_path / "a.json", {"batch_size": 8, "as_supervised": True, "tf_data": {"num_parallel_calls": 1}}
    changes = {"tf_data.num_parallel_calls": None, "cache": "bytes", "augment_options.dct_scaling": True}
    tuned_file.write(str(path), given, changes, ENVIRONMENT, {})
    table = json.loads(path.read_text())
    assert table.pop("tuned")["key"] == ENVIRONMENT["key"]
    assert table == {
        **{"batch_size": 8, "as_supervised": True, "tf_data": {}},
        **{"cache": "bytes", "augment_options": {"dct_scaling": True}},
    }
    assert given["tf_data"] == {"num_parallel_calls": 1}
