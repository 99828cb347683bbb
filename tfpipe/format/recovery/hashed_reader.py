"""A file looked at through a window: read once from front to back, hashed on the way, and never held whole."""

import hashlib
import io
import os
from typing import BinaryIO, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, decode_header, mask_crc

WINDOW_BYTES = 1 << 20
"""Held at once. What was just read is then still in the processor's cache when it is hashed and checked."""

Bytes = NDArray[np.uint8]


class Window:
    """The bytes of a file, checked and hashed in one pass.

    Args:
      file: Open for reading, seekable. It should be unbuffered: there is a buffer here.
      hashed: Compute the SHA-256 of all of it.

    Attributes:
      size: Of the file, in bytes.
    """

    def __init__(self, file: BinaryIO, hashed: bool = False) -> None:
        self.size = file.seek(0, os.SEEK_END)
        self._file, self._digest = file, hashlib.sha256() if hashed else None
        self._raw = memoryview(bytearray(WINDOW_BYTES))
        self._buffer = np.frombuffer(self._raw, np.uint8)
        self._start = self._stop = 0  # of what the buffer holds
        self._at = self.size  # where the file stands

    def view(self, offset: int, size: int) -> Bytes:
        """`size` bytes, at most `WINDOW_BYTES`, from `offset`; good until the next call.

        Going on costs one copy of what overlaps; going back costs a read of its own.

        Raises:
          FormatError: The file has become shorter since it was opened.
        """
        if offset < self._start:
            return np.frombuffer(self.peek(offset, size), np.uint8)
        if offset + size > self._stop:
            self._advance(offset, size)
        return self._buffer[offset - self._start : offset - self._start + size]

    def peek(self, offset: int, size: int) -> bytes:
        """Bytes from anywhere, fewer at the end of the file; what the window holds stays."""
        self._file.seek(offset)
        data = self._file.read(size)
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        self._at = offset + len(data)
        return data

    def crc(self, offset: int, size: int, crc: int = 0) -> int:
        """CRC32C, not masked, of any number of bytes; `crc` is that of what comes before them."""
        stop = offset + size
        while offset < stop:
            piece = min(WINDOW_BYTES, stop - offset)
            crc = google_crc32c.extend(crc, self.view(offset, piece))
            offset += piece
        return crc

    def record_at(self, at: int) -> int:
        """Bytes of the intact record that begins at `at`, framing included; 0 where there is none.

        Its payload can be had from `payload` then.
        """
        left = self.size - at - FRAME_BYTES
        if left < 0:
            return 0
        length = decode_header(self.view(at, HEADER_BYTES).tobytes())
        if length is None or length > left:
            return 0
        if length <= WINDOW_BYTES - FRAME_BYTES:
            frame = self.view(at, length + FRAME_BYTES)
            crc = google_crc32c.value(frame[HEADER_BYTES:-FOOTER_BYTES])
            footer = frame[-FOOTER_BYTES:]
        else:
            crc = self.crc(at + HEADER_BYTES, length)
            footer = self.view(at + HEADER_BYTES + length, FOOTER_BYTES)
        return length + FRAME_BYTES if mask_crc(crc) == int.from_bytes(footer.tobytes(), "little") else 0

    def payload(self, at: int, size: int) -> bytes:
        """The payload of a record that `record_at` found; it takes memory only now."""
        begin, length = at + HEADER_BYTES, size - FRAME_BYTES
        return self.view(begin, length).tobytes() if length <= WINDOW_BYTES else self.peek(begin, length)

    def sha256(self) -> str:
        """Of the whole file, whose rest is read for it."""
        assert self._digest is not None
        while self._stop < self.size:
            self._advance(self._stop, 1)
        return self._digest.hexdigest()

    def reader(self) -> BinaryIO:
        """The file from its beginning, for who reads it on; hashed like what is viewed. Not to be mixed with views."""
        return cast(BinaryIO, _Reader(self))

    def _advance(self, offset: int, size: int) -> None:
        """Moves the window on to hold what is asked for, past everything between."""
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
        # Every local file has it; the type of a binary file does not say so.
        count = cast(io.RawIOBase, self._file).readinto(self._raw[kept:]) if self._stop < self.size else 0
        if not count:
            raise FormatError(f"The file has {self.size} bytes and ended at byte {self._stop}: it changed meanwhile.")
        if self._digest is not None:
            self._digest.update(self._raw[kept : kept + count])
        self._stop += count
        self._at = self._stop


class _Reader(io.RawIOBase):
    """A window as a file, read in order."""

    def __init__(self, window: Window) -> None:
        self._window, self._offset = window, 0

    def read(self, size: int = -1) -> bytes:
        left = self._window.size - self._offset
        count = min(left if size < 0 else size, left, WINDOW_BYTES)
        data = self._window.view(self._offset, count).tobytes()
        self._offset += count
        return data
