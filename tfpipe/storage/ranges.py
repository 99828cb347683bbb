"""Reads byte ranges of objects over connections that stay open, many at once and ahead of time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfpipe.errors import DataError
from tfpipe.storage.buckets import check_not_forked
from tfpipe.storage.stores import get_store
from tfpipe.system.host_limits import usable_cpus

_THREADS_PER_CORE, _MOST_THREADS = 48, 512  # a core decodes about as many images as 48 requests of 50 ms bring
_KEPT_ANNOUNCEMENTS = 8  # nearly all ranges are read; those left at the end of an epoch are dropped in time


class Range(NamedTuple):
    """A byte range of an object."""

    object: int  # the index of the object in the reader's list
    begin: int  # the first byte
    end: int  # the byte after the last one
    stop: int = 0  # the end of the request, as the next bytes are needed soon; 0 for `end`


@dataclass(eq=False)
class _Request:
    """A byte range that was requested from the store, and may be read later."""

    number: int  # the requests are numbered in order
    begin: int
    end: int
    data: Future[memoryview]
    unread: int  # bytes that no call of `read` has returned yet


class RangeReader:
    """A thread-safe reader of byte ranges. It keeps a range that it requested ahead until this is read once."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._lock = threading.Lock()  # guards what follows
        self._requests: dict[int, list[_Request]] = {}
        self._unread_bytes = self._most_bytes = self._count = 0
        self._threads = ThreadPoolExecutor(min(_THREADS_PER_CORE * usable_cpus(), _MOST_THREADS), "tfpipe-store")

    def announce(self, ranges: Sequence[Range]) -> None:
        """Starts requests for ranges that will be read soon, each up to its `stop`."""
        check_not_forked(self._urls[0])
        with self._lock:
            self._drop_oldest(sum(self._request(one)[1] for one in ranges))

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Reads ranges, all at once; new requests fetch up to `stop`. Returns fewer bytes at the end of an object."""
        check_not_forked(self._urls[0])
        with self._lock:
            found = [self._request(one) for one in ranges]
            requests = [request for request, _ in found]
            for one, request in zip(ranges, requests, strict=True):
                self._take(one, request)
            self._drop_oldest(sum(asked for _, asked in found))
        frames = []
        for one, request in zip(ranges, requests, strict=True):
            try:
                frames.append(request.data.result()[one.begin - request.begin : one.end - request.begin])
            except BaseException:  # so that the next read requests the range again
                with self._lock:
                    if request in self._requests[one.object]:
                        self._requests[one.object].remove(request)
                        self._unread_bytes -= request.unread
                raise
        return frames

    def _request(self, one: Range) -> tuple[_Request, int]:
        """Returns the request that covers a range, and its bytes if it is new, 0 if it was made before."""
        for request in self._requests.get(one.object, ()):
            if request.begin <= one.begin and one.end <= request.end:
                return request, 0
        end = max(one.end, one.stop)
        data = self._threads.submit(_read, self._urls[one.object], one.begin, end)
        request = _Request(self._count, one.begin, end, data, end - one.begin)
        self._count += 1
        self._requests.setdefault(one.object, []).append(request)
        self._unread_bytes += request.unread
        return request, request.unread

    def _take(self, one: Range, request: _Request) -> None:
        """Counts a range as read, and drops its request once all bytes of that are read."""
        size = min(one.end - one.begin, request.unread)
        request.unread -= size
        self._unread_bytes -= size
        if not request.unread and request in self._requests[one.object]:
            self._requests[one.object].remove(request)

    def _drop_oldest(self, asked: int) -> None:
        """Drops the oldest unread requests if they keep many times the bytes of the largest call."""
        self._most_bytes = max(self._most_bytes, asked)
        while self._unread_bytes > _KEPT_ANNOUNCEMENTS * self._most_bytes:
            oldest = min((each for each in self._requests.values() if each), key=lambda each: each[0].number)
            self._unread_bytes -= oldest.pop(0).unread

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._urls,)


def _read(url: str, begin: int, end: int) -> memoryview:
    try:
        return memoryview(get_store(url).read(url, begin, end - begin))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{url} cannot be read: {error.strerror or error}.") from error
