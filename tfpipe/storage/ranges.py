"""Reading parts of objects over connections that stay open, many at once and ahead of time."""

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
_HELD_ANNOUNCEMENTS = 8  # an order uses what it asks for; what is left over at the end of an epoch goes in time


class Range(NamedTuple):
    """A part of an object."""

    place: int  # of the object in the reader's list
    begin: int  # the first byte
    end: int  # behind the last one
    stop: int = 0  # up to which it is read at once, as it is needed soon; 0 for `end`


@dataclass(eq=False)
class _Held:
    """A part of an object that was asked for."""

    number: int  # of the request, in order
    begin: int
    end: int
    data: Future[memoryview]
    unread: int  # bytes that nobody took yet


class RangeReader:
    """A reader of parts of objects, for threads; what it asked for ahead is held until it is read, once."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = tuple(urls)
        self._lock = threading.Lock()  # guards what follows
        self._held: dict[int, list[_Held]] = {}
        self._held_bytes = self._most_bytes = self._count = 0
        self._threads = ThreadPoolExecutor(min(_THREADS_PER_CORE * usable_cpus(), _MOST_THREADS), "tfpipe-store")

    def announce(self, ranges: Sequence[Range]) -> None:
        """Asks the store for parts that are read soon, and for what follows them up to their `stop`."""
        self._check_process()
        with self._lock:
            asked = sum(self._hold(one)[1] for one in ranges)
            self._drop_oldest(asked)

    def read(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Reads parts of objects, all at once, with what follows up to their `stop`; less at the end of an object."""
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
        data = self._threads.submit(_read, self._urls[one.place], one.begin, end)
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
