"""Records read and parsed by the native library, against one at a time by Python."""

import os
import random
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from tests.fuzz.mutate import change
from tests.integrity.damaged import framed
from tests.refusals import refusal
from tfpipe.engine.parse import RecordBlock, parse_records
from tfpipe.engine.record_reader import plan_spans
from tfpipe.errors import FormatError
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.tfrecord import mask_crc
from tfpipe.native import records

LEAVES = "A span leaves the block."
SIZES = [*range(40), 255, 256, 257, 300, 767, 768, 769, 1200, 2304, 5000]


@pytest.mark.parametrize("by_tables", [False, True])
def test_checksums_are_those_of_another_library(by_tables: bool) -> None:
    rng = np.random.default_rng(1)
    for size in SIZES:
        data = rng.bytes(size)
        for form in (data, np.frombuffer(data, np.uint8), memoryview(data)):
            assert records.masked_crc32c(form, by_tables) == mask_crc(google_crc32c.value(data))


def write_frames(path: Path, count: int) -> tuple[bytes, np.ndarray]:
    """Writes records of many sizes; returns the file's bytes, and the begin and size of each."""
    rng = np.random.default_rng(2)
    frames = [framed([rng.bytes(int(size))]) for size in rng.choice(SIZES, count)]
    path.write_bytes(b"".join(frames))
    sizes = np.array([len(one) for one in frames], np.int64)
    return path.read_bytes(), np.stack((np.cumsum(sizes) - sizes, sizes), axis=1)


def test_parts_of_files_come_into_one_block(tmp_path: Path) -> None:
    data, places = write_frames(tmp_path / "a", 700)  # more than the kernel asks storage for at once
    with (tmp_path / "a").open("rb") as file:
        spans = np.array([[file.fileno(), begin, size, begin] for begin, size in places[::-1].tolist()], np.int64)
        memory = np.full(len(data), 7, np.uint8)
        assert records.read_records(spans, places, memory).tolist() == [True] * 700
        assert memory.tobytes() == data
        assert file.tell() == 0
    block = np.full(8, 7, np.uint8)
    assert records.read_records(np.empty((0, 4), np.int64), np.empty((0, 2), np.int64), block).tolist() == []
    assert block.tolist() == [7] * 8


def test_what_cannot_be_read_is_zeros_and_not_whole(tmp_path: Path) -> None:
    data, places = write_frames(tmp_path / "a", 3)
    end = len(data)
    with (tmp_path / "a").open("rb") as file:
        spans = np.array([[file.fileno(), 0, end + 30, 0], [987654, 0, 20, end + 30]], np.int64)
        frames = np.concatenate((places, [[end, 16], [end + 30, 20], [0, 15]]))
        memory = np.full(end + 50, 7, np.uint8)
        assert records.read_records(spans, frames, memory).tolist() == [True] * 3 + [False] * 3
        assert memory.tobytes() == data + bytes(50)


def test_a_change_of_any_byte_is_noticed(tmp_path: Path) -> None:
    whole = framed([b"payload"])
    copies = bytearray(whole * (len(whole) + 1))
    for at in range(len(whole)):
        copies[at * len(whole) + at] ^= 1
    path = tmp_path / "a"
    path.write_bytes(copies)
    frames = np.array([[k * len(whole), len(whole)] for k in range(len(whole) + 1)], np.int64)
    with path.open("rb") as file:
        span = np.array([[file.fileno(), 0, len(copies), 0]], np.int64)
        found = records.read_records(span, frames, np.empty(len(copies), np.uint8))
    assert found.tolist() == [False] * len(whole) + [True]


def test_a_span_or_a_record_that_leaves_the_block_is_refused() -> None:
    block, none = np.zeros(10, np.uint8), np.empty((0, 4), np.int64)
    for span in ([0, 0, 11, 0], [0, 0, 1, 10], [0, 0, -1, 0], [0, -1, 1, 0], [0, 0, 1, -1]):
        spans = np.array([span], np.int64)
        assert refusal(ValueError, records.read_records, spans, none[:, :2].copy(), block) == LEAVES
    for place in ([0, 11], [11, 0], [-1, 2], [2, -1], [2**62, 2**62]):
        places = np.array([place], np.int64)
        assert refusal(ValueError, records.read_records, none, places, block) == LEAVES
        assert refusal(ValueError, records.parse_examples, block, places) == LEAVES


def test_tables_of_another_form_are_refused() -> None:
    block = np.zeros(10, np.uint8)
    others = np.zeros(2, np.int64), np.zeros((1, 3), np.int64), np.zeros((1, 2), np.int32), b"", memoryview(b"ab")
    for table in others:
        with pytest.raises(
            ValueError, match=r"^`payloads` must be writable \[\d, 2\] of 8 bytes each in C order, got \["
        ):
            records.parse_examples(block, table)
    for wrong in (bytes(10), np.zeros((4, 4), np.uint8)[:, :2]):
        with pytest.raises(ValueError, match=r"^`block` must be writable \[\d+\] of 1 bytes each in C order, got \["):
            records.parse_examples(wrong, np.zeros((1, 2), np.int64))


def decode_all(payloads: list[bytes]) -> list[object]:
    """Decodes Examples in one call of the native library; None stands for a refusal."""
    sizes = np.array([len(one) for one in payloads], np.int64)
    ends = np.cumsum(sizes)
    data = memoryview(bytearray(b"".join(payloads) + b" "))
    examples = parse_records(RecordBlock(data, ends - sizes, ends, np.ones(len(payloads), np.bool_)))
    return [None if example is None else (list(example), repr(example)) for example in examples]


def decode_one(payload: bytes) -> object:
    try:
        example = decode_example(payload)
    except FormatError:
        return None
    return list(example), repr(example)


def test_changed_examples_are_read_as_python_reads_them() -> None:
    rng = random.Random(5)
    records_of_all_kinds = [
        encode_example(
            {"image/encoded": bytes(200), "label": 3, "text": "daisy", "box": [0.5, 1.5], "größe": [1, 300]}
        ),
        encode_example({"texts": [b"a", b"", b"c"], "none": None, "no ints": np.empty(0, np.int64), "big": -(2**63)}),
        encode_example({"run": list(range(-100, 100)), "floats": [float(k) for k in range(50)]}),
    ]
    payloads = list(records_of_all_kinds)
    for _ in range(1000):
        payloads.append(change(rng.choice(records_of_all_kinds), "protobuf", rng))
    expected = [decode_one(payload) for payload in payloads]
    # In small batches too: a key that is not UTF-8 sends a whole batch to Python.
    assert decode_all(payloads) == expected
    assert [one for at in range(0, len(payloads), 3) for one in decode_all(payloads[at : at + 3])] == expected
    assert 100 < sum(one is None for one in expected) < len(expected) - 100


def test_usual_examples_are_not_left_to_python() -> None:
    payloads = [encode_example({"a": k, "b": [b"x"] * k, "c": [0.5] * (k % 3), "d": None}) for k in range(20)]
    ends = np.cumsum([len(one) for one in payloads])
    places = np.stack((ends - [len(one) for one in payloads], [len(one) for one in payloads]), axis=1).astype(np.int64)
    examples = records.parse_examples(bytearray(b"".join(payloads)), places)
    assert examples.num_features.tolist() == [4] * 20
    assert examples.values[records.INTS].tolist() == list(range(20))
    assert len(examples.keys) == 4
    assert len(examples.values[records.TEXTS]) == sum(range(20))
    assert examples.values[records.FLOATS].tolist() == [0.5] * sum(k % 3 for k in range(20))
    assert examples.features[:4, 1].tolist() == [records.INTS, records.TEXTS, records.TEXTS, records.NOTHING]


def test_joined_examples_are_not_left_to_python() -> None:
    """The features of columns follow those of a record."""
    joined = b"".join(map(encode_example, [{"a": 1, "b": b"x"}, {"c": [0.5, 2.5]}, {}, {"d": "text"}]))
    assert records.parse_examples(bytearray(joined), np.array([[0, len(joined)]])).num_features.tolist() == [4]
    assert decode_all([joined, encode_example({"a": 2})])[0] == decode_one(joined)
    assert list(decode_example(joined)) == ["a", "b", "c", "d"]
    cut = [joined[:size] for size in range(len(joined))]
    assert [decode_all([one])[0] for one in cut] == list(map(decode_one, cut))


def test_a_length_of_more_than_64_bits_is_refused() -> None:
    wrapped = b"\x0a" + bytes([0x80 | 2, *[0x80] * 8, 2]) + b"\x0a\x00"  # 2 + 2**64, of which 64 bits would be 2
    assert decode_all([wrapped, encode_example({"k": 1})]) == [None, decode_one(encode_example({"k": 1}))]


def test_a_cold_file_gives_the_same(tmp_path: Path) -> None:
    data, places = write_frames(tmp_path / "a", 300)
    with (tmp_path / "a").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        table, ats, num_bytes = plan_spans(np.full(300, file.fileno()), places[:, 0], places[:, 1])
        memory = np.empty(num_bytes, np.uint8)
        whole = records.read_records(table, np.stack((ats, places[:, 1]), axis=1), memory)
    block = RecordBlock(memory.data, ats + 12, ats + places[:, 1] - 4, whole)
    assert block.list_payloads() == [data[begin + 12 : begin + size - 4] for begin, size in places.tolist()]
