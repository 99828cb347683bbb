"""Finds every intact record and every damage of a file.

With an index, damage is reported record by record: inserted or removed bytes shift the records after them, and a record
inside a payload is recognized because the index lists no record of its size and offset.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Gap, Search, iterate_headers
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, record_header

_TRIED = 64  # the most records of one size whose next record is compared


class Intact(NamedTuple):
    """A record whose checksums hold."""

    number: int  # from 0; without an index each damage counts as one record
    offset: int  # of its frame in bytes
    size: int  # in bytes, framing included


IndexTable = NDArray[np.int64]
"""The offset and size of every record, int64 [records, 2], as `decode_index` returns them."""


def scan(reader: HashedReader, index: IndexTable | None = None) -> Iterator[Intact | Gap]:
    """Yields intact records and damage in order; an index that contradicts intact records is ignored from there on."""
    at = number = 0
    search = Search(reader)
    guide = None if index is None else _Guide(index, reader, search)
    while at < reader.size:
        if size := reader.record_at(at):
            if guide is not None:
                indexed_number = guide.find_number(at, size, number)
                if indexed_number is None:
                    guide = None
                else:
                    text = "the index lists it, but it is not in the file"
                    yield from (Gap(m, at, 0, "missing", text) for m in range(number, indexed_number))
                    number = indexed_number
            yield Intact(number, at, size)
            at, number = at + size, number + 1
            continue
        damages, at, number = search.resume(at, number) if guide is None else guide.resume(at, number)
        yield from damages
    if guide is not None:
        text, end = f"the file ends before it, at byte {reader.size:,}", reader.size
        yield from (Gap(m, end, 0, "truncated", text) for m in range(number, guide.count))


class _Guide:
    """A search guided by the index: inserted or removed bytes shift later records from their indexed offsets."""

    def __init__(self, index: IndexTable, reader: HashedReader, search: Search) -> None:
        self._offsets, self._sizes = index[:, 0], index[:, 1]
        self._reader, self._search = reader, search
        self.count = len(index)
        self._end = int(index[-1].sum()) if self.count else 0

    def find_number(self, at: int, size: int, number: int) -> int | None:
        """Returns the number of an intact record, `number` or later; None if the index belongs to another file."""
        if number < self.count and self._sizes[number] == size:
            return number
        return self._locate(at, size, number, self.count, sure=True)

    def resume(self, at: int, number: int) -> tuple[list[Gap], int, int]:
        """Returns the damage from `at` on, the offset where reading resumes, and the number of the record there."""
        end = self._reader.size
        if number >= self.count:
            detail = f"{end - at:,} bytes after the last record"
            return [Gap(number, at, end - at, "garbage", detail)], end, number
        shift = at - int(self._offsets[number])
        later = self._next_unshifted(number + 1, shift)
        stop = end if later is None else self._begin(later) + shift
        following = self.count if later is None else later
        if following > number + 1 or shift != end - self._end:
            first = number + self._header_is(at, number)  # a record that begins here begins nowhere else
            shifted = self._after_one_damage(at, number, first, following)
            if shifted is None:
                shifted = self._next_shifted(at, stop, first, following, shift, is_unshifted=later is not None)
            if shifted is not None:
                stop, following = shifted
        if following == number:
            detail = f"{stop - at:,} bytes that belong to no record"
            return [Gap(number, at, stop - at, "garbage", detail)], stop, number
        is_unshifted = stop - shift == self._begin(following)
        return [self._describe(m, shift, at, stop, is_unshifted) for m in range(number, following)], stop, following

    def _describe(self, number: int, shift: int, first: int, stop: int, is_unshifted: bool) -> Gap:
        """Describes record `number`, one of the lost records from offset `first` to offset `stop`."""
        at = self._begin(number) + shift
        if at >= self._reader.size and stop == self._reader.size:  # else a later record stands before the end
            detail = f"the file ends before it, at byte {self._reader.size:,}"
            return Gap(number, self._reader.size, 0, "truncated", detail)
        if is_unshifted:
            return self._search.describe(number, at, min(int(self._sizes[number]), self._reader.size - at))
        if at > first:  # the bytes that stand there now do not tell what happened to the record
            return Gap(number, min(at, stop), 0, "missing", f"it is not in the file before byte {stop:,}")
        return self._search.describe(number, at, stop - at)

    def _begin(self, number: int) -> int:
        return int(self._offsets[number]) if number < self.count else self._end

    def _next_unshifted(self, number: int, shift: int) -> int | None:
        """Returns the next record whose header is at its offset plus `shift`, or the count if the file ends there."""
        for later in range(number, self.count):
            at = int(self._offsets[later]) + shift
            if at + HEADER_BYTES > self._reader.size:
                break
            if self._header_is(at, later):
                return later
        return self.count if self._end + shift == self._reader.size else None

    def _after_one_damage(self, at: int, number: int, first: int, stop: int) -> tuple[int, int] | None:
        """Returns the offset and number of the next record if all records from it to the file's end are intact.

        Then a single damage explains all, and records inside a damaged payload need no search. A single damage is an
        insertion into one record, or a removal that may cut its first and last record and took those between whole.
        """
        shift = self._reader.size - self._end
        removed = at - int(self._offsets[number]) - shift
        for record in range(first, min(stop, self.count)):
            if record > number + 1 and self._begin(record - 1) - self._begin(number + 1) > removed:
                return None
            begin = self._begin(record) + shift
            if begin > at and self._header_is(begin, record):
                rest = range(record + 1, self.count)
                return (begin, record) if all(self._header_is(self._begin(m) + shift, m) for m in rest) else None
        return None

    def _next_shifted(
        self, begin: int, end: int, number: int, stop: int, shift: int, *, is_unshifted: bool
    ) -> tuple[int, int] | None:
        """Returns the offset and number of the next record before `stop` whose shift differs from the records before.

        A single record between two damages counts, unless it may be bytes of a payload: if it lies inside the damaged
        record, or contradicts a later record that another one follows. With `is_unshifted` record `stop` is at its
        offset plus `shift`, as are the records before it, and a record found inside one of these does not count.
        """
        length = self._search.length_at(begin)
        claimed = begin if length is None else begin + length + FRAME_BYTES
        alone: tuple[int, int] | None = None
        for at, length in iterate_headers(self._reader, begin + 1, end):
            size = length + FRAME_BYTES
            candidate = self._locate(at, size, number, stop, shift=shift)
            if candidate is None or (is_unshifted and self._is_inside(at - shift, size, candidate)):
                continue
            if self._followed(at, size, candidate):
                agrees = alone is not None and alone[1] < candidate and alone[0] + self._sizes[alone[1]] <= at
                return alone if agrees else (at, candidate)
            if alone is None and at + size > claimed and self._search.is_payload_intact(at, length):
                alone = at, candidate
        return alone

    def _locate(self, at: int, size: int, number: int, stop: int, *, shift: int = 0, sure: bool = False) -> int | None:
        """Returns the number, from `number` up to `stop`, of the intact record of this size at offset `at`.

        Of several of this size it is one after which the file goes on as the index says: to its end, or with the next
        record at least. If there is none such, with `sure` nothing is returned, else the one whose indexed offset plus
        `shift`, in bytes, is nearest to `at`.
        """
        same = np.flatnonzero(self._sizes[number:stop] == size) + number
        if not same.size:
            return None
        shifts = at - self._offsets[same]
        to_the_end = same[shifts == self._reader.size - self._end]
        if to_the_end.size:
            return int(to_the_end[0])
        followed = next((int(record) for record in same[:_TRIED] if self._followed(at, size, int(record))), None)
        if followed is not None or sure:
            return followed
        return int(same[np.abs(shifts - shift).argmin()])

    def _is_inside(self, at: int, size: int, number: int) -> bool:
        """Returns whether these bytes lie inside a record other than `number`, by the index."""
        around = int(np.searchsorted(self._offsets, at, side="right")) - 1
        return around not in (-1, number) and at + size <= int(self._offsets[around] + self._sizes[around])

    def _followed(self, at: int, size: int, number: int) -> bool:
        """Returns whether the next record, or the end of the file, directly follows record `number`."""
        stop = at + size
        return stop == self._reader.size if number + 1 == self.count else self._header_is(stop, number + 1)

    def _header_is(self, at: int, number: int) -> bool:
        return self._reader.peek(at, HEADER_BYTES) == record_header(int(self._sizes[number]) - FRAME_BYTES)
