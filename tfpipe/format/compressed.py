"""Reads compressed TFRecord files in chunks, because a few compressed bytes can become gigabytes.

A gzip file may be several gzip members in a row. With one member per record, any record can be unpacked on its own.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tfpipe.errors import FormatError
from tfpipe.format.manifest import Compression
from tfpipe.format.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_payload, decode_header, read_length

if TYPE_CHECKING:
    from _typeshed import SupportsRead

MAX_RECORD_BYTES = 2**26
"""The largest payload that is read. Nobody knows how much is left of a compressed file, so a length cannot be checked
against it, and a few KB can unpack to a payload of any size."""

MAX_MEMBER_BYTES = 2**27
"""The largest gzip member that is read, packed: even a payload that does not shrink has a smaller one."""

_CHUNK_BYTES = 1 << 20
_PACKED_BYTES = 1 << 16  # bytes of one read; after each gzip member `zlib` copies the rest of them
_WINDOW_BITS = {"GZIP": 16 + zlib.MAX_WBITS, "ZLIB": zlib.MAX_WBITS}
_DEFLATE = 8


def detect_compression(head: bytes) -> Compression:
    """Returns how a file is compressed, from its first 12 bytes or from all bytes of a shorter file."""
    if len(head) >= HEADER_BYTES and decode_header(head[:HEADER_BYTES]) is not None:
        return ""  # a TFRecord header, whose checksum proves more than the magic bytes below
    if head[:3] == bytes((0x1F, 0x8B, _DEFLATE)):  # RFC 1952
        return "GZIP"
    if len(head) >= 2 and head[0] & 15 == _DEFLATE and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:
        return "ZLIB"  # RFC 1950
    return ""


def scan_compressed(file: SupportsRead[bytes], compression: Compression) -> Iterator[bytes]:
    """Yields the payload of every record of a compressed file."""
    return _scan(_Unpacked(file, compression), compression)


def scan_members(file: SupportsRead[bytes], compression: Compression = "GZIP") -> Iterator[tuple[bytes, int | None]]:
    """Yields the payload of every record of a compressed file, and the size of its gzip member in the file.

    The size is None unless the record has one gzip member to itself.
    """
    unpacked = _Unpacked(file, compression)
    begin: int | None = 0
    for number, payload in enumerate(_scan(unpacked, compression)):
        members = unpacked.members
        with _explaining(f"The end of record {number}", compression):
            is_alone = compression == "GZIP" and unpacked.ends_member()
        yield payload, unpacked.done - begin if begin is not None and is_alone and members == 1 else None
        begin, unpacked.members = unpacked.done if is_alone else None, 0


def unpack_member(packed: bytes | memoryview) -> bytes:
    """Returns the payload of the record in a gzip member, which must hold this record and nothing else."""
    payload, size = next(scan_members(io.BytesIO(packed)), (b"", None))
    if size != len(packed):
        raise FormatError("It must be a gzip member that holds this record and nothing else, and it is not.")
    return payload


def pack_member(frame: bytes, level: int) -> bytes:
    """Returns a gzip member that holds a record, framing included. Equal records give equal members."""
    deflate = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS["GZIP"])
    return deflate.compress(frame) + deflate.flush()


def _scan(unpacked: _Unpacked, compression: Compression) -> Iterator[bytes]:
    number = offset = 0
    while True:
        name = f"Record {number} at byte {offset} of the unpacked data"
        with _explaining(name, compression):
            header = unpacked.read(HEADER_BYTES)
            if not header:
                return
            length = read_length(header, name) if len(header) == HEADER_BYTES else 0
            if length > MAX_RECORD_BYTES:
                raise FormatError(f"{name} must have at most {MAX_RECORD_BYTES:,} bytes of payload, got {length:,}.")
            payload, footer = unpacked.read(length), unpacked.read(FOOTER_BYTES)
            if len(header) < HEADER_BYTES or len(payload) < length or len(footer) < FOOTER_BYTES:
                raise FormatError(f"{name} is cut off.")
        check_payload(payload, footer, name)
        yield payload
        offset += HEADER_BYTES + len(payload) + FOOTER_BYTES
        number += 1


@contextmanager
def _explaining(name: str, compression: Compression) -> Iterator[None]:
    """Turns an error of unpacking into a `FormatError` that says why the data cannot be unpacked."""
    try:
        yield
    except zlib.error as error:
        raise FormatError(f"{name} cannot be unpacked: the {compression} data is damaged, {error}.") from None
    except EOFError:
        raise FormatError(f"{name} cannot be unpacked: the {compression} data ends too early.") from None


class _Unpacked:
    """A compressed file, unpacked in chunks. Several gzip members in a row count as one, as in TensorFlow."""

    def __init__(self, file: SupportsRead[bytes], compression: Compression) -> None:
        self._file, self._bits = file, _WINDOW_BITS[compression]
        self._inflate = zlib.decompressobj(self._bits)
        self._packed = b""
        self._taken = 0  # compressed bytes read so far
        self._buffer, self._at = b"", 0
        self.members = 0  # begun since the caller last reset the count

    @property
    def done(self) -> int:
        """The number of compressed bytes that were unpacked so far."""
        return self._taken - len(self._packed)

    def read(self, size: int) -> bytes:
        """Reads `size` bytes, fewer at the end. Raises `zlib.error` or `EOFError` if the data cannot be unpacked."""
        data = io.BytesIO()  # `getvalue` copies nothing; joining pieces would take the memory twice
        while (missing := size - data.tell()) and (self._at < len(self._buffer) or self._fill()):
            data.write(self._buffer[self._at : self._at + missing])
            self._at = min(self._at + missing, len(self._buffer))
        return data.getvalue()

    def ends_member(self) -> bool:
        """Returns whether the current gzip member was read to its end."""
        while self._at == len(self._buffer) and not self._inflate.eof:
            self._unpack()
        return self._at == len(self._buffer)

    def _fill(self) -> bool:
        """Unpacks the next chunk into the buffer. Returns False at the end of the file."""
        self._buffer, self._at = b"", 0
        while not self._buffer:
            if self._inflate.eof or not self._taken:  # an empty file has no records, as in TensorFlow
                if not self._load():
                    return False
                self._inflate = zlib.decompressobj(self._bits)  # another gzip member follows
                self.members += 1
            self._unpack()
        return True

    def _unpack(self) -> None:
        """Unpacks the next chunk of the current member into the empty buffer."""
        if not self._load():
            raise EOFError
        self._buffer, self._at = self._inflate.decompress(self._packed, _CHUNK_BYTES), 0
        self._packed = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail

    def _load(self) -> bool:
        """Reads the next compressed bytes once the last are unpacked. Returns False at the end of the file."""
        if not self._packed:
            self._packed = self._file.read(_PACKED_BYTES)
            self._taken += len(self._packed)
        return bool(self._packed)
