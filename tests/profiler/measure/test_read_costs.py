"""The cost of reading a few real records as they are, without what nobody reads, and unpacked."""

import gc
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, get_source, tfrecord_files
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.profiler.measure import clocks
from tfpipe.profiler.measure.facts import get_dataset_facts
from tfpipe.profiler.measure.option_costs import measure_read_costs

CONFIG = PipelineConfig(batch_size=4, image_size=16)


@pytest.fixture(autouse=True)
def _short(monkeypatch) -> None:
    """Measures briefly, and ends what earlier tests left: the clock of stock operations counts all threads."""
    monkeypatch.setattr(clocks, "_SECONDS", 0.1)
    gc.collect()


def open_files(foreign: Any, folder: Path, compression: str, described: bool) -> tuple[Manifest | Source, str | None]:
    drawn = random.Random(3).randbytes(250_000).hex().encode()  # packed to half, and milliseconds to unpack
    records = [{**record, "blob": drawn, "more": b"y" * 50_000} for record in foreign.records(0, 16)]
    foreign.write(folder / "train-0.tfrecord", records, compression)
    if not described:
        return tfrecord_files(str(folder / "train-*")), None
    index(IndexConfig(str(folder)))
    return load_manifest(str(folder)), "train"


@pytest.mark.parametrize(
    ("compression", "described", "order"),
    [
        ("GZIP", True, "auto"),
        ("", True, "auto"),
        ("", False, "auto"),
        pytest.param("", True, "throughput", marks=pytest.mark.slow),  # reads as the one before it
    ],
)
def test_reading_less_is_measured_with_the_records(foreign, tmp_path: Path, compression: str, described: bool, order):
    """Half a megabyte that nobody reads costs hundreds of microseconds, which a busy machine still shows."""
    config = replace(CONFIG, order=order)
    data, split = open_files(foreign, tmp_path, compression, described)
    facts = get_dataset_facts(data, split, config, [])
    assert facts.unread_features == ("blob", "more")
    assert facts.by_engine is (described and not compression and order == "auto")
    costs = measure_read_costs(get_source(data, split), config, facts)
    assert list(costs) == ["read", "read_without_unread", *(["read_unpacked"] if compression else [])]
    assert min(costs.values()) > 0
    assert costs["read_without_unread"] < costs["read"] / 2
    assert costs.get("read_unpacked", 0.0) < costs["read"]


def test_no_other_cost_is_measured_where_nothing_could_be_saved(foreign, small_dataset, tmp_path, monkeypatch):
    own = load_manifest(str(small_dataset))
    facts = get_dataset_facts(own, "train", CONFIG, [])
    assert list(measure_read_costs(get_source(own, "train"), CONFIG, facts)) == ["read"]
    data, split = open_files(foreign, tmp_path, "", True)
    facts, source = get_dataset_facts(data, split, CONFIG, []), get_source(data, split)
    assert measure_read_costs(source, replace(CONFIG, cache="bytes"), facts) == {}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert measure_read_costs(source, CONFIG, facts) == {}
