"""Every intact record of a file, damaged or not, and where the damage is.

`scan` follows the framing. Where it breaks, `resync.py` finds the place to go on at by what the bytes say. With an
index, damage is told record by record: the index knows the size and place of each, so bytes inserted or removed show as
records that stand elsewhere, and a record inside another one's payload has a size or a place that the index does not
know.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.recovery.hashed_reader import Window
from tfpipe.format.recovery.header_search import iterate_headers
from tfpipe.format.recovery.resync import Damage, Search
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, record_header

_TRIED = 64  # records of one size whose neighbours are looked at


class Intact(NamedTuple):
    """A record whose checksums hold."""

    number: int
    """From 0 in its file. Without an index, what was lost in `garbage` is not counted."""
    offset: int
    size: int
    """Framing included."""


Places = NDArray[np.int64]
"""Offset and size of every record, [records, 2], as `decode_index` gives them."""


def scan(window: Window, places: Places | None = None) -> Iterator[Intact | Damage]:
    """Yields every intact record of a file, and each damage, in the order of their places.

    The payload of a record just yielded can be had from `window.payload`.

    Args:
      window: Of the file.
      places: What its index says. One that contradicts intact records is not followed any further.

    Raises:
      FormatError: The file changes meanwhile.
    """
    at = number = 0
    search = Search(window)
    guide = None if places is None else _Guide(places, window, search)
    while at < window.size:
        if size := window.record_at(at):
            if guide is not None:
                found = guide.number_of(at, size, number)
                if found is None:
                    guide = None
                else:
                    yield from (_missing(m, at) for m in range(number, found))
                    number = found
            yield Intact(number, at, size)
            at, number = at + size, number + 1
            continue
        damages, at, number = search.resume(at, number) if guide is None else guide.resume(at, number)
        yield from damages
    if guide is not None:
        yield from (_cut_off(m, window.size) for m in range(number, guide.count))


def _missing(number: int, at: int) -> Damage:
    return Damage(number, at, 0, "missing", "the index knows it, and it is not in the file")


def _cut_off(number: int, end: int) -> Damage:
    return Damage(number, end, 0, "truncated", f"the file ends before it, at byte {end:,}")


class _Guide:
    """Where records stand by the index; they may all be shifted by what was inserted or removed before them."""

    def __init__(self, places: Places, window: Window, search: Search) -> None:
        self._offsets, self._sizes = places[:, 0], places[:, 1]
        self._window, self._search = window, search
        self.count = len(places)
        self._end = int(places[-1].sum()) if self.count else 0

    def number_of(self, at: int, size: int, number: int) -> int | None:
        """Which record an intact one is, `number` or a later one; None: the index is of another file."""
        if number < self.count and self._sizes[number] == size:
            return number
        return self._locate(at, size, number, self.count, sure=True)

    def resume(self, at: int, number: int) -> tuple[list[Damage], int, int]:
        """What is damaged from `at` on, where reading resumes, and the number of the record there."""
        end = self._window.size
        if number >= self.count:
            detail = f"{end - at:,} bytes after the last record"
            return [Damage(number, at, end - at, "garbage", detail)], end, number
        shift = at - int(self._offsets[number])
        later = self._next_in_place(number + 1, shift)
        stop = end if later is None else self._begin(later) + shift
        following = self.count if later is None else later
        if following > number + 1 or shift != end - self._end:
            found = self._next_shifted(at, stop, number, following, shift)
            if found is not None:
                stop, following = found
        if following == number:
            detail = f"{stop - at:,} bytes that belong to no record"
            return [Damage(number, at, stop - at, "garbage", detail)], stop, number
        in_place = stop - shift == self._begin(following)
        return [self._describe(m, shift, at, stop, in_place) for m in range(number, following)], stop, following

    def _describe(self, number: int, shift: int, first: int, stop: int, in_place: bool) -> Damage:
        """One lost record between `first`, where the first of them begins, and `stop`, where reading resumes."""
        at = self._begin(number) + shift
        if at >= self._window.size and stop == self._window.size:  # else a later record stands before the end
            detail = f"the file ends before it, at byte {self._window.size:,}"
            return Damage(number, self._window.size, 0, "truncated", detail)
        if in_place:
            return self._search.describe(number, at, min(int(self._sizes[number]), self._window.size - at))
        if at > first:  # where it stood, nothing can be told from what stands there now
            return Damage(number, min(at, stop), 0, "missing", f"it is not in the file before byte {stop:,}")
        return self._search.describe(number, at, stop - at)

    def _begin(self, number: int) -> int:
        return int(self._offsets[number]) if number < self.count else self._end

    def _next_in_place(self, number: int, shift: int) -> int | None:
        """The next record whose header stands where it must; the number of records where the file ends as it must."""
        for later in range(number, self.count):
            at = int(self._offsets[later]) + shift
            if at + HEADER_BYTES > self._window.size:
                break
            if self._header_is(at, later):
                return later
        return self.count if self._end + shift == self._window.size else None

    def _next_shifted(self, begin: int, end: int, number: int, stop: int, shift: int) -> tuple[int, int] | None:
        """Place and number of the next record before `stop` that stands elsewhere than the ones before it.

        One that stands alone, between two places of damage, counts unless it can be a part of a payload: it lies
        inside the damaged record, or contradicts a later one that does not stand alone.
        """
        length = self._search.length_at(begin)
        claimed = begin if length is None else begin + length + FRAME_BYTES
        alone: tuple[int, int] | None = None
        for at, length in iterate_headers(self._window, begin + 1, end):
            size = length + FRAME_BYTES
            found = self._locate(at, size, number, stop, shift=shift)
            if found is None:
                continue
            if self._followed(at, size, found):
                agrees = alone is not None and alone[1] < found and alone[0] + self._sizes[alone[1]] <= at
                return alone if agrees else (at, found)
            if alone is None and at + size > claimed and self._search.payload_holds(at, length):
                alone = at, found
        return alone

    def _locate(self, at: int, size: int, number: int, stop: int, *, shift: int = 0, sure: bool = False) -> int | None:
        """Which record from `number` to before `stop` has this size; of several, the one whose place fits best.

        `sure`: it must stand where all that follows stands too, or be followed by its neighbour.
        """
        same = np.flatnonzero(self._sizes[number:stop] == size) + number
        if not same.size:
            return None
        shifts = at - self._offsets[same]
        to_the_end = same[shifts == self._window.size - self._end]
        if to_the_end.size:
            return int(to_the_end[0])
        followed = next((int(one) for one in same[:_TRIED] if self._followed(at, size, int(one))), None)
        if followed is not None or sure:
            return followed
        return int(same[np.abs(shifts - shift).argmin()])

    def _followed(self, at: int, size: int, number: int) -> bool:
        """Whether the next record, or the end of the file, comes right after."""
        stop = at + size
        return stop == self._window.size if number + 1 == self.count else self._header_is(stop, number + 1)

    def _header_is(self, at: int, number: int) -> bool:
        return self._window.peek(at, HEADER_BYTES) == record_header(int(self._sizes[number]) - FRAME_BYTES)
