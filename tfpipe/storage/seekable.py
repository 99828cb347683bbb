"""An object as a file that is read at any place."""

import io
import os
from collections.abc import Callable
from typing import BinaryIO

_READ_AHEAD_BYTES = 8 * 2**20  # a request costs as much as some megabytes


def open_seekable(read: Callable[[int, int], bytes], num_bytes: int) -> BinaryIO:
    """Opens an object for reading at any place; each request reads some megabytes ahead.

    Args:
        read: The function that reads a range, given by its first byte and its size.
        num_bytes: The size of the object.
    """
    return io.BufferedReader(_RangedObject(read, num_bytes), _READ_AHEAD_BYTES)


class _RangedObject(io.RawIOBase):
    """An object that is read by one ranged request for each read."""

    def __init__(self, read: Callable[[int, int], bytes], num_bytes: int) -> None:
        super().__init__()
        self._read, self._size, self._position = read, num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]  # BufferedReader passes no other
        num_bytes = min(len(buffer), self._size - self._position)
        if num_bytes <= 0:
            return 0
        data = self._read(self._position, num_bytes)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
