"""The textbook pipeline over a few records: what it reads, and the batches that it makes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, get_source
from tfpipe.format.example import decode_example
from tfpipe.profiler.measure.clocks import Rest, measure_costs_us
from tfpipe.profiler.measure.samples import RECORDS, list_sizes, make_batches, sample_records, write_file

CONFIG = PipelineConfig(batch_size=4, image_size=16, order="throughput")


@pytest.fixture(scope="module")
def source(small_dataset: Path) -> Source:
    return get_source(load_manifest(str(small_dataset)), "train")


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_all_that_is_read_is_what_was_written(source: Source, tmp_path: Path, compression: Any) -> None:
    payloads = [b"a" * 100, b"b" * 200, b"c" * 300, b"d" * 400] * (RECORDS // 4)
    file = write_file(str(tmp_path / "few"), replace(source, compression=compression), payloads)
    assert file.record_bytes == pytest.approx(266 if not compression else 10, rel=0.5)
    sizes = [*list_sizes(file, CONFIG).unbatch().take(64 * RECORDS).as_numpy_iterator()]
    counts = {size: sizes.count(size) for size in set(sizes)}
    # Files are read side by side, so those of the next epoch may come before the last ones of this.
    assert counts == pytest.approx(dict.fromkeys((100, 200, 300, 400), 16 * RECORDS), rel=0.2)


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_batches_have_the_records_and_other_crops(source: Source, tmp_path: Path, cache: Any, caplog):
    payloads = sample_records(source)
    file = write_file(str(tmp_path / "few"), source, payloads)
    batches = [*make_batches(file, replace(CONFIG, cache=cache)).take(64).as_numpy_iterator()]
    assert {batch["image"].shape for batch in batches} == {(RECORDS, 16, 16, 3)}
    labels = [int(decode_example(payload)["image/class/label"][0]) for payload in payloads]  # type: ignore[index]
    given = [int(label) for batch in batches for label in batch["label"]]
    counts = {label: given.count(label) for label in set(given)}
    assert counts == pytest.approx({label: 64 * labels.count(label) for label in set(labels)}, rel=0.2)
    assert len({image.tobytes() for batch in batches for image in batch["image"]}) > 200
    assert caplog.records == []


def test_threads_that_work_ahead_are_counted(source: Source, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tfpipe.profiler.measure.clocks._SECONDS", 0.01)
    file = write_file(str(tmp_path / "few"), source, sample_records(source))
    datasets = {"read": list_sizes(file, CONFIG), "made": make_batches(file, CONFIG)}
    batches = {name: iter(dataset).__next__ for name, dataset in datasets.items()}
    costs_us = measure_costs_us(batches, RECORDS, Rest().wait)
    assert 0 < costs_us["read"] < costs_us["made"] < 100_000
