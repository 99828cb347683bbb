"""A few real records, and what an image costs with other options and with smaller images."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from tfpipe.dataset.load import load_manifest
from tfpipe.engine import encoded_images
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.errors import ConfigError
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.profiler.measure import clocks, option_costs
from tfpipe.profiler.measure.clocks import Rest, measure_costs_us
from tfpipe.profiler.measure.option_costs import (
    RECORDS,
    count_records,
    leave_out,
    make_decoder,
    measure_option_costs,
    measure_unread,
    open_textbook,
    sample_records,
)

CONFIG = PipelineConfig(batch_size=4, image_size=16)


@pytest.fixture(scope="module")
def source(small_dataset: Path) -> Source:
    return Source.from_manifest(load_manifest(str(small_dataset)), "train")


def test_a_planted_cost_is_measured_where_it_was_planted(source: Source, monkeypatch) -> None:
    """For each decoded image 4 ms of work, and 4 ms for each value of 4 bytes; cached images are decoded no more.

    Compared with no work in the same places. A fixed cost, or one that is not of a single image, would fail.
    """
    share, decode = 0.0, encoded_images._decode_one

    def decode_slowly(stored: Any, image: int, out: Any, decoding: Any) -> None:
        decode(stored, image, out, decoding)
        until = time.thread_time() + share * 4e-3 * ((decoding.raw_size is None) + (out.dtype == np.float32))
        while time.thread_time() < until:
            pass

    monkeypatch.setattr(encoded_images, "_decode_one", decode_slowly)
    options = AugmentOptions(antialias=True)  # image by image
    config = replace(CONFIG, image_dtype="float32", augment_options=options)
    without = measure_option_costs(source, config, None)
    share = 1.0
    costs = measure_option_costs(source, config, None)
    assert list(costs) == list(without)
    for name, expected_us in {"now": 8_000, "cached": 4_000, "uint8": 4_000, "device": 4_000}.items():
        assert costs[name] - without[name] == pytest.approx(expected_us, rel=0.25), name


@pytest.fixture
def _guessed(monkeypatch) -> None:
    """Builds what is tried, and does not run it."""
    monkeypatch.setattr(option_costs, "measure_costs_us", lambda ways, *_: dict.fromkeys(ways, 10.0))


NO_SCALING = AugmentOptions(dct_scaling=False)


@pytest.mark.usefixtures("_guessed")
@pytest.mark.parametrize(
    ("options", "tried"),
    [
        (
            {"image_dtype": "float32", "augment_options": NO_SCALING},
            {"now", "uint8", "device", "dct_scaling", "cached", "kept"},
        ),
        ({"order": "throughput", "augment_options": NO_SCALING}, {"now", "cached", "engine_share"}),
        ({"training": False}, {"now", "device", "cached", "kept"}),
        ({"cache": "bytes"}, {"now", "device", "cached"}),
        ({"training": False, "order": "throughput"}, {"now", "cached", "engine_share"}),
        ({"cache": "decoded"}, set()),  # no image is decoded in each epoch
    ],
)
def test_what_the_config_leaves_open_is_tried(source: Source, options: dict[str, Any], tried: set[str]) -> None:
    assert set(measure_option_costs(source, replace(CONFIG, **options), None)) == tried


@pytest.mark.usefixtures("_guessed")
def test_restart_markers_are_tried_if_all_images_are_jpegs(foreign: Any, tmp_path: Path) -> None:
    records = [{"image": foreign.image(k, (80, 64)), "label": k} for k in range(8)]
    foreign.write(tmp_path / "train-0.tfrecord", records)
    index(IndexConfig(str(tmp_path)))
    source = Source.from_manifest(load_manifest(str(tmp_path)), "train")
    assert set(measure_option_costs(source, CONFIG, None)) == {"now", "device", "cached", "kept", "seekable"}


def test_smaller_images_are_made_of_the_records(source: Source) -> None:
    costs = measure_option_costs(source, replace(CONFIG, augment="device"), 16)
    assert set(costs) == {"now", "cached", "kept", "smaller", "smaller_bytes"}
    payloads = sample_records(source)
    assert len(payloads) == RECORDS  # of 12 records: some come again
    smaller = option_costs._shrink_images(source, payloads, 16)
    assert (len(smaller), smaller == payloads) == (RECORDS, False)


def test_features_that_nobody_reads_are_left_out(source: Source, monkeypatch) -> None:
    """They count only as a part of the bytes that smaller images leave, and of what a cache keeps."""
    tried: list[list[bytes]] = []
    monkeypatch.setattr(option_costs, "_try_engine", lambda trials, kept: tried.extend((trials["now"][1], kept)) or {})
    records: list[dict[str, Any]] = [dict(decode_example(payload)) for payload in sample_records(source)]
    bloated = [encode_example({**record, "blob": b"b" * 100_000}) for record in records]
    monkeypatch.setattr(option_costs, "sample_records", lambda *_: bloated)
    costs = measure_option_costs(source, CONFIG, 16, unread=["blob"])
    assert [dict(decode_example(payload)) for payload in tried[0]] == records
    assert tried[1] == bloated
    assert costs["smaller_bytes"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_squares_are_tried_as_smaller_squares(draw_images: Any, tmp_path: Path, encoding: Any) -> None:
    images, form = draw_images(tmp_path / "images"), ImageForm(encoding, square=40)
    shard_job.run(ShardConfig(input=str(images), output=str(tmp_path / "pets"), num_shards=2, workers=1, form=form))
    costs = measure_option_costs(Source.from_manifest(load_manifest(str(tmp_path / "pets")), "train"), CONFIG, 20)
    assert costs["smaller"] > 0
    assert (costs["smaller_bytes"] < 0.4) == (encoding == "raw")  # a small JPEG is mostly its header


def test_the_engine_is_tried_on_files_without_a_manifest(source: Source) -> None:
    foreign = tfrecord_files(str(Path(source.files[0]).parent / "train-*"))
    costs = measure_option_costs(foreign, replace(CONFIG, image_dtype="float32"), None)
    assert costs.pop("engine_share") > 0
    assert set(costs) == {"now", "uint8", "cached"}
    assert min(costs.values()) > 1


@pytest.mark.usefixtures("_guessed")
def test_an_engine_that_cannot_be_tried_leaves_the_other_costs(source: Source, monkeypatch) -> None:
    refusing = Mock(side_effect=ConfigError("no"))
    monkeypatch.setattr(option_costs, "open_engine", refusing)
    assert set(measure_option_costs(source, replace(CONFIG, order="throughput"), None)) == {"now", "cached"}
    assert refusing.called


@pytest.mark.parametrize("order", ["auto", "throughput"])
def test_a_damaged_image_is_left_to_the_pipeline(source: Source, monkeypatch, order: Any) -> None:
    features: dict[str, Any] = dict(decode_example(sample_records(source)[0]))
    damaged = encode_example({**features, "image/encoded": [b"no image"]})
    monkeypatch.setattr(option_costs, "sample_records", lambda *_: [damaged] * RECORDS)
    assert measure_option_costs(source, replace(CONFIG, order=order), None) == {}
    monkeypatch.setattr(option_costs, "sample_records", lambda *_: [])  # as of a damaged file
    assert measure_option_costs(source, replace(CONFIG, order=order), None) == {}


@pytest.fixture(scope="module", params=["", "GZIP", "ZLIB"])
def files(request, foreign: Any, tmp_path_factory) -> Source:
    folder = foreign.imagenet(tmp_path_factory.mktemp("files"), request.param)
    return tfrecord_files(f"{folder}/train-*")


def test_a_sample_has_records_of_several_files_and_all_are_counted(files: Source, foreign: Any) -> None:
    payloads = sample_records(files)
    assert len(payloads) == RECORDS
    known = [foreign.example(record) for record in foreign.records(0, 40, base=1)]
    assert set(payloads) <= set(known)
    numbers = {int(decode_example(payload)["id"][0]) for payload in payloads}  # type: ignore[index]
    assert min(numbers) < 14 <= max(numbers)
    assert count_records(files) == (40, sum(map(len, known)) / 40)


def test_a_damaged_file_gives_no_sample(foreign: Any, tmp_path: Path) -> None:
    path = foreign.write(tmp_path / "part-0", foreign.records(0, 3))
    files = tfrecord_files(str(path))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert sample_records(files) == []
    path.write_bytes(bytes(12) + data[12:])
    assert count_records(files) is None


def test_the_rest_is_taken_from_the_bytes_where_time_is_short(foreign: Any, tmp_path: Path) -> None:
    for k in range(4):
        foreign.write(tmp_path / f"part-{k}", [{"image": foreign.image(3), "id": k}] * 10)
    one = len(foreign.example({"image": foreign.image(3), "id": 3}))
    count = count_records(tfrecord_files(f"{tmp_path}/part-*"), max_s=0.0)
    assert count == (40, one)  # from the first one of them


def test_shares_of_what_is_not_read() -> None:
    payloads = [encode_example({"image": b"x" * 584, "blob": b"y" * 300, "id": 3, "tag": b"z" * 80})] * 2
    shares = measure_unread(payloads, {"image"})
    size = len(payloads[0]) + 16
    assert list(shares) == ["blob", "tag", "id"]
    assert shares["blob"] == pytest.approx(300 / size, abs=0.03)
    assert sum(shares.values()) == pytest.approx(1 - 584 / size, abs=0.06)
    assert leave_out(payloads, ("blob", "id")) == [encode_example({"image": b"x" * 584, "tag": b"z" * 80})] * 2


def get_labels(payloads: list[bytes]) -> list[int]:
    return [int(decode_example(payload)["image/class/label"][0]) for payload in payloads]  # type: ignore[index]


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_each_batch_has_all_records_and_other_crops(source: Source, cache: Any) -> None:
    payloads = sample_records(source)[:12]
    decode = make_decoder(source, replace(CONFIG, cache=cache), payloads)
    batches = [decode(), decode()]
    assert all(batch["label"].tolist() == get_labels(payloads) for batch in batches)
    assert [batch["image"].shape for batch in batches] == [(12, 16, 16, 3)] * 2
    assert (batches[0]["image"] != batches[1]["image"]).any(axis=(1, 2, 3)).sum() > 6


TEXTBOOK = PipelineConfig(batch_size=4, image_size=16, order="throughput")
CACHES: tuple[Any, ...] = ("none", "decoded")


@pytest.mark.parametrize("cache", CACHES)
def test_batches_have_the_records_and_other_crops(source: Source, cache: Any, caplog) -> None:
    payloads = sample_records(source)
    take = open_textbook(source, replace(TEXTBOOK, cache=cache), payloads)
    batches = [take() for _ in range(64)]
    assert {tuple(batch["image"].shape) for batch in batches} == {(RECORDS, 16, 16, 3)}
    given, stored = np.concatenate([batch["label"] for batch in batches]), np.array(get_labels(payloads))
    assert np.bincount(given) == pytest.approx(64 * np.bincount(stored), rel=0.2)
    assert len({image.numpy().tobytes() for batch in batches for image in batch["image"]}) > 200
    assert caplog.records == []


def test_threads_that_work_ahead_are_counted(source: Source, monkeypatch) -> None:
    monkeypatch.setattr(clocks, "_MAX_REST_S", 60.0)  # on a busy machine it takes long until buffers are full
    monkeypatch.setattr(clocks, "_MIN_ROUNDS", 7)
    ways = {cache: open_textbook(source, replace(TEXTBOOK, cache=cache), sample_records(source)) for cache in CACHES}
    costs_us = measure_costs_us(ways, RECORDS, Rest().wait)
    assert 0 < costs_us["decoded"] < costs_us["none"] < 100_000
