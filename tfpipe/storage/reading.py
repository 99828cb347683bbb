"""Reading the objects of a dataset with the credentials that are found, or without any, as a public bucket is read.

What fails here is about one file that somebody wants to read, so the errors name it. `store` serves jobs.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

from tfpipe.errors import DataError, FormatError
from tfpipe.storage import failures
from tfpipe.storage.buckets import REQUIREMENT, SCHEMES, StoreOptions, check_not_forked, open_bucket
from tfpipe.storage.urls import split_url
from tfpipe.system.extras import check_installed

_OPENING = threading.Lock()  # so that credentials are looked for once, although many threads begin to read at once


def can_read(url: str) -> bool:
    """Returns whether obstore is installed and reads URLs of this kind."""
    return url.partition("://")[0] in SCHEMES and "://" in url and _is_installed()


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("obstore") is not None


def check_can_read(url: str) -> None:
    """Checks that obstore is installed for a URL of gs:// or s3://.

    Raises:
        MissingDependencyError: It is not installed.
    """
    check_installed("obstore", f"Reading {url} without TensorFlow", "obstore", REQUIREMENT)


def read_object(url: str, max_bytes: int) -> bytes:
    """Reads a whole object.

    Args:
        url: The object.
        max_bytes: The largest size that is accepted. A larger object is refused before its bytes are asked for.

    Raises:
        FileNotFoundError: There is no such object.
        DataError: The store does not give it.
        FormatError: It is too large.
    """
    import obstore

    store, key = _find(url)
    with _explain_errors(url):
        answer = obstore.get(store, key)
        if (size := int(answer.meta["size"])) > max_bytes:
            raise FormatError(f"{url} must have at most {max_bytes:,} bytes, got {size:,}.")
        return bytes(answer.bytes())


def read_start(url: str, num_bytes: int) -> bytes:
    """Reads the first bytes of an object, or all of a shorter one. Raises the errors of `read_object`."""
    import obstore

    store, key = _find(url)
    with _explain_errors(url):
        size = min(int(obstore.head(store, key)["size"]), num_bytes)
        return bytes(obstore.get_range(store, key, start=0, end=size)) if size else b""


def iterate(url: str, chunk_bytes: int) -> Iterator[bytes]:
    """Yields the bytes of an object, at least `chunk_bytes` at once. Raises the errors of `read_object`."""
    import obstore

    store, key = _find(url)
    with _explain_errors(url):
        for chunk in obstore.get(store, key).stream(min_chunk_size=chunk_bytes):
            yield bytes(chunk)


def get_size(url: str) -> int:
    """Returns the bytes of an object. Raises the errors of `read_object`."""
    import obstore

    store, key = _find(url)
    with _explain_errors(url):
        return int(obstore.head(store, key)["size"])


def list_sizes(folder: str) -> dict[str, int]:
    """Lists the objects in a folder, without those of folders in it: their bytes by URL.

    Raises:
        DataError: The store does not answer.
    """
    import obstore

    store, prefix = _find(folder)
    with _explain_errors(folder):
        found = obstore.list_with_delimiter(store, prefix.rstrip("/") or None)["objects"]
    base = folder.rstrip("/")
    return {f"{base}/{entry['path'].rpartition('/')[2]}": int(entry["size"]) for entry in found}


def read_range(url: str, begin: int, end: int) -> memoryview:
    """Reads the bytes from `begin` to `end`, fewer at the end of the object. Raises the errors of `read_object`."""
    import obstore

    store, key = _find(url)
    with _explain_errors(url):
        return memoryview(obstore.get_range(store, key, start=begin, end=end))


def forget_buckets() -> None:
    """Forgets the connections and credentials of buckets, so that the next read looks for them anew."""
    _open.cache_clear()


@cache
def _open(scheme: str, name: str) -> Any:
    return open_bucket(scheme, name, StoreOptions(credentials="optional")).patient


def _find(url: str) -> tuple[Any, str]:
    """Returns the bucket of a URL, and the name of the object in it."""
    name, key = split_url(url)
    check_not_forked(url)
    with _OPENING:
        return _open(url.partition("://")[0], name), key


@contextlib.contextmanager
def _explain_errors(url: str) -> Iterator[None]:
    """Turns what obstore raises into a sentence.

    Raises:
        FileNotFoundError: There is no such object.
        DataError: Anything else.
    """
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from None
    except (PermissionDeniedError, UnauthenticatedError, PermissionError):
        raise DataError(
            f"{url} may not be read with these credentials, or without any. Log in, or ask for the right to read."
        ) from None
    except (BaseError, OSError) as error:
        raise DataError(f"{url} cannot be read: {failures.shorten(failures.read_failure(error)[1])}.") from error
