"""Reading objects of gs:// and s3:// by obstore, an optional package, over connections that stay open.

TensorFlow's client opens a connection for each part of an object, and reads from gs:// only. This one serves every
reader, and asks for many parts at once.

```
ranges = RangeReader(["gs://data/photos/train-00000-of-00016.tfrecord"])
ranges.announce([Range(0, 0, 110_000, 440_000)])  # asks for 440,000 bytes
frame, = ranges.read([Range(0, 0, 110_000)])      # waits for them, and keeps the other 330,000
```
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from tfpipe.errors import DataError, FormatError, first_line
from tfpipe.system.extras import check_installed, importing

SCHEMES = ("gs", "s3")
REQUIREMENT = "tfpipe[buckets]"
_REGION = "us-east-1"  # of Amazon, where nothing says another
_READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"
_THREADS = 64  # of one reader: 1,200 answers a second from a store that takes 50 ms
_OPENING = threading.Lock()  # so that credentials are looked for once, although many threads begin to read at once
_HELD_ANNOUNCEMENTS = 8  # an order uses what it asks for; what is left over at the end of an epoch goes in time


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


class Range(NamedTuple):
    """A part of an object.

    Attributes:
        place: The place of the object in the reader's list.
        begin: The first byte.
        end: The byte behind the last one.
        stop: The byte up to which the object is read at once, because what follows is needed soon; 0 for `end`.
    """

    place: int
    begin: int
    end: int
    stop: int = 0


@dataclass(eq=False)
class _Held:
    """A part of an object that was asked for.

    Attributes:
        number: They were asked for after those of the smaller numbers.
        begin: The first byte.
        end: The byte behind the last one.
        data: The bytes, as soon as they are there.
        unread: The number of bytes that nobody took yet.
    """

    number: int
    begin: int
    end: int
    data: Future[memoryview]
    unread: int


class RangeReader:
    """A reader of parts of objects. It holds what it asked for ahead until that is read, once. Threads may share it.

    A reader of another process opens its own connections, so a pickled one holds nothing.

    Args:
        urls: The objects.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._lock = threading.Lock()  # guards what follows
        self._held: dict[int, list[_Held]] = {}
        self._held_bytes = self._most_bytes = self._count = 0
        self._threads = ThreadPoolExecutor(_THREADS, "tfpipe-store")

    def announce(self, ranges: Sequence[Range]) -> None:
        """Asks the store for parts that are read soon, and for what follows them up to their `stop`."""
        self._check_process()
        with self._lock:
            asked = sum(self._hold(one)[1] for one in ranges)
            self._drop_oldest(asked)

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Reads parts of objects, all at once, with what follows them up to their `stop`.

        Returns:
            The bytes of each part; less where the object ends before.

        Raises:
            FileNotFoundError: There is no such object.
            DataError: The store does not give it.
        """
        self._check_process()
        with self._lock:
            held = [self._hold(one) for one in ranges]
            parts = [part for part, _ in held]
            for one, part in zip(ranges, parts, strict=True):
                self._take(one, part)
            self._drop_oldest(sum(asked for _, asked in held))
        frames = []
        for one, part in zip(ranges, parts, strict=True):
            try:
                frames.append(part.data.result()[one.begin - part.begin : one.end - part.begin])
            except BaseException:  # the next read asks again
                self._drop(one.place, part)
                raise
        return frames

    def _find_held(self, one: Range) -> _Held | None:
        held = self._held.get(one.place, ())
        return next((part for part in held if part.begin <= one.begin and one.end <= part.end), None)

    def _hold(self, one: Range) -> tuple[_Held, int]:
        """Returns the part that holds a range, and how many bytes were asked for now."""
        held = self._find_held(one)
        if held is not None:
            return held, 0
        end = max(one.end, one.stop)
        data = self._threads.submit(_read_range, self._urls[one.place], one.begin, end)
        held = _Held(self._count, one.begin, end, data, end - one.begin)
        self._count += 1
        self._held.setdefault(one.place, []).append(held)
        self._held_bytes += held.unread
        return held, held.unread

    def _take(self, one: Range, part: _Held) -> None:
        """Counts a range as read, and drops the part that holds it once all of that is read."""
        size = min(one.end - one.begin, part.unread)
        part.unread -= size
        self._held_bytes -= size
        if not part.unread and part in self._held[one.place]:
            self._held[one.place].remove(part)

    def _drop(self, place: int, part: _Held) -> None:
        with self._lock:
            if part in self._held[place]:
                self._held[place].remove(part)
                self._held_bytes -= part.unread

    def _drop_oldest(self, asked: int) -> None:
        """Drops what nobody read, if it became much more than what is asked for at once."""
        self._most_bytes = max(self._most_bytes, asked)
        while self._held_bytes > _HELD_ANNOUNCEMENTS * self._most_bytes:
            oldest = min((parts for parts in self._held.values() if parts), key=lambda parts: parts[0].number)
            self._held_bytes -= oldest.pop(0).unread

    def _check_process(self) -> None:
        """Refuses a forked process, whose copy of the lock may be held for ever, and whose threads are not there."""
        _check_not_forked(self._urls[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._urls,)


def _read_range(url: str, begin: int, end: int) -> memoryview:
    import obstore

    store, key = _find(url)
    with _explain_errors(url):
        return memoryview(obstore.get_range(store, key, start=begin, end=end))


def _find(url: str) -> tuple[Any, str]:
    """Returns the bucket of a URL, and the name of the object in it."""
    scheme, _, path = url.partition("://")
    bucket, _, key = path.partition("/")
    _check_not_forked(url)
    with importing(f"Reading {url}", "obstore", REQUIREMENT), _OPENING:
        return (_open_google if scheme == "gs" else _open_amazon)(bucket), key


def forget_buckets() -> None:
    """Forgets the connections and credentials of buckets, so that the next read looks for them anew."""
    _open_google.cache_clear()
    _open_amazon.cache_clear()


@cache
def _get_first_process() -> int:
    """Returns the process that first read from a store: this one, or that from which it was forked."""
    return os.getpid()


def _check_not_forked(url: str) -> None:
    """Refuses a forked process: the threads of obstore do not live on in it, so a request would hang.

    Raises:
        DataError: An ancestor read from a store before it forked this process.
    """
    if _get_first_process() != os.getpid():
        raise DataError(
            f"A forked process cannot read {url}, because it has none of the threads that its parent reads with. Start "
            "it with the method spawn or forkserver."
        )


@cache
def _open_google(bucket: str) -> Any:
    """Opens a bucket with the credentials that Google's own clients find, or without any, as a public one is read."""
    from obstore.store import GCSStore

    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from obstore.auth.google import GoogleCredentialProvider
    except ImportError:
        return GCSStore(bucket)  # obstore itself knows the usual ones
    try:
        credentials, _ = google.auth.default(scopes=[_READ_ONLY])
    except DefaultCredentialsError:
        return GCSStore(bucket, config={"skip_signature": True})
    return GCSStore(bucket, credential_provider=GoogleCredentialProvider(credentials))


@cache
def _open_amazon(bucket: str) -> Any:
    """Opens a bucket with the credentials that Amazon's own client finds, or without any, as a public one is read."""
    from obstore.store import S3Store

    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return S3Store(bucket)  # obstore itself knows the usual ones
    session = boto3.Session()
    endpoint = str(session.client("s3", region_name=session.region_name or _REGION).meta.endpoint_url)
    config: Any = {"region": session.region_name or _REGION}
    options: Any = {}
    if not endpoint.endswith(".amazonaws.com"):  # another store with Amazon's interface
        config["endpoint"], options["allow_http"] = endpoint, endpoint.startswith("http://")
    provider: Any = None
    if session.get_credentials() is not None:
        provider = Boto3CredentialProvider(session)
    else:
        config["skip_signature"] = True
    return S3Store(bucket, config=config, client_options=options, credential_provider=provider)


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
        raise DataError(f"{url} cannot be read: {first_line(error)}.") from error
