"""A sample of records, the features in it that nobody reads, and the number of records that nobody counted."""

from pathlib import Path
from typing import Any

import pytest

from tfpipe.engine.source import Source, tfrecord_files
from tfpipe.format.example import decode_example, encode_example
from tfpipe.profiler.measure.samples import RECORDS, RecordCount, count_records, leave_out, measure_unread
from tfpipe.profiler.measure.samples import sample_records as sample


@pytest.fixture(scope="module", params=["", "GZIP", "ZLIB"])
def source(request, foreign: Any, tmp_path_factory) -> Source:
    folder = foreign.imagenet(tmp_path_factory.mktemp("files"), request.param)
    return tfrecord_files(f"{folder}/train-*")


def test_a_sample_has_records_of_several_files(source: Source, foreign: Any) -> None:
    payloads = sample(source)
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


def test_every_record_is_counted(source: Source, foreign: Any) -> None:
    sizes = [len(foreign.example(record)) for record in foreign.records(0, 40, base=1)]
    assert count_records(source) == RecordCount(40, sum(sizes) / 40)


def test_the_rest_is_taken_from_the_bytes_where_time_is_short(foreign: Any, tmp_path: Path) -> None:
    for k in range(4):
        foreign.write(tmp_path / f"part-{k}", [{"image": foreign.image(3), "id": k}] * 10)
    one = len(foreign.example({"image": foreign.image(3), "id": 3}))
    count = count_records(tfrecord_files(f"{tmp_path}/part-*"), max_s=0.0)
    assert count == RecordCount(40, one)  # from the first one of them


def test_shares_of_what_is_not_read() -> None:
    payloads = [encode_example({"image": b"x" * 584, "blob": b"y" * 300, "id": 3, "tag": b"z" * 80})] * 2
    shares = measure_unread(payloads, {"image"})
    size = len(payloads[0]) + 16
    assert list(shares) == ["blob", "tag", "id"]
    assert shares["blob"] == pytest.approx(300 / size, abs=0.03)
    assert sum(shares.values()) == pytest.approx(1 - 584 / size, abs=0.06)
    assert leave_out(payloads, ("blob", "id")) == [encode_example({"image": b"x" * 584, "tag": b"z" * 80})] * 2
