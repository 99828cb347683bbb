"""A few records of a pipeline's files, for the engine and for TensorFlow's operations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source, get_source, tfrecord_files
from tfpipe.errors import FormatError
from tfpipe.format.example import decode_example, encode_example
from tfpipe.integrity.foreign.index import IndexConfig, index
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure.clocks import Rest, measure_costs_us
from tfpipe.profiler.measure.samples import (
    RECORDS,
    count_records,
    leave_out,
    list_sizes,
    make_batches,
    make_decoder,
    make_reader,
    measure_unread,
    sample_records,
    write_file,
    write_sample,
)
from tfpipe.profiler.measure.samples import sample_records as sample


@pytest.fixture(scope="module", params=["", "GZIP", "ZLIB"])
def files(request, foreign: Any, tmp_path_factory) -> Source:
    folder = foreign.imagenet(tmp_path_factory.mktemp("files"), request.param)
    return tfrecord_files(f"{folder}/train-*")


def test_a_sample_has_records_of_several_files(files: Source, foreign: Any) -> None:
    payloads = sample(files)
    assert len(payloads) == RECORDS
    known = {foreign.example(record) for record in foreign.records(0, 40, base=1)}
    assert set(payloads) <= known
    numbers = {int(decode_example(payload)["id"][0]) for payload in payloads}  # type: ignore[index]
    assert min(numbers) < 14 <= max(numbers)


def test_a_damaged_file_gives_no_sample(foreign: Any, tmp_path: Path) -> None:
    path = foreign.write(tmp_path / "part-0", foreign.records(0, 3))
    files = tfrecord_files(str(path))
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert sample(files) == []
    path.write_bytes(bytes(12) + data[12:])
    assert count_records(files) is None


def test_every_record_is_counted(files: Source, foreign: Any) -> None:
    sizes = [len(foreign.example(record)) for record in foreign.records(0, 40, base=1)]
    assert count_records(files) == (40, sum(sizes) / 40)


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


CONFIG = PipelineConfig(batch_size=4, image_size=16)


@pytest.fixture(scope="module")
def source(small_dataset: Path) -> Source:
    return get_source(load_manifest(str(small_dataset)), "train")


def get_labels(payloads: list[bytes], base: int = 0) -> list[int]:
    return [int(decode_example(payload)["image/class/label"][0]) - base for payload in payloads]  # type: ignore[index]


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_each_batch_has_all_records_and_other_crops(source: Source, cache: Any) -> None:
    payloads = sample_records(source)[:12]
    decode = make_decoder(source, replace(CONFIG, cache=cache), payloads)
    batches = [decode(), decode()]
    assert all(batch["label"].tolist() == get_labels(payloads) for batch in batches)
    assert [batch["image"].shape for batch in batches] == [(12, 16, 16, 3)] * 2
    assert (batches[0]["image"] != batches[1]["image"]).any(axis=(1, 2, 3)).sum() > 6


def test_damaged_images_are_an_error(source: Source) -> None:
    features: dict[str, Any] = dict(decode_example(sample_records(source)[0]))
    decode = make_decoder(source, CONFIG, [encode_example({**features, "image/encoded": [b"no image"]})] * 2)
    with pytest.raises(FormatError, match=r"^Record 0 of 'train': its image cannot be used, "):
        decode()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["own", "indexed", "files"])
def test_what_is_read_is_what_was_written(source: Source, foreign: Any, tmp_path: Path, kind: str, training: bool):
    """Each of the 8 steps of an epoch has as many records as the sample; an epoch has each 8 times."""
    if kind != "own":
        foreign.imagenet(tmp_path / "files", base=1)
        source = tfrecord_files(f"{tmp_path}/files/train-*")
    if kind == "indexed":
        index(IndexConfig(str(tmp_path / "files")))
        source = get_source(load_manifest(str(tmp_path / "files")), "train")
    payloads = sample_records(source)[:6]
    sample = write_sample(str(tmp_path / "sample"), source, payloads)
    assert is_by_engine(sample, CONFIG)
    read = make_reader(sample, replace(CONFIG, training=training))
    steps = [read() for _ in range(16)]
    for epoch in (steps[:8], steps[8:]):
        assert sorted(np.concatenate([step.numbers for step in epoch]).tolist()) == list(range(48))
    labels = [int(label) for step in steps for label in step.columns[str(source.label_key)].values]
    assert sorted(labels) == sorted(16 * get_labels(payloads))


TEXTBOOK = PipelineConfig(batch_size=4, image_size=16, order="throughput")


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_all_that_is_read_is_what_was_written(source: Source, tmp_path: Path, compression: Any) -> None:
    payloads = [b"a" * 100, b"b" * 200, b"c" * 300, b"d" * 400] * (RECORDS // 4)
    file = write_file(str(tmp_path / "few"), replace(source, compression=compression), payloads)
    assert file.record_bytes == pytest.approx(266 if not compression else 10, rel=0.5)
    sizes = [*list_sizes(file, TEXTBOOK).unbatch().take(64 * RECORDS).as_numpy_iterator()]
    counts = {size: sizes.count(size) for size in set(sizes)}
    # Files are read side by side, so those of the next epoch may come before the last ones of this.
    assert counts == pytest.approx(dict.fromkeys((100, 200, 300, 400), 16 * RECORDS), rel=0.2)


@pytest.mark.parametrize("cache", ["none", "decoded"])
def test_batches_have_the_records_and_other_crops(source: Source, tmp_path: Path, cache: Any, caplog):
    payloads = sample_records(source)
    file = write_file(str(tmp_path / "few"), source, payloads)
    batches = [*make_batches(file, replace(TEXTBOOK, cache=cache)).take(64).as_numpy_iterator()]
    assert {batch["image"].shape for batch in batches} == {(RECORDS, 16, 16, 3)}
    labels = [int(decode_example(payload)["image/class/label"][0]) for payload in payloads]  # type: ignore[index]
    given = [int(label) for batch in batches for label in batch["label"]]
    counts = {label: given.count(label) for label in set(given)}
    assert counts == pytest.approx({label: 64 * labels.count(label) for label in set(labels)}, rel=0.2)
    assert len({image.tobytes() for batch in batches for image in batch["image"]}) > 200
    assert caplog.records == []


def test_threads_that_work_ahead_are_counted(source: Source, tmp_path: Path) -> None:
    file = write_file(str(tmp_path / "few"), source, sample_records(source))
    datasets = {"read": list_sizes(file, TEXTBOOK), "made": make_batches(file, TEXTBOOK)}
    batches = {name: iter(dataset).__next__ for name, dataset in datasets.items()}
    costs_us = measure_costs_us(batches, RECORDS, Rest().wait)
    assert 0 < costs_us["read"] < costs_us["made"] < 100_000
