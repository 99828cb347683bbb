"""The costs of other options, of smaller images and of reading less: real pipelines over a few real records."""

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.columns import images
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, get_source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.profiler.measure import option_costs
from tfpipe.profiler.measure.facts import get_dataset_facts
from tfpipe.profiler.measure.option_costs import measure_option_costs, measure_read_costs
from tfpipe.profiler.measure.samples import RECORDS, sample_records

CONFIG = PipelineConfig(batch_size=4, image_size=16)


@pytest.fixture(scope="module")
def source(small_dataset: Path) -> Source:
    return Source.from_manifest(load_manifest(str(small_dataset)), "train")


def compute(us: float) -> None:
    until = time.thread_time() + us / 1e6
    while time.thread_time() < until:
        pass


def test_a_planted_cost_is_measured_where_it_was_planted(source: Source, monkeypatch) -> None:
    """For each decoded image 4 ms of work, and 4 ms for each value of 4 bytes; cached images are decoded no more.

    Compared with no work in the same places. A fixed cost, or one that is not of a single image, would fail.
    """
    share, decode = 0.0, images._decode_one

    def decode_slowly(stored: Any, image: int, out: Any, decoding: Any) -> None:
        decode(stored, image, out, decoding)
        compute(share * 4_000 * ((decoding.raw_size is None) + (out.dtype == np.float32)))

    monkeypatch.setattr(images, "_decode_one", decode_slowly)
    options = AugmentOptions(antialias=True)  # image by image
    config = replace(CONFIG, image_dtype="float32", augment_options=options)
    without = measure_option_costs(source, config, None)
    share = 1.0
    costs = measure_option_costs(source, config, None)
    assert list(costs) == list(without)
    for name, expected_us in {"now": 8_000, "cached": 4_000, "uint8": 4_000, "device": 4_000}.items():
        assert costs[name] - without[name] == pytest.approx(expected_us, rel=0.25), name


@pytest.mark.usefixtures("_guessed")
def test_everything_that_the_config_leaves_open_is_tried(source: Source) -> None:
    config = replace(CONFIG, image_dtype="float32", augment_options=AugmentOptions(dct_scaling=False))
    tried = ["now", "uint8", "device", "dct_scaling", "cached", "cached_device"]
    assert set(measure_option_costs(source, config, None, late_cache=True)) == set(tried)


def test_the_stages_of_the_textbook_pipeline_are_tried(source: Source) -> None:
    costs = measure_option_costs(source, replace(CONFIG, order="throughput", image_dtype="float32"), None)
    assert set(costs) == {"now", "uint8", "cached", "engine_share"}
    assert min(costs[name] for name in ("now", "uint8", "cached")) > 1


@pytest.fixture
def _guessed(monkeypatch) -> None:
    """Builds what is tried, and does not run it."""
    monkeypatch.setattr(option_costs, "measure_costs_us", lambda ways, *_: dict.fromkeys(ways, 10.0))


@pytest.mark.usefixtures("_guessed")
def test_the_textbook_pipeline_has_no_other_option_that_could_be_tried(source: Source) -> None:
    options = replace(CONFIG, order="throughput", augment_options=AugmentOptions(dct_scaling=False))
    assert set(measure_option_costs(source, options, None, late_cache=True)) == {"now", "cached", "engine_share"}


def test_what_reading_costs_is_that_of_the_records_which_are_read(source: Source, monkeypatch):
    """Large records take longer to read than smaller ones: their time must not count for both."""
    known = {"now": 1000.0, "cached": 300.0, "smaller": 500.0, "reading now": 600.0}
    known |= {"reading smaller": 50.0, "engine": 250.0}
    monkeypatch.setattr(option_costs, "measure_costs_us", lambda ways, *_: {name: known[name] for name in ways})
    costs = measure_option_costs(source, replace(CONFIG, order="throughput"), 16)
    del costs["smaller_bytes"]
    assert costs == {"now": 400.0, "cached": 300.0, "smaller": 450.0, "engine_share": 0.25}


@pytest.mark.usefixtures("_guessed")
def test_restart_markers_are_tried_if_all_images_are_jpegs(foreign: Any, tmp_path: Path) -> None:
    records = [{"image": foreign.image(k, (80, 64)), "label": k} for k in range(8)]
    foreign.write(tmp_path / "train-0.tfrecord", records)
    index(IndexConfig(str(tmp_path)))
    source = Source.from_manifest(load_manifest(str(tmp_path)), "train")
    assert set(measure_option_costs(source, CONFIG, None)) == {"now", "device", "cached", "seekable"}


def test_smaller_images_are_made_of_the_records(source: Source) -> None:
    costs = measure_option_costs(source, replace(CONFIG, augment="device"), 16)
    assert set(costs) == {"now", "cached", "smaller", "smaller_bytes"}
    payloads = sample_records(source)
    assert len(payloads) == RECORDS  # of 12 records: some come again
    smaller = option_costs._shrink_images(source, payloads, 16)
    assert len(smaller) == len(payloads)
    assert smaller != payloads


def test_features_that_nobody_reads_are_left_out(source: Source, monkeypatch) -> None:
    """They count only as a part of the bytes that smaller images leave."""
    tried: list[list[bytes]] = []
    monkeypatch.setattr(option_costs, "_try_engine", lambda trials: tried.append(trials["now"].payloads) or {})
    records: list[dict[str, Any]] = [dict(decode_example(payload)) for payload in sample_records(source)]
    bloated = [encode_example({**record, "blob": b"b" * 100_000}) for record in records]
    monkeypatch.setattr(option_costs, "sample_records", lambda *_: bloated)
    costs = measure_option_costs(source, CONFIG, 16, unread=["blob"])
    assert [dict(decode_example(payload)) for payload in tried[0]] == records
    assert costs["smaller_bytes"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_squares_are_tried_as_smaller_squares(draw_images: Any, tmp_path: Path, encoding: Any) -> None:
    images, form = draw_images(tmp_path / "images"), ImageForm(encoding, square=40)
    shard_job.run(ShardConfig(input=str(images), output=str(tmp_path / "pets"), num_shards=2, workers=1, form=form))
    costs = measure_option_costs(Source.from_manifest(load_manifest(str(tmp_path / "pets")), "train"), CONFIG, 20)
    assert costs["smaller"] > 0
    assert (costs["smaller_bytes"] < 0.4) == (encoding == "raw")  # a small JPEG is mostly its header


@pytest.mark.usefixtures("_guessed")
def test_an_evaluation_is_tried_as_a_training(source: Source) -> None:
    config = replace(CONFIG, training=False)
    assert set(measure_option_costs(source, config, None)) == {"now", "device", "cached"}
    costs = measure_option_costs(source, replace(config, order="throughput"), None)
    assert set(costs) == {"now", "cached", "engine_share"}


def test_the_engine_is_tried_on_files_without_a_manifest(source: Source) -> None:
    foreign = tfrecord_files(str(Path(source.files[0]).parent / "train-*"))
    assert measure_option_costs(foreign, CONFIG, None)["engine_share"] > 0


@pytest.mark.usefixtures("_guessed")
def test_an_engine_that_cannot_be_tried_leaves_the_other_costs(source: Source, monkeypatch) -> None:
    def refuse(*_: Any) -> Any:
        raise ConfigError("no")

    monkeypatch.setattr(option_costs, "write_sample", refuse)
    assert set(measure_option_costs(source, replace(CONFIG, order="throughput"), None)) == {"now", "cached"}


def test_nothing_is_tried_where_no_image_is_decoded_in_each_epoch(source: Source) -> None:
    assert measure_option_costs(source, replace(CONFIG, cache="decoded"), None) == {}


@pytest.mark.parametrize("order", ["auto", "throughput"])
def test_a_damaged_image_is_left_to_the_pipeline(source: Source, monkeypatch, order: Any) -> None:
    features: dict[str, Any] = dict(decode_example(sample_records(source)[0]))
    damaged = encode_example({**features, "image/encoded": [b"no image"]})
    monkeypatch.setattr(option_costs, "sample_records", lambda *_: [damaged] * RECORDS)
    assert measure_option_costs(source, replace(CONFIG, order=order), None) == {}


def test_a_damaged_record_is_left_to_the_pipeline(source: Source, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.tfrecord"
    data = bytearray(Path(source.files[0]).read_bytes())
    data[40] ^= 1
    damaged.write_bytes(data)
    assert measure_option_costs(replace(source, files=(str(damaged),)), CONFIG, None) == {}


def open_files(foreign: Any, folder: Path, compression: str, described: bool) -> tuple[Manifest | Source, str | None]:
    drawn = random.Random(3).randbytes(60_000 if compression else 250_000).hex().encode()  # slow to unpack
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
    """Half a megabyte that nobody reads costs the engine's thread hundreds of microseconds."""
    config = replace(CONFIG, order=order)
    data, split = open_files(foreign, tmp_path, compression, described)
    facts = get_dataset_facts(data, split, config, [])
    assert facts.unread_features == ("blob", "more")
    assert facts.by_engine is (described and not compression and order == "auto")
    costs = measure_read_costs(get_source(data, split), config, facts)
    assert list(costs) == ["read", "read_without_unread", *(["read_unpacked"] if compression else [])]
    assert min(costs.values()) > 0
    assert not compression or costs["read_unpacked"] < costs["read"]
    assert not facts.by_engine or costs["read_without_unread"] < costs["read"] / 2


def test_no_other_cost_is_measured_where_nothing_could_be_saved(foreign, small_dataset, tmp_path, monkeypatch):
    own = load_manifest(str(small_dataset))
    facts = get_dataset_facts(own, "train", CONFIG, [])
    assert list(measure_read_costs(get_source(own, "train"), CONFIG, facts)) == ["read"]
    data, split = open_files(foreign, tmp_path, "", True)
    facts, source = get_dataset_facts(data, split, CONFIG, []), get_source(data, split)
    assert measure_read_costs(source, replace(CONFIG, cache="bytes"), facts) == {}
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert measure_read_costs(source, CONFIG, facts) == {}
