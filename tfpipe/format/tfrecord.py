"""TFRecord framing: 8 bytes of length, little endian, their masked CRC32C, the payload, its masked CRC32C."""

import os
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, BinaryIO, TypeAlias

import google_crc32c

from tfpipe.errors import FormatError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
"""The bytes that framing adds to a payload."""

MAX_PAYLOAD_BYTES = 2**31
"""The largest payload: a protocol buffer cannot be larger."""

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""A function of an offset and a size that reads that many bytes there, and fewer only at the end of the file."""

_PIECE_BYTES = 1 << 20
_CHECKED_FIRST_BYTES = 16 << 20  # a larger payload is checked before memory is taken for it: see `_read_large`
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<QI")
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Returns the checksum of TFRecord files, a CRC32C that is masked because data may itself hold CRCs."""
    return mask_crc(google_crc32c.value(data))


def mask_crc(crc: int) -> int:
    """Returns the masked CRC32C, as TFRecord files store it: rotated, plus a constant."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def decode_header(header: bytes) -> int | None:
    """Returns the length in the 12 bytes of a header, or None if its checksum does not hold."""
    length, masked = _HEADER.unpack(header)
    return int(length) if mask_crc(google_crc32c.value(header[: _LENGTH.size])) == masked else None


@lru_cache(maxsize=4096)
def record_header(length: int) -> bytes:
    """Returns the 12 bytes before a payload of `length` bytes."""
    raw = _LENGTH.pack(length)
    return raw + _CRC.pack(masked_crc32c(raw))


def record_footer(data: bytes) -> bytes:
    """Returns the 4 bytes after the payload `data`."""
    return _CRC.pack(masked_crc32c(data))


def frame_record(payload: bytes) -> bytes:
    """Returns a record as it stands in a file: the header, the payload and the footer."""
    return b"".join((record_header(len(payload)), payload, record_footer(payload)))


def read_record(file: BinaryIO, offset: int, size: int) -> bytes:
    """Reads the payload of the record at an offset; `size` includes the framing, as in the index."""
    return read_record_at(_reader(file), file.seek(0, os.SEEK_END), offset, size)


def read_record_at(read_at: ReadAt, end: int, offset: int, size: int) -> bytes:
    """Reads one record as `read_record` does, from a file that ends at byte `end`, through `read_at`."""
    name = f"Record at byte {offset}"
    if not FRAME_BYTES <= size <= end - offset or offset < 0:  # checked before memory is taken for the record
        raise FormatError(
            f"{name} cannot have {size} bytes: the file ends at byte {end} and framing alone takes {FRAME_BYTES}."
        )
    large = size > _CHECKED_FIRST_BYTES
    frame = read_at(offset, HEADER_BYTES if large else size)
    if len(frame) != (HEADER_BYTES if large else size):
        raise FormatError(f"{name} must have {size} bytes, only {len(frame)} could be read.")
    length = read_length(frame[:HEADER_BYTES], name)
    if length != size - FRAME_BYTES:
        raise FormatError(
            f"{name} has {length} bytes, but the index says {size - FRAME_BYTES}; the index belongs to another file."
        )
    if large:
        return _read_large(read_at, offset + HEADER_BYTES, length, name)
    payload = frame[HEADER_BYTES:-FOOTER_BYTES]
    check_payload(payload, frame[-FOOTER_BYTES:], name)
    return payload


def unframe(frame: memoryview) -> bytes | None:
    """Returns the payload of a framed record in memory; None if the record is damaged."""
    if len(frame) < FRAME_BYTES:
        return None
    payload = bytes(frame[HEADER_BYTES:-FOOTER_BYTES])
    is_whole = frame[:HEADER_BYTES] == record_header(len(payload)) and frame[-FOOTER_BYTES:] == record_footer(payload)
    return payload if is_whole else None


def scan_records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yields offset and payload of every record from the file's position on. A false length takes no memory."""
    offset = file.tell()
    end = file.seek(0, os.SEEK_END)
    file.seek(offset)
    number = 0
    while offset < end:
        name = f"Record {number} at byte {offset}"
        header = read_fully(file, min(HEADER_BYTES, end - offset))
        if len(header) < HEADER_BYTES:
            raise FormatError(f"{name} is cut off: {len(header)} of {HEADER_BYTES} header bytes are there.")
        length = read_length(header, name)
        left = end - offset - FRAME_BYTES
        if length > left:
            raise FormatError(f"{name} is cut off: it has {length} bytes of payload, {max(left, 0)} are there.")
        if length > _CHECKED_FIRST_BYTES:
            payload = _read_large(_reader(file), offset + HEADER_BYTES, length, name)
            file.seek(FOOTER_BYTES, os.SEEK_CUR)
        else:
            payload = read_fully(file, length)
            check_payload(payload, read_fully(file, FOOTER_BYTES), name)
        yield offset, payload
        offset += length + FRAME_BYTES
        number += 1


def read_length(header: bytes, name: str) -> int:
    """Returns the length in the 12 bytes of a header; errors call the record `name`."""
    length = decode_header(header)
    if length is None:
        raise FormatError(f"{name} is damaged: the checksum of its length is wrong.")
    return length


def check_payload(payload: bytes, footer: bytes, name: str) -> None:
    """Checks a payload against the 4 bytes after it; errors call the record `name`."""
    if footer != record_footer(payload):
        raise FormatError(f"{name} is damaged: the checksum of its {len(payload)} bytes of payload is wrong.")


def compute_crc(read_at: Callable[[int, int], Any], begin: int, length: int) -> int:
    """Returns the unmasked CRC32C of any number of bytes, which are read in chunks."""
    crc = 0
    for offset in range(begin, begin + length, _PIECE_BYTES):
        crc = google_crc32c.extend(crc, read_at(offset, min(_PIECE_BYTES, begin + length - offset)))
    return crc


def _read_large(read_at: ReadAt, begin: int, length: int, name: str) -> bytes:
    """Reads a payload twice, first for its checksum: a sparse file can promise gigabytes that nobody ever wrote."""
    if length > MAX_PAYLOAD_BYTES:
        raise FormatError(f"{name} must have at most {MAX_PAYLOAD_BYTES:,} bytes of payload, got {length:,}.")
    crc = compute_crc(read_at, begin, length)
    if read_at(begin + length, FOOTER_BYTES) != _CRC.pack(mask_crc(crc)):
        raise FormatError(f"{name} is damaged: the checksum of its {length} bytes of payload is wrong.")
    payload = read_at(begin, length)
    check_payload(payload, _CRC.pack(mask_crc(crc)), name)
    return payload


def _reader(file: BinaryIO) -> ReadAt:
    def read_at(offset: int, size: int) -> bytes:
        file.seek(offset)
        return read_fully(file, size)

    return read_at


def read_fully(file: BinaryIO, size: int) -> bytes:
    """Reads `size` bytes, fewer at the end of the file. One `read` of an unbuffered file may return less."""
    data = file.read(size)
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data
