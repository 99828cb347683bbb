"""The store of a URL, opened when it is first needed, and then kept for this process.

store = get_store("gs://data/photos/a.jpg")
store.read("gs://data/photos/a.jpg")
"""

import importlib.util
import os
from collections.abc import Callable
from functools import cache

from tfpipe.storage.buckets import SCHEMES, StoreOptions
from tfpipe.storage.file_store import FileStore
from tfpipe.storage.hugging_face import SCHEME, HuggingFaceStore
from tfpipe.storage.store import Store
from tfpipe.storage.tensorflow_store import TensorFlowStore
from tfpipe.system.fork_lock import ForkLock

Opener = Callable[[str, str], FileStore]
"""A function of a scheme and a URL of it that opens their store."""


def can_read(url: str) -> bool:
    """Returns whether obstore is installed and reads URLs of this kind."""
    return url.partition("://")[0] in SCHEMES and "://" in url and _has_obstore()


def configure(opener: Opener | None = None) -> None:
    """Forgets the open stores. New ones are opened by `opener`, or without one as any program finds them."""
    global _opener
    with _lock:
        _opener = opener or _open
        _stores.clear()


def get_store(url: str) -> FileStore:
    """Returns the store of a URL: the clients take seconds to import, so none is opened before.

    Raises:
        DataError: No client knows the scheme.
        MissingDependencyError: The client is not installed.
    """
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
_lock = ForkLock()
