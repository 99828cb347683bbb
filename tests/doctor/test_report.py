"""The facts for a report of an error: what is in it, and what must never be."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tfpipe import __version__
from tfpipe.dataset.load import load_manifest
from tfpipe.doctor.report import GIVEN, SETTINGS, format_report, make_report
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.config.service_options import ServiceOptions
from tfpipe.engine.config.tf_data_options import TfDataOptions
from tfpipe.engine.source import tfrecord_files
from tfpipe.native import library

SECRET = "hunter2-at-home"


def make_root(root: Path) -> Path:
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9000\n")
    (root / "proc" / "meminfo").write_text("MemTotal:       4000000 kB\nMemAvailable:   1000000 kB\n")
    (root / "dev").mkdir()
    for name in ("accel0", "accel1", "nvidia0", "nvidiactl"):
        (root / "dev" / name).touch()
    return root


def test_the_machine(tmp_path: Path) -> None:
    machine = make_report({}, root=make_root(tmp_path))["machine"]
    assert machine["processor"] == "Abacus 9000"
    assert (machine["memory_bytes"], machine["available_bytes"]) == (4_096_000_000, 1_024_000_000)
    assert machine["devices"] == {"NVIDIA GPU": 1, "TPU": 2}
    lines = format_report(make_report({}, root=tmp_path)).splitlines()
    assert lines[0].startswith(f"tfpipe        {__version__}, native library ")
    assert lines[3].startswith("machine       Abacus 9000, ")
    assert lines[3].endswith(", 4.1 GB of memory, 1.0 GB free")
    assert lines[4] == "devices       1 NVIDIA GPU, 2 TPUs"
    assert lines[6:] == ["settings      none", "config        none", "dataset       none"]


def test_a_setting_is_shown_if_it_is_a_number_or_a_switch() -> None:
    given = {"OMP_NUM_THREADS": "4", "CUDA_VISIBLE_DEVICES": "0,1", "TPU_NAME": SECRET, "HOME": SECRET}
    shown = {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "4", "TPU_NAME": GIVEN}
    assert make_report(given)["settings"] == shown


def test_the_options_that_differ_from_their_defaults(tmp_path: Path) -> None:
    config = PipelineConfig(batch_size=64, image_size=96, cache="bytes", cache_dir=str(tmp_path / SECRET))
    report = make_report({}, replace(config, extra_features=(SECRET,)))
    assert report["config"] == {
        "batch_size": 64,
        "image_size": 96,
        "extra_features": GIVEN,
        "cache": "bytes",
        "cache_dir": GIVEN,
    }
    assert "config        batch_size 64, image_size 96, extra_features (given)" in format_report(report)


def test_options_of_a_part_are_named_with_dots() -> None:
    config = PipelineConfig(
        batch_size=64,
        augment_options=AugmentOptions(scale=(0.5, 1.0)),
        service=ServiceOptions(workers=(f"{SECRET}:5000",), share="auto"),
        tf_data=TfDataOptions(cycle_length=4),
    )
    report = make_report({}, config)
    assert report["config"] == {
        "batch_size": 64,
        "augment_options.scale": [0.5, 1.0],
        "service.workers": GIVEN,
        "service.share": "auto",
        "tf_data.cycle_length": 4,
    }
    assert "service.workers (given), service.share auto, tf_data.cycle_length 4" in format_report(report)


def test_the_dataset(small_dataset: Path) -> None:
    manifest = load_manifest(str(small_dataset))
    facts = make_report({}, data=manifest)["dataset"]
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    assert facts["records"] == sum(shard.records for shard in shards)
    assert facts["bytes"] == sum(shard.bytes for shard in shards)
    assert (facts["splits"], facts["shards"], facts["classes"], facts["foreign"]) == (2, len(shards), 3, False)
    foreign = make_report({}, data=tfrecord_files(str(small_dataset / "train-*")))["dataset"]
    assert foreign["format"] == "TFRecords without a manifest"
    assert foreign["bytes"] == sum(shard.bytes for shard in manifest.splits["train"].shards)


def test_no_path_name_or_free_text_is_in_it(small_dataset: Path, tmp_path: Path) -> None:
    settings, manifest = dict.fromkeys(SETTINGS, f"/home/{SECRET}"), load_manifest(str(small_dataset))
    cached = PipelineConfig(batch_size=64, cache="bytes", cache_dir=str(tmp_path / SECRET))
    service = ServiceOptions(workers=(f"{SECRET}:5000",), share="auto")
    served = PipelineConfig(batch_size=64, service=service, extra_features=(SECRET,))
    for config in (cached, served):
        report = make_report(settings, config, manifest)
        for text in (format_report(report), json.dumps(report)):
            assert not [private for private in (SECRET, *map(str, (tmp_path, ROOT, Path.home()))) if private in text]
            assert not {socket.gethostname(), manifest.name, *manifest.label_names} & set(re.findall(r"[\w.-]+", text))


def test_a_damaged_library_is_named_without_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for reason, expected in (
        (f"/{SECRET}/lib.so: cannot open", "missing: (path): cannot open"),
        (f"/home/{SECRET} and others/lib.so: invalid ELF header", "missing: (path): invalid ELF header"),
        ("no C compiler was found", "missing: no C compiler was found"),
        (None, "there"),
    ):
        monkeypatch.setattr(library, "explain_missing", lambda reason=reason: reason)
        assert make_report({})["tfpipe"]["native_library"] == expected
