"""`tfpipe.format.recovery.resync`: headers in bytes of any kind."""

import io
import random

import pytest

from tfpipe.format.recovery.hashed_reader import BUFFER_BYTES, HashedReader
from tfpipe.format.recovery.resync import find_headers, iterate_headers
from tfpipe.format.tfrecord import HEADER_BYTES, decode_header, record_header


def slowly(data: bytes, max_length: int) -> list[tuple[int, int]]:
    """The same, place by place."""
    found = [(at, decode_header(data[at : at + HEADER_BYTES])) for at in range(len(data) - HEADER_BYTES + 1)]
    return [(at, length) for at, length in found if length is not None and length <= max_length]


@pytest.mark.parametrize("background", ["random", "zeros", "small"])
def test_every_header_is_found(rng: random.Random, background: str) -> None:
    size = 3000
    kinds = {"random": rng.randbytes(size), "zeros": bytes(size), "small": bytes(rng.randrange(2) for _ in range(size))}
    data = bytearray(kinds[background])
    for at, length in ((0, 5), (500, 0), (1001, 2**33), (1500, 2**62), (size - HEADER_BYTES, 77)):
        data[at : at + HEADER_BYTES] = record_header(length)
    expected = [(0, 5), (500, 0), (1001, 2**33), (size - HEADER_BYTES, 77)]
    assert find_headers(bytes(data), 2**40) == slowly(bytes(data), 2**40)
    assert set(expected) <= set(find_headers(bytes(data), 2**40))
    assert (1001, 2**33) not in find_headers(bytes(data), 2**32)


@pytest.mark.parametrize("size", range(HEADER_BYTES + 1))
def test_too_few_bytes(size: int) -> None:
    assert find_headers(record_header(3)[:size], 10) == ([(0, 3)] if size >= HEADER_BYTES else [])


def test_headers_on_the_edge_of_a_piece() -> None:
    places = [0, (1 << 15) - 5, 3 * (1 << 15) - 1, BUFFER_BYTES - 3, 2 * BUFFER_BYTES + 7]
    data = bytearray(3 * BUFFER_BYTES)
    for at in places:
        data[at : at + HEADER_BYTES] = record_header(9)
    reader = HashedReader(io.BytesIO(bytes(data)))
    assert [at for at, _ in iterate_headers(reader, 0, len(data))] == places
    assert [at for at, _ in iterate_headers(reader, 1, places[-1])] == places[1:-1]


def test_what_does_not_fit_in_the_file_is_none() -> None:
    data = record_header(10) + bytes(14)
    assert list(iterate_headers(HashedReader(io.BytesIO(data)), 0, len(data))) == [(0, 10)]
    assert list(iterate_headers(HashedReader(io.BytesIO(data[:-1])), 0, len(data))) == []
