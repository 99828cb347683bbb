"""TFRecord files compressed as a whole. They are unpacked piece by piece: a few bytes can become gigabytes."""

import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from tfpipe.errors import FormatError
from tfpipe.format.manifest import Compression
from tfpipe.format.tfrecord import FOOTER_BYTES, HEADER_BYTES, decode_header, record_footer

MAX_RECORD_BYTES = 2**26
"""The largest payload that is read. Nobody knows how much is left of a compressed file, so a length cannot be checked
against it, and a few KB can unpack to a payload of any size."""

_CHUNK_BYTES = 1 << 20
_WINDOW_BITS = {"GZIP": 16 + zlib.MAX_WBITS, "ZLIB": zlib.MAX_WBITS}
_DEFLATE = 8


def detect_compression(head: bytes) -> Compression:
    """Returns how a file is compressed, from its first 12 bytes or from all bytes of a shorter file."""
    if len(head) >= HEADER_BYTES and decode_header(head[:HEADER_BYTES]) is not None:
        return ""  # a record, whose checksum proves more than the two bytes below
    if head[:3] == bytes((0x1F, 0x8B, _DEFLATE)):  # RFC 1952
        return "GZIP"
    if len(head) >= 2 and head[0] & 15 == _DEFLATE and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:
        return "ZLIB"  # RFC 1950
    return ""


def scan_compressed(file: BinaryIO, compression: Compression) -> Iterator[bytes]:
    """Yields the payload of every record of a compressed file."""
    unpacked = _Unpacked(file, compression)
    number = offset = 0
    while True:
        name = f"Record {number} at byte {offset} of the unpacked data"
        try:
            header = unpacked.read(HEADER_BYTES)
            if not header:
                return
            payload, footer = _rest_of_record(unpacked, header, name)
        except zlib.error as error:
            raise FormatError(f"{name} cannot be unpacked: the {compression} data is damaged, {error}.") from None
        except EOFError:
            raise FormatError(f"{name} cannot be unpacked: the {compression} data ends too early.") from None
        if footer != record_footer(payload):
            raise FormatError(f"{name} is damaged: the checksum of its {len(payload)} bytes of payload is wrong.")
        yield payload
        offset += HEADER_BYTES + len(payload) + FOOTER_BYTES
        number += 1


def _rest_of_record(unpacked: "_Unpacked", header: bytes, name: str) -> tuple[bytes, bytes]:
    length = decode_header(header) if len(header) == HEADER_BYTES else 0
    if length is None:
        raise FormatError(f"{name} is damaged: the checksum of its length is wrong.")
    if length > MAX_RECORD_BYTES:
        raise FormatError(f"{name} must have at most {MAX_RECORD_BYTES:,} bytes of payload, got {length:,}.")
    payload = unpacked.read(length)
    footer = unpacked.read(FOOTER_BYTES)
    if len(header) < HEADER_BYTES or len(payload) < length or len(footer) < FOOTER_BYTES:
        raise FormatError(f"{name} is cut off.")
    return payload, footer


class _Unpacked:
    """The unpacked bytes of a file, read piece by piece. Several gzip files in a row count as one, as in TensorFlow."""

    def __init__(self, file: BinaryIO, compression: Compression) -> None:
        self._file, self._bits = file, _WINDOW_BITS[compression]
        self._inflate = zlib.decompressobj(self._bits)
        self._packed = b""
        self._buffer, self._at = b"", 0

    def read(self, size: int) -> bytes:
        """Reads `size` bytes, fewer at the end. Raises `zlib.error` or `EOFError` if the data cannot be unpacked."""
        data = io.BytesIO()  # `getvalue` copies nothing; joining pieces would take the memory twice
        while (missing := size - data.tell()) and (self._at < len(self._buffer) or self._fill()):
            data.write(self._buffer[self._at : self._at + missing])
            self._at = min(self._at + missing, len(self._buffer))
        return data.getvalue()

    def _fill(self) -> bool:
        """Unpacks the next piece into the buffer. Returns False at the end."""
        self._buffer, self._at = b"", 0
        while not self._buffer:
            self._packed = self._packed or self._file.read(_CHUNK_BYTES)
            if self._inflate.eof and self._packed:  # another gzip file follows
                self._inflate = zlib.decompressobj(self._bits)
            elif self._inflate.eof:
                return False
            elif not self._packed:
                raise EOFError
            self._buffer = self._inflate.decompress(self._packed, _CHUNK_BYTES)
            self._packed = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
        return True
