"""The requests that the job makes to an object store, and the sentences for a store that fails.

The clients of `gcs` and `s3` are written by hand over Google's and Amazon's own, and not taken from fsspec or Beam:

- An image costs one request. A client is made once in each process and keeps its connections.
- A failure becomes one sentence that says which bucket failed, why, and what to do.
- An object that is cut off by an error never appears.

Retries and back-off are those of Google's and Amazon's clients; `RetryConfig` says how long they may take.
"""

import errno
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, BinaryIO, Protocol

from tfpipe.errors import DataError

PART_BYTES = 16 * 2**20
"""Bytes that a writer collects before it sends them: a multiple of 256 KiB (Google's rule), above 5 MiB (S3's)."""

_READ_AHEAD_BYTES = 8 * 2**20  # a request costs as much as some megabytes
_NOT_FOUND, _DENIED = 404, (401, 403)


@dataclass(frozen=True)
class RetryConfig:
    """The time that a store may fail before the job does.

    Google's client counts seconds, Amazon's counts attempts.

    Attributes:
        first_s: The seconds for the first request of a job. A wrong name or a missing network should show soon.
        retry_s: The seconds for any other request, with all its repetitions.
        first_attempts: The attempts at the first request of a job.
        attempts: The attempts at any other request. The pauses between ten attempts take 100 s at most.
        connect_s: The seconds for one attempt to connect.
        read_s: The seconds for which an open connection may be silent.
        first_pause_s: The seconds before the first repetition; each pause is twice as long as the one before. Amazon's
            client chooses its own pauses, except for a body that broke off.
    """

    first_s: float = 15.0
    retry_s: float = 120.0
    first_attempts: int = 3
    attempts: int = 10
    connect_s: float = 5.0
    read_s: float = 30.0
    first_pause_s: float = 0.25


RETRIES = RetryConfig()


class Store(Protocol):
    """A store of objects by URL.

    All methods raise an `OSError` for an object that is missing or may not be read, and a `DataError` for a store
    that fails.
    """

    def check(self, url: str) -> None:
        """Checks, with few retries, that the bucket can be reached."""

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns `size` bytes of the object from `offset`, by default all; fewer only at the end of the object."""

    def write(self, url: str, data: bytes) -> None:
        """Writes a small object."""

    def open(self, url: str) -> BinaryIO:
        """Opens an object for reading at any place."""

    def create(self, url: str) -> AbstractContextManager[IO[bytes]]:
        """Opens a new object that appears when the block ends well, and otherwise never."""

    def size(self, url: str) -> int:
        """Returns the bytes of an object, or -1 if there is none."""

    def list(self, prefix: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Yields URL and bytes of all objects whose URL begins with `prefix`.

        If not recursive, a folder comes as its URL with a slash at the end, and -1.
        """

    def rename(self, source: str, target: str) -> None:
        """Gives an object another name within the store, by a copy and a removal."""

    def delete(self, urls: Iterable[str]) -> None:
        """Removes objects; one that does not exist is ignored."""


def split_url(url: str) -> tuple[str, str]:
    """Splits `gs://bucket/a/b` into `bucket` and `a/b`."""
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def get_bucket_url(url: str) -> str:
    """Returns `gs://bucket` for `gs://bucket/a/b`."""
    return url[: url.index("://") + 3] + split_url(url)[0]


def make_error(url: str, status: int | None, reason: str) -> Exception:
    """Returns the error to raise for a request about one object that failed for good.

    Args:
        url: The object.
        status: The HTTP status; None if there is none.
        reason: The message of the store or of its client.
    """
    if status == _NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if status in _DENIED:
        return PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}, the store says: {shorten(reason)}", url)
    return DataError(
        f"{get_bucket_url(url)} failed again and again, at last with: {shorten(reason)}. Finished shards are kept; run "
        "the same command again to go on."
    )


def make_first_error(url: str, status: int | None, reason: str) -> DataError:
    """Returns the error to raise for the first request of a job, which is about the bucket."""
    bucket = get_bucket_url(url)
    if status == _NOT_FOUND:
        return DataError(f"There is no bucket {bucket}. Create it, or check the name.")
    if status in _DENIED:
        return DataError(f"{bucket} must let these credentials list and read it, but says: {shorten(reason)}.")
    return DataError(f"{bucket} cannot be reached: {shorten(reason)}. Check the network and the store's endpoint.")


def shorten(reason: str) -> str:
    """Returns the first line of a library's message, at most 300 characters of it, without its full stop."""
    lines = reason.strip().splitlines() or ["no reason given"]
    return lines[0][:300].rstrip(". ")


def ignore_warning(*_: object) -> None:
    """Does nothing, in place of Beam's warning with a traceback for every repetition."""


def open_seekable(store: Store, url: str) -> BinaryIO:
    """Opens an object for reading at any place; each request reads some megabytes ahead.

    Raises:
        FileNotFoundError: There is no such object.
    """
    size = store.size(url)
    if size < 0:
        raise make_error(url, _NOT_FOUND, "")
    return io.BufferedReader(_RangedObject(store, url, size), _READ_AHEAD_BYTES)


class _RangedObject(io.RawIOBase):
    """An object that is read by one ranged request for each read."""

    def __init__(self, store: Store, url: str, size: int) -> None:
        super().__init__()
        self._store, self._url, self._size, self._position = store, url, size, 0

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
        data = self._store.read(self._url, self._position, num_bytes)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
