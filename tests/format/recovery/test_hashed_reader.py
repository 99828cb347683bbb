"""`tfpipe.format.recovery.hashed_reader`: views, checksums and the hash of one pass."""

import hashlib
import io
import random

import pytest

from tfpipe.errors import FormatError
from tfpipe.format.recovery.hashed_reader import BUFFER_BYTES, HashedReader
from tfpipe.format.tfrecord import FRAME_BYTES, record_footer, record_header


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
    record = record_header(size) + payload + record_footer(payload)
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
    file = reader.as_file()
    assert b"".join(iter(lambda: file.read(1000), b"")) == data
    assert reader.sha256() == hashlib.sha256(data).hexdigest()


def test_a_file_that_shrinks() -> None:
    file = io.BytesIO(bytes(100))
    reader = HashedReader(file)
    file.truncate(50)
    message = r"The file had 100 bytes when it was opened and now ends at byte 50: it changed while it was read\."
    with pytest.raises(FormatError, match=message):
        reader.view(0, 100)
