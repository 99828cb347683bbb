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
_HELD_ANNOUNCEMENTS = 8  # nearly all ranges are read; those left at the end of an epoch are dropped in time


class Range(NamedTuple):
    """A byte range of an object."""

    place: int  # the index of the object in the reader's list
    begin: int  # the first byte
    end: int  # the byte after the last one
    stop: int = 0  # the end of the request, as the next bytes are needed soon; 0 for `end`


@dataclass(eq=False)
class _Held:
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
        self._held: dict[int, list[_Held]] = {}
        self._held_bytes = self._most_bytes = self._count = 0
        self._threads = ThreadPoolExecutor(min(_THREADS_PER_CORE * usable_cpus(), _MOST_THREADS), "tfpipe-store")

    def announce(self, ranges: Sequence[Range]) -> None:
        """Starts requests for ranges that will be read soon, each up to its `stop`."""
        self._check_process()
        with self._lock:
            asked = sum(self._hold(one)[1] for one in ranges)
            self._drop_oldest(asked)

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Reads ranges, all at once; new requests fetch up to `stop`. Returns fewer bytes at the end of an object."""
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
            except BaseException:  # so that the next read requests the range again
                self._drop(one.place, part)
                raise
        return frames

    def _find_held(self, one: Range) -> _Held | None:
        held = self._held.get(one.place, ())
        return next((part for part in held if part.begin <= one.begin and one.end <= part.end), None)

    def _hold(self, one: Range) -> tuple[_Held, int]:
        """Returns the request that covers a range, and its bytes if it is new, 0 if it was made before."""
        held = self._find_held(one)
        if held is not None:
            return held, 0
        end = max(one.end, one.stop)
        data = self._threads.submit(_read, self._urls[one.place], one.begin, end)
        held = _Held(self._count, one.begin, end, data, end - one.begin)
        self._count += 1
        self._held.setdefault(one.place, []).append(held)
        self._held_bytes += held.unread
        return held, held.unread

    def _take(self, one: Range, part: _Held) -> None:
        """Counts a range as read, and drops its request once all bytes of that are read."""
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
        """Drops the oldest unread requests if they keep many times the bytes of the largest call."""
        self._most_bytes = max(self._most_bytes, asked)
        while self._held_bytes > _HELD_ANNOUNCEMENTS * self._most_bytes:
            oldest = min((parts for parts in self._held.values() if parts), key=lambda parts: parts[0].number)
            self._held_bytes -= oldest.pop(0).unread

    def _check_process(self) -> None:
        """Refuses a forked process: its copy of the lock may stay locked forever, and it has no threads."""
        check_not_forked(self._urls[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._urls,)


def _read(url: str, begin: int, end: int) -> memoryview:
    try:
        return memoryview(get_store(url).read(url, begin, end - begin))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{url} cannot be read: {error.strerror or error}.") from error
