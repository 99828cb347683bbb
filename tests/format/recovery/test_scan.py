"""`tfpipe.format.recovery`: bytes read once, headers in bytes of any kind, and what is said of damage.

The fuzz of tests/integrity says that it is all.
"""

import hashlib
import io
import random
import struct

import numpy as np
import pytest

from tests.integrity.damaged import DamagedFile, framed
from tests.memory import peak_memory
from tfpipe.errors import FormatError
from tfpipe.format.recovery.hashed_reader import BUFFER_BYTES, HashedReader
from tfpipe.format.recovery.resync import Gap, find_headers, iterate_headers
from tfpipe.format.recovery.scan import Intact, scan
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, decode_header, record_header

# Bytes, read once


def test_views_anywhere_and_one_hash(rng: random.Random) -> None:
    data = rng.randbytes(3 * BUFFER_BYTES + 12345)
    reader = HashedReader(io.BytesIO(data), hashed=True)
    for _ in range(60):
        offset = rng.randrange(len(data))
        size = min(rng.choice((0, 1, 100, 70_000, BUFFER_BYTES)), len(data) - offset)
        assert reader.view(offset, size).tobytes() == data[offset : offset + size]
        assert reader.peek(offset, size) == data[offset : offset + size]
    assert reader.sha256() == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("size", [0, 1, BUFFER_BYTES - FRAME_BYTES, BUFFER_BYTES, 3 * BUFFER_BYTES])
def test_a_record_of_any_size(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    record = framed([payload])
    data = b"12345" + record + b"rest"
    reader = HashedReader(io.BytesIO(data), hashed=True)
    assert reader.record_at(5) == size + FRAME_BYTES
    assert reader.payload(5, size + FRAME_BYTES) == payload
    assert [reader.record_at(at) for at in (0, 4, 6, len(data) - 3)] == [0, 0, 0, 0]
    assert reader.sha256() == hashlib.sha256(data).hexdigest()
    for at in (5, 15, len(data) - 5):  # length, its checksum, the payload's checksum
        wrong = bytearray(data)
        wrong[at] ^= 1
        assert HashedReader(io.BytesIO(bytes(wrong))).record_at(5) == 0


def test_a_huge_length_takes_no_memory() -> None:
    assert HashedReader(io.BytesIO(record_header(2**62) + bytes(100))).record_at(0) == 0


def test_read_in_order() -> None:
    data = random.Random(0).randbytes(BUFFER_BYTES + 99)
    reader = HashedReader(io.BytesIO(data), hashed=True)
    assert b"".join(iter(lambda: reader.read(1000), b"")) == data
    assert reader.sha256() == hashlib.sha256(data).hexdigest()


def test_a_file_that_shrinks() -> None:
    file = io.BytesIO(bytes(100))
    reader = HashedReader(file)
    file.truncate(50)
    message = r"The file had 100 bytes when it was opened and now ends at byte 50: it changed while it was read\."
    with pytest.raises(FormatError, match=message):
        reader.view(0, 100)


# Headers


@pytest.mark.parametrize("background", ["random", "zeros", "small"])
def test_every_header_is_found(rng: random.Random, background: str) -> None:
    size = 3000
    kinds = {"random": rng.randbytes(size), "zeros": bytes(size), "small": bytes(rng.randrange(2) for _ in range(size))}
    data = bytearray(kinds[background])
    for at, length in ((0, 5), (500, 0), (1001, 2**33), (1500, 2**62), (size - HEADER_BYTES, 77)):
        data[at : at + HEADER_BYTES] = record_header(length)
    expected = [(0, 5), (500, 0), (1001, 2**33), (size - HEADER_BYTES, 77)]
    found = [(at, decode_header(bytes(data[at : at + HEADER_BYTES]))) for at in range(size - HEADER_BYTES + 1)]
    one_by_one = [(at, length) for at, length in found if length is not None and length <= 2**40]
    assert find_headers(bytes(data), 2**40) == one_by_one
    assert set(expected) <= set(find_headers(bytes(data), 2**40))
    assert (1001, 2**33) not in find_headers(bytes(data), 2**32)


@pytest.mark.parametrize("size", range(HEADER_BYTES + 1))
def test_too_few_bytes(size: int) -> None:
    assert find_headers(record_header(3)[:size], 10) == ([(0, 3)] if size >= HEADER_BYTES else [])


def test_headers_on_the_edge_of_a_piece_and_of_the_file() -> None:
    places = [0, (1 << 15) - 5, 3 * (1 << 15) - 1, BUFFER_BYTES - 3, 2 * BUFFER_BYTES + 7]
    data = bytearray(3 * BUFFER_BYTES)
    for at in places:
        data[at : at + HEADER_BYTES] = record_header(9)
    reader = HashedReader(io.BytesIO(bytes(data)))
    assert [at for at, _ in iterate_headers(reader, 0, len(data))] == places
    assert [at for at, _ in iterate_headers(reader, 1, places[-1])] == places[1:-1]
    data = record_header(10) + bytes(14)
    assert list(iterate_headers(HashedReader(io.BytesIO(data)), 0, len(data))) == [(0, 10)]
    assert list(iterate_headers(HashedReader(io.BytesIO(data[:-1])), 0, len(data))) == []


# Gap

PAYLOADS = [bytes([n]) * (100 + n) for n in range(1, 6)]


def found(data: bytes, file: DamagedFile | None = None) -> list[Intact | Gap]:
    places = None if file is None else np.array([file.begins, file.sizes], np.int64).T.copy()
    return list(scan(HashedReader(io.BytesIO(data)), places))


def damages(data: bytes, file: DamagedFile | None = None) -> list[Gap]:
    return [one for one in found(data, file) if isinstance(one, Gap)]


@pytest.fixture
def file() -> DamagedFile:
    return DamagedFile(PAYLOADS)


def test_intact(file: DamagedFile) -> None:
    expected = [Intact(n, begin, size) for n, (begin, size) in enumerate(zip(file.begins, file.sizes, strict=True))]
    assert found(file.original) == found(file.original, file) == expected
    assert found(b"") == []


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(
    ("part", "kind", "detail"),
    [
        (0, "length_crc", "the checksum of its length is wrong"),
        (9, "length_crc", "the checksum of its length is wrong"),
        (50, "payload_crc", "the checksum of its 102 bytes of payload is wrong"),
        (115, "payload_crc", "the checksum of its 102 bytes of payload is wrong"),
    ],
    ids=["length", "length_crc", "payload", "payload_crc"],
)
def test_a_flipped_bit(file: DamagedFile, indexed: bool, part: int, kind: str, detail: str) -> None:
    file.flip(file.begins[1] + part, 3)
    (one,) = damages(bytes(file.data), file if indexed else None)
    assert one == Gap(1, file.begins[1], file.sizes[1], kind, detail)


def test_cut_off(file: DamagedFile) -> None:
    end = file.begins[3] + 40
    file.truncate(end)
    detail = "it has 104 bytes of payload, 24 are there"
    assert damages(bytes(file.data)) == [Gap(3, file.begins[3], 40, "truncated", detail)]
    after = Gap(4, end, 0, "truncated", f"the file ends before it, at byte {end}")
    assert damages(bytes(file.data), file) == [Gap(3, file.begins[3], 40, "truncated", detail), after]
    assert [(one.number, one.kind, one.detail) for one in damages(bytes(file.data[: file.begins[3] + 5]))] == [
        (3, "truncated", "5 of 12 header bytes are there")
    ]


def test_removed_records_show_with_an_index_only_unless_it_is_of_another_file(file: DamagedFile) -> None:
    file.remove(file.begins[1], file.sizes[1] + file.sizes[2])
    assert damages(bytes(file.data)) == []
    assert [(one.number, one.offset, one.kind) for one in damages(bytes(file.data), file)] == [
        (1, file.begins[1], "missing"),
        (2, file.begins[1], "missing"),
    ]
    assert [one.offset for one in found(file.original, DamagedFile([bytes(7)] * 5))] == file.begins


def test_records_inside_a_payload_are_none_with_an_index() -> None:
    inner = b"abc" + framed([b"one", b"two"]) + b"def"
    file = DamagedFile([b"first", inner, b"last"])
    for count in (1, 12):
        file.zero(file.begins[1], count)
        one, two, three = found(bytes(file.data), file)
        assert (one.offset, two.offset, three.offset) == tuple(file.begins)
        assert (two.kind, two.size) == ("length_crc", file.sizes[1])
        inside = [place for place in found(bytes(file.data)) if isinstance(place, Intact)]
        assert [place.size for place in inside] == [21, 19, 19, 20]


@pytest.mark.parametrize("begin", [0, 32], ids=["both headers lost", "one header lost"])
def test_zeros_before_a_record_inside_a_payload(begin: int) -> None:
    """The inner record has the size of the lost record before it. But it stands where record 1 is."""
    file = DamagedFile([bytes([1]) * 64, bytes([2]) * 87 + framed([bytes([3]) * 64]) + bytes([4]) * 9])
    file.zero(begin, 96 - begin)
    one, two = found(bytes(file.data), file)
    assert (one.offset, one.size, one.kind) == (0, 80, "payload_crc" if begin else "length_crc")
    assert two == Gap(1, 80, 192, "length_crc", "the checksum of its length is wrong")


@pytest.mark.parametrize(("inserted", "removed"), [(300, 0), (0, 64)], ids=["inserted", "removed"])
def test_what_explains_all_by_one_damage_is_taken(inserted: int, removed: int) -> None:
    """The inner records have the sizes of the next records. But those stand where they are, counted from the end."""
    inner = b"1234567" + framed([bytes([n]) * 64 for n in range(3)])
    file = DamagedFile([inner, *(bytes([n]) * 64 for n in range(3, 7))])
    file.insert(180, b"\1" * inserted)
    file.remove(180, removed)
    shift = inserted - removed
    damage, *others = found(bytes(file.data), file)
    what = (
        f"the checksum of its 247 bytes of payload is wrong, and the next record begins {263 + shift} bytes on, not 263"
    )
    assert damage == Gap(0, 0, 263 + shift, "payload_crc", what)
    assert others == [Intact(n, 263 + 80 * (n - 1) + shift, 80) for n in range(1, 5)]


def test_zeros_and_noise() -> None:
    for data in (bytes(3_000_000), np.random.default_rng(0).bytes(3_000_000)):
        (one,) = found(data)
        assert (one.kind, one.offset, one.size) == ("length_crc", 0, len(data))


def test_hostile_lengths_end_soon_and_take_no_memory() -> None:
    """Headers on headers, each of which promises nearly all of the file."""
    size = 100_000
    data = b"".join(record_header(size - at - FRAME_BYTES - 13) for at in range(0, size - 1200, 12)) + bytes(1200)
    with peak_memory() as peak:
        assert not [one for one in found(struct.pack("<Q", 2**63) + data) if isinstance(one, Intact)]
        assert peak() < 50 << 20
