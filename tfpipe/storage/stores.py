"""The store of a URL, opened when it is first needed, and then kept for this process."""

import contextlib
import errno
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import IO, Any, BinaryIO

from tfpipe.errors import DataError, first_line
from tfpipe.storage import buckets
from tfpipe.storage.buckets import SCHEMES, StoreOptions
from tfpipe.storage.file_store import FileStore, open_seekable
from tfpipe.storage.hugging_face import SCHEME, HuggingFaceStore
from tfpipe.storage.store import Store
from tfpipe.system.extras import importing
from tfpipe.system.fork_lock import make_fork_lock

Opener = Callable[[str, str], FileStore]
"""A function of a scheme and a URL of it that opens their store."""


class TensorFlowStore(FileStore):
    """A `FileStore` by `tf.io.gfile`; `FileStore` describes the methods."""

    def __init__(self, url: str) -> None:
        with importing(f"Reading {url}", "TensorFlow", "tfpipe[tensorflow]"):
            import tensorflow
        scheme = url.partition("://")[0]
        if scheme not in tensorflow.io.gfile.get_registered_schemes():
            install = f"install {buckets.REQUIREMENT}, " if scheme in buckets.SCHEMES else ""
            raise DataError(
                f"TensorFlow cannot read {scheme}:// URLs, got {url}. Copy the dataset to a local disk or to gs://, "
                f"{install}or mount the bucket as a folder and name that."
            )
        self._tf: Any = tensorflow

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Implements `FileStore.read`."""
        with self._explain(url), self._tf.io.gfile.GFile(url, "rb") as file:
            file.seek(offset)
            data: bytes = file.read(-1 if size is None else size)
            return data

    def open(self, url: str) -> BinaryIO:
        """Implements `FileStore.open`."""
        with self._explain(url):
            size = self._tf.io.gfile.stat(url).length
        return open_seekable(partial(self.read, url), size)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[IO[bytes]]:
        """Opens a new file; one that is cut off by an error is removed."""
        with self._explain(url):
            try:
                with self._tf.io.gfile.GFile(url, "wb") as file:
                    yield file
            except BaseException:
                with contextlib.suppress(self._tf.errors.OpError):
                    self._tf.io.gfile.remove(url)
                raise

    def size(self, url: str) -> int:
        """Implements `FileStore.size`."""
        with contextlib.suppress(FileNotFoundError), self._explain(url):
            status = self._tf.io.gfile.stat(url)
            return -1 if self._tf.io.gfile.isdir(url) else int(status.length)
        return -1

    def list(self, folder: str, recursive: bool = True) -> Iterator[tuple[str, int]]:
        """Implements `FileStore.list`."""
        base = folder.rstrip("/")
        with self._explain(folder):
            names = self._tf.io.gfile.listdir(base) if self._tf.io.gfile.isdir(base) else []
        for name in sorted(name.rstrip("/") for name in names):
            size = self.size(f"{base}/{name}")
            if size >= 0:
                yield f"{base}/{name}", size
            elif recursive:
                yield from self.list(f"{base}/{name}")
            else:
                yield f"{base}/{name}/", -1

    def make_folder(self, url: str) -> None:
        """Implements `FileStore.make_folder`."""
        with self._explain(url):
            self._tf.io.gfile.makedirs(url)

    def rename(self, source: str, target: str) -> None:
        """Implements `FileStore.rename`."""
        with self._explain(source):
            self._tf.io.gfile.rename(source, target, overwrite=True)

    def delete(self, urls: Iterable[str]) -> None:
        """Implements `FileStore.delete`."""
        for url in urls:
            with contextlib.suppress(FileNotFoundError), self._explain(url):
                self._tf.io.gfile.remove(url)

    @contextlib.contextmanager
    def _explain(self, url: str) -> Iterator[None]:
        """Turns TensorFlow's errors into the OS errors that Python's files raise."""
        try:
            yield
        except self._tf.errors.NotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
        except self._tf.errors.OpError as error:
            raise OSError(first_line(error)) from error


def can_read(url: str) -> bool:
    """Returns whether obstore is installed and reads URLs of this kind."""
    return url.partition("://")[0] in SCHEMES and "://" in url and _has_obstore()


def configure(opener: Opener | None = None) -> None:
    """Forgets the open stores. New ones are opened by `opener`, by default with the credentials found here."""
    global _opener
    with _lock:
        _opener = opener or _open
        _stores.clear()


def get_store(url: str) -> FileStore:
    """Returns the store of a URL, opened at its first use because the client takes seconds to import."""
    global _stores_pid
    scheme = url.partition("://")[0]
    with _lock:  # a runner may work in threads, and one client serves them all
        if _stores_pid != os.getpid():  # after a fork, two processes on one connection would get each other's answers
            _stores.clear()
            _stores_pid = os.getpid()
        if scheme not in _stores:
            _stores[scheme] = _opener(scheme, url)
        return _stores[scheme]


@cache
def _has_obstore() -> bool:
    return importlib.util.find_spec("obstore") is not None


def _open(scheme: str, url: str) -> FileStore:
    """Opens a store with the credentials that are found, or without any, as a public bucket is read."""
    if scheme == SCHEME:
        return HuggingFaceStore(url)
    return Store(scheme, StoreOptions(credentials="optional")) if can_read(url) else TensorFlowStore(url)


_opener: Opener = _open
_stores: dict[str, FileStore] = {}  # by scheme
_stores_pid = os.getpid()
_lock = make_fork_lock()
