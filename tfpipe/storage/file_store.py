"""The interface of any place with files by URL."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import IO, BinaryIO, Protocol


class FileStore(Protocol):
    """A place with files by URL: `tfpipe.storage.store.Store`, the web, or a file system of Beam's.

    All methods raise an `OSError` for a file that is missing or may not be read, and a `DataError` for a store that
    fails.
    """

    def check(self, url: str) -> None:
        """Checks, with few retries, that the bucket can be reached."""

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Returns `size` bytes of the file from `offset`, by default all; fewer only at the end of the file."""

    def write(self, url: str, data: bytes) -> None:
        """Writes a small file."""

    def open(self, url: str) -> BinaryIO:
        """Opens a file for reading at any place."""

    def create(self, url: str) -> AbstractContextManager[IO[bytes]]:
        """Opens a new file that appears when the block ends well, and otherwise never."""

    def size(self, url: str) -> int:
        """Returns the bytes of a file, or -1 if there is none."""

    def list(self, folder: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Yields URL and bytes of all files in a folder, whose URL ends with a slash.

        If not recursive, a folder comes as its URL with a slash at the end, and -1.
        """

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name within its bucket."""

    def delete(self, urls: Iterable[str]) -> None:
        """Removes files; one that does not exist is ignored."""
