"""What the job asks of an object store, and the sentences for a store that does not do it.

One request for each image is the aim: a client is made once in each process and keeps its connections. Retries and
back-off are those of the client libraries; `Patience` says how long they may take.
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
"""What a writer holds in memory before it sends it; a multiple of 256 KiB, as Google asks, and above S3's 5 MiB."""

_READ_AHEAD_BYTES = 8 * 2**20  # a request costs as much as some megabytes
_NOT_FOUND, _DENIED = 404, (401, 403)


@dataclass(frozen=True)
class Patience:
    """How long a store may fail before the job does.

    Attributes:
        first_s: The first request of a job: a wrong name or a missing network is to be said soon.
        retry_s: Any other request, with all its repetitions, where the client counts seconds.
        first_attempts: Like `first_s`, where it counts attempts.
        attempts: Like `retry_s`, where it counts attempts; ten wait 100 s in all at most, besides their own time.
        connect_s: One attempt to connect.
        read_s: Silence of a connection that stands.
    """

    first_s: float = 15.0
    retry_s: float = 120.0
    first_attempts: int = 3
    attempts: int = 10
    connect_s: float = 5.0
    read_s: float = 30.0


PATIENCE = Patience()


class Store(Protocol):
    """Objects by URL. What is missing or may not be read is an `OSError`, a store that fails is a `DataError`."""

    def check(self, url: str) -> None:
        """Refuses a bucket that cannot be reached; asks once, with little patience."""

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """The object from `offset`, `size` bytes or to its end; fewer only where it ends."""

    def write(self, url: str, data: bytes) -> None:
        """Writes a small object."""

    def open(self, url: str) -> BinaryIO:
        """An object to be read here and there."""

    def create(self, url: str) -> AbstractContextManager[IO[bytes]]:
        """A new object that appears when the block ends well, and not at all where it does not."""

    def size(self, url: str) -> int:
        """Bytes of an object, or -1 where there is none."""

    def list(self, prefix: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """URL and bytes of all objects whose URL begins so; folders, not recursive, have a slash at the end and -1."""

    def rename(self, source: str, target: str) -> None:
        """Gives an object another name within the store: a copy, then a removal."""

    def delete(self, urls: Iterable[str]) -> None:
        """Removes objects; one that is not there is no error."""


def split_url(url: str) -> tuple[str, str]:
    """`gs://bucket/a/b` -> `bucket`, `a/b`."""
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def bucket_url(url: str) -> str:
    """`gs://bucket/a/b` -> `gs://bucket`."""
    return url[: url.index("://") + 3] + split_url(url)[0]


def failure(url: str, status: int | None, reason: str) -> Exception:
    """What to raise for a request about one object that failed for good.

    Args:
        url: The object.
        status: HTTP status, where one came.
        reason: What the store or its client said.
    """
    if status == _NOT_FOUND:
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    if status in _DENIED:
        return PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)}, the store says: {plain(reason)}", url)
    return DataError(
        f"{bucket_url(url)} failed again and again, at last with: {plain(reason)}. Finished shards are kept; run the "
        "same command again to go on."
    )


def first_failure(url: str, status: int | None, reason: str) -> DataError:
    """What to raise for a first request that failed, which is about the bucket."""
    bucket = bucket_url(url)
    if status == _NOT_FOUND:
        return DataError(f"There is no bucket {bucket}. Create it, or check the name.")
    if status in _DENIED:
        return DataError(f"{bucket} must let these credentials list and read it, but says: {plain(reason)}.")
    return DataError(f"{bucket} cannot be reached: {plain(reason)}. Check the network and the store's endpoint.")


def plain(reason: str) -> str:
    """The first line of a library's message, of a length to read, without its full stop."""
    lines = reason.strip().splitlines() or ["no reason given"]
    return lines[0][:300].rstrip(". ")


def open_seekable(store: Store, url: str) -> BinaryIO:
    """An object to be read here and there; reads ahead some megabytes with each request.

    Raises:
        FileNotFoundError: There is none.
    """
    size = store.size(url)
    if size < 0:
        raise failure(url, _NOT_FOUND, "")
    return io.BufferedReader(_Ranges(store, url, size), _READ_AHEAD_BYTES)


class _Ranges(io.RawIOBase):
    """A ranged request for each read."""

    def __init__(self, store: Store, url: str, size: int) -> None:
        super().__init__()
        self._store, self._url, self._size, self._at = store, url, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]  # all that BufferedReader hands over
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        data = self._store.read(self._url, self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
