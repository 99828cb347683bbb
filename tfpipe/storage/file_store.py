"""The interface of every store of files by URL."""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import IO, Any, BinaryIO

from tfpipe.errors import DataError

_READ_AHEAD_BYTES = 8 * 2**20  # a request takes as long as transferring some megabytes


class _RangedObject(io.RawIOBase):
    """An object opened as a file, with one ranged request for each read."""

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


class FileStore:
    """A store of files by URL. Its methods raise an `OSError` for a missing file, a `DataError` if the store fails."""

    def check(self, url: str) -> None:
        """Checks, with few retries, that the bucket can be reached. Other stores show it at their first use."""

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns `size` bytes of the file from `offset`, by default all; fewer only at the end of the file."""
        with self.open(url) as file:
            file.seek(offset)
            return file.read() if size is None else file.read(size)

    def write(self, url: str, data: bytes) -> None:
        """Writes a small file."""
        with self.create(url) as file:
            file.write(data)

    def write_new(self, url: str, data: bytes) -> bool:
        """Writes a small file unless it exists, and returns whether it did. Two processes at once may both write."""
        if self.size(url) >= 0:
            return False
        self.write(url, data)
        return True

    def get_replaceable(self, url: str) -> Any:
        """Returns the version of a file, for `replace`; None if there is no file."""
        raise DataError(
            f"{url} would be written only if no other process has changed it, which this store does not promise. Copy "
            "the dataset to a local disk or to gs://, s3:// or az:// first."
        )

    def replace(self, url: str, data: bytes, expected: Any) -> bool:
        """Writes a file if `get_replaceable` still gives `expected`; returns whether it did."""
        raise NotImplementedError

    def open(self, url: str) -> BinaryIO:
        """Opens a file for reading at any offset."""
        raise NotImplementedError

    def create(self, url: str) -> AbstractContextManager[IO[bytes]]:
        """Opens a new file that appears when the block ends without an error, and otherwise never."""
        raise NotImplementedError

    def make_folder(self, url: str) -> None:
        """Makes a folder, in a store that has real folders."""

    def size(self, url: str) -> int:
        """Returns the bytes of a file, or -1 if there is none."""
        raise NotImplementedError

    def version(self, url: str) -> str | None:
        """Returns a text that changes with the content of a file; None if there is none."""
        size = self.size(url)
        return None if size < 0 else str(size)

    def list(self, folder: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Yields URL and size of all files below a folder, or of its direct entries (a folder as `name/` with -1)."""
        raise NotImplementedError

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name within its bucket."""
        raise NotImplementedError

    def delete(self, urls: Iterable[str]) -> None:
        """Removes files; one that does not exist is ignored."""
        raise NotImplementedError


def split_url(url: str) -> tuple[str, str]:
    """Splits `gs://bucket/a/b` into `bucket` and `a/b`."""
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def get_bucket_url(url: str) -> str:
    """Returns `gs://bucket` for `gs://bucket/a/b`."""
    return url[: url.index("://") + 3] + split_url(url)[0]


def open_seekable(read: Callable[[int, int], bytes], num_bytes: int) -> BinaryIO:
    """Opens an object for reading at any offset; each request reads some megabytes ahead."""
    return io.BufferedReader(_RangedObject(read, num_bytes), _READ_AHEAD_BYTES)
