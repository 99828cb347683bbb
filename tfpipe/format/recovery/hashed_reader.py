"""A reader that reads a file once from front to back, hashes it on the way, and never has all of it in memory."""

import hashlib
import io
import os
from typing import BinaryIO, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format.tfrecord import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    compute_crc,
    decode_header,
    mask_crc,
    read_fully,
)

BUFFER_BYTES = 1 << 20
"""The size of the buffer. Bytes that were just read are still in the processor's cache when they are hashed."""

Bytes = NDArray[np.uint8]


class HashedReader:
    """A file whose bytes are checked and hashed in one pass. It should be unbuffered: this class has a buffer."""

    def __init__(self, file: BinaryIO, hashed: bool = False) -> None:
        self.size = file.seek(0, os.SEEK_END)
        self._file, self._digest = file, hashlib.sha256() if hashed else None
        self._raw = memoryview(bytearray(BUFFER_BYTES))
        self._buffer = np.frombuffer(self._raw, np.uint8)
        self._start = self._stop = 0  # the file offsets between which the buffer holds bytes
        self._at = self.size  # the position of the file object
        self._read_to = 0  # where `read` goes on

    @property
    def done(self) -> int:
        """The offset up to which bytes were read in order."""
        return self._stop

    def view(self, offset: int, size: int) -> Bytes:
        """Returns `size` bytes, at most `BUFFER_BYTES`, from `offset`. They are valid until the next call.

        A step forward costs one copy of the bytes that overlap. A step back costs another read.
        """
        if offset < self._start:
            return np.frombuffer(self.peek(offset, size), np.uint8)
        if offset + size > self._stop:
            self._advance(offset, size)
        return self._buffer[offset - self._start : offset - self._start + size]

    def peek(self, offset: int, size: int) -> bytes:
        """Returns bytes from any offset, fewer at the end of the file. The buffer stays as it is."""
        self._file.seek(offset)
        data = read_fully(self._file, size)
        self._at = offset + len(data)
        return data

    def record_at(self, at: int) -> int:
        """Returns the size of the intact record that begins at `at`, framing included; 0 if none begins there."""
        left = self.size - at - FRAME_BYTES
        if left < 0:
            return 0
        length = decode_header(self.view(at, HEADER_BYTES).tobytes())
        if length is None or length > left:
            return 0
        if length <= BUFFER_BYTES - FRAME_BYTES:
            frame = self.view(at, length + FRAME_BYTES)
            crc = google_crc32c.value(frame[HEADER_BYTES:-FOOTER_BYTES])
            footer = frame[-FOOTER_BYTES:]
        else:
            crc = compute_crc(self.view, at + HEADER_BYTES, length)
            footer = self.view(at + HEADER_BYTES + length, FOOTER_BYTES)
        return length + FRAME_BYTES if mask_crc(crc) == int.from_bytes(footer.tobytes(), "little") else 0

    def payload(self, at: int, size: int) -> bytes:
        """Returns the payload of a record that `record_at` found. Only this call takes memory for it."""
        begin, length = at + HEADER_BYTES, size - FRAME_BYTES
        return self.view(begin, length).tobytes() if length <= BUFFER_BYTES else self.peek(begin, length)

    def sha256(self) -> str:
        """Reads the rest of the file and returns the SHA-256 of the whole file."""
        assert self._digest is not None
        while self._stop < self.size:
            self._advance(self._stop, 1)
        return self._digest.hexdigest()

    def read(self, size: int = BUFFER_BYTES) -> bytes:
        """Reads on after the last bytes of this method, at most `BUFFER_BYTES`. Do not mix it with `view`."""
        data = self.view(self._read_to, min(size, self.size - self._read_to, BUFFER_BYTES)).tobytes()
        self._read_to += len(data)
        return data

    def _advance(self, offset: int, size: int) -> None:
        """Moves the buffer forward until it holds `size` bytes from `offset`, reading everything in between."""
        while offset > self._stop:
            self._start = self._stop
            self._fill(0)
        kept = self._stop - offset
        if kept:
            begin = offset - self._start
            self._raw[:kept] = self._raw[begin : begin + kept]
        self._start = offset
        while self._stop < offset + size:
            self._fill(self._stop - offset)

    def _fill(self, kept: int) -> None:
        if self._at != self._stop:
            self._file.seek(self._stop)
        # Every local file has `readinto`, but the type BinaryIO does not declare it.
        count = cast(io.RawIOBase, self._file).readinto(self._raw[kept:]) if self._stop < self.size else 0
        if not count:
            raise FormatError(
                f"The file had {self.size} bytes when it was opened and now ends at byte {self._stop}: it changed "
                "while it was read."
            )
        if self._digest is not None:
            self._digest.update(self._raw[kept : kept + count])
        self._stop += count
        self._at = self._stop
