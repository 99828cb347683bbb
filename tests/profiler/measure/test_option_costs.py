"""What other options and smaller images would cost: real stages over a few real records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.source import Source
from tfpipe.profiler.measure import option_costs

CONFIG = PipelineConfig(global_batch_size=4, image_size=16)


@pytest.fixture(scope="module")
def source(small_dataset: Path) -> Source:
    return Source.from_manifest(load_manifest(str(small_dataset)), "train")


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(option_costs, "_SECONDS", 0.01)


def test_what_the_config_leaves_open_is_tried(source: Source) -> None:
    found = option_costs.try_changes(source, replace(CONFIG, image_dtype="float32", dct_scaling=False), None)
    assert list(found) == ["now", "uint8", "device", "dct_scaling", "cached"]
    assert all(0 < cost < 1e6 for cost in found.values())


def test_smaller_images_are_made_of_the_records(source: Source) -> None:
    found = option_costs.try_changes(source, replace(CONFIG, augment="device"), 16)
    assert list(found) == ["now", "cached", "smaller"]
    payloads = option_costs._payloads(source)
    assert len(payloads) == option_costs.RECORDS  # of 12 records: some come again
    smaller = option_costs._smaller(source, payloads, 16)
    assert len(smaller) == len(payloads)
    assert smaller != payloads


def test_nothing_is_tried_where_nothing_is_made(source: Source) -> None:
    assert option_costs.try_changes(source, replace(CONFIG, training=False), None) == {}
    assert option_costs.try_changes(source, replace(CONFIG, cache="decoded"), None) == {}


def test_a_damaged_record_is_the_pipelines_affair(source: Source, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tfrecord"
    data = bytearray(Path(source.files[0]).read_bytes())
    data[40] ^= 1
    damaged.write_bytes(data)
    assert option_costs.try_changes(replace(source, files=(str(damaged),)), CONFIG, None) == {}
