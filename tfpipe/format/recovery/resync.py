"""Where reading resumes in a damaged file, by its bytes alone.

Two things say which place is a record's beginning for sure:

- **What is left of the damaged frame.** The length and its checksum each give the other (`length_by_crc`). The one
  that leads to a payload with its checksum, to a header or to the end of the file is right: 1 in 2**32 that chance did.
- **A search** for the next header whose checksum holds, and its payload's too or the header after it: 1 in 2**64. A
  payload may hold whole records, though, as a TFRecord file among the data. So a run of records that begins in a
  damaged one and breaks off inside it is taken for a part of it, and so is what lies before a place where the bytes
  since the damage end with their own checksum: they are the payload of a record that has lost its header.

So nothing is invented, and what is intact is found again. What can be missed are records that stand between two places
of damage, both inside the extent of one record; `scan.py` finds those too where there is an index.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import google_crc32c

from tfpipe.format.recovery.hashed_reader import Window
from tfpipe.format.recovery.header_search import iterate_headers, length_by_crc
from tfpipe.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, decode_header, mask_crc

FrameDamage = Literal["length_crc", "payload_crc", "truncated", "garbage", "missing"]

_ENCLOSED_BYTES = 8 << 20  # how far a payload without a header is looked for
_MAX_REREAD = 4  # times the file's size, and some MB: what hostile headers may make a search read
_MIN_REREAD_BYTES = 256 << 20


class Damage(NamedTuple):
    """A place where no intact record is, and should be."""

    number: int
    """Of the record that is damaged; of the next one, where bytes belong to none."""
    offset: int
    """Where it begins, or would have begun."""
    size: int
    """Bytes to where reading resumes; 0 where nothing is left of the record."""
    kind: FrameDamage
    detail: str


class Search:
    """Where reading resumes by the bytes alone."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._left = _MAX_REREAD * window.size + _MIN_REREAD_BYTES

    def resume(self, at: int, number: int) -> tuple[list[Damage], int, int]:
        """What is damaged at `at`, where reading resumes, and the number of the record there."""
        window = self._window
        length = self.length_at(at)
        stop = self._proven_end(at, length)
        if stop is not None:
            return [self.describe(number, at, stop - at)], stop, number + 1
        if window.size - at < HEADER_BYTES:
            detail = f"{window.size - at} of {HEADER_BYTES} header bytes are there"
            return [Damage(number, at, window.size - at, "truncated", detail)], window.size, number + 1
        if length is None:
            stop, enclosed = self._after_lost_header(at)
            if enclosed:
                return [self.describe(number, at, stop - at)], stop, number + 1
            detail = f"{stop - at:,} bytes in which no record can be made out"
            return [Damage(number, at, stop - at, "garbage", detail)], stop, number
        stop = self._after_payload(at, at + length + FRAME_BYTES)
        return [self.describe(number, at, stop - at)], stop, number + 1

    def describe(self, number: int, at: int, size: int) -> Damage:
        """The damage of a record that begins at `at` and takes up `size` bytes now."""
        length, left = self.length_at(at), self._window.size - at
        if length is None:
            if left < HEADER_BYTES:
                return Damage(number, at, size, "truncated", f"{left} of {HEADER_BYTES} header bytes are there")
            return Damage(number, at, size, "length_crc", "the checksum of its length is wrong")
        if length > left - FRAME_BYTES and at + size >= self._window.size:
            detail = f"it has {length:,} bytes of payload, {max(left - FRAME_BYTES, 0):,} are there"
            return Damage(number, at, size, "truncated", detail)
        detail = f"the checksum of its {length:,} bytes of payload is wrong"
        if size != length + FRAME_BYTES:
            detail += f", and the next record begins {size:,} bytes on, not {length + FRAME_BYTES:,}"
        return Damage(number, at, size, "payload_crc", detail)

    def length_at(self, at: int) -> int | None:
        """The length in the header at `at`, if its checksum holds."""
        header = self._window.peek(at, HEADER_BYTES)
        return decode_header(header) if len(header) == HEADER_BYTES else None

    def payload_holds(self, at: int, length: int) -> bool:
        """Whether a payload of that length, after a header at `at`, has its checksum."""
        end = at + HEADER_BYTES + length
        if end + FOOTER_BYTES > self._window.size:
            return False
        self._left -= length
        if self._left < 0:  # made to be searched for ever: from here on, only a header after it speaks for a record
            return False
        footer = int.from_bytes(self._window.peek(end, FOOTER_BYTES), "little")
        return mask_crc(self._crc(at + HEADER_BYTES, length)) == footer

    def goes_on_at(self, stop: int) -> bool:
        """Whether a header stands there, or the file ends."""
        return stop == self._window.size or (stop < self._window.size and self.length_at(stop) is not None)

    def convinces(self, at: int, length: int) -> bool:
        """Whether more than its own checksum speaks for a header."""
        return self.goes_on_at(at + length + FRAME_BYTES) or self.payload_holds(at, length)

    def _proven_end(self, at: int, length: int | None, look_on: bool = True) -> int | None:
        """Where the damaged record at `at` ends, if what is left of it tells."""
        window = self._window
        if at == window.size:
            return at
        if length is not None:
            stop = at + length + FRAME_BYTES
            if stop > window.size:
                return None
            if self.goes_on_at(stop):
                return stop
            # Both this payload and the next header may be damaged, as by a block of zeros.
            return stop if look_on and self._proven_end(stop, None, look_on=False) is not None else None
        header = window.peek(at, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        told = int.from_bytes(header[:8], "little"), length_by_crc(int.from_bytes(header[8:], "little"))
        for one in told:
            stop = at + one + FRAME_BYTES
            if stop <= window.size and ((one and self.goes_on_at(stop)) or self.payload_holds(at, one)):
                return stop
        return None

    def _after_payload(self, at: int, claimed: int) -> int:
        """Where reading resumes after a record whose header says that it ends at `claimed`, and that does not."""
        begin, size = at + 1, self._window.size
        while (place := self._next_header(begin)) is not None:
            if place >= claimed:
                return place
            *_, begin = self._run(place, min(claimed, size))
            if begin >= min(claimed, size) and self._is_record(begin):
                return place
        return size

    def _is_record(self, at: int) -> bool:
        """Whether a record begins there, intact or with its extent known; or the file ends."""
        length = self.length_at(at)
        return self._proven_end(at, length) is not None or (length is not None and self.payload_holds(at, length))

    def _after_lost_header(self, at: int) -> tuple[int, bool]:
        """Where reading resumes after a place without a header; and whether what lies between is one whole payload."""
        window, begin, crc, upto = self._window, at + 1, 0, at + HEADER_BYTES
        limit = min(window.size, at + _ENCLOSED_BYTES)
        first = None
        while begin < limit and (place := self._next_header(begin)) is not None:
            first = place if first is None else first
            for begin in self._run(place, limit):
                if begin - FOOTER_BYTES < upto:
                    continue
                crc, upto = self._crc(upto, begin - FOOTER_BYTES - upto, crc), begin - FOOTER_BYTES
                if mask_crc(crc) == int.from_bytes(window.peek(upto, FOOTER_BYTES), "little"):
                    return begin, True
            begin = max(begin, place + 1)
        if first is None and begin < window.size:
            first = self._next_header(begin)
        if window.size <= limit and window.size - FOOTER_BYTES >= upto:
            crc = self._crc(upto, window.size - FOOTER_BYTES - upto, crc)
            if mask_crc(crc) == int.from_bytes(window.peek(window.size - FOOTER_BYTES, FOOTER_BYTES), "little"):
                return window.size, True
        return (window.size if first is None else first), False

    def _run(self, at: int, limit: int) -> Iterator[int]:
        """The ends of records that follow each other from `at` on, up to the first one at `limit` or beyond."""
        yield at
        while at < limit and (length := self.length_at(at)) is not None and self.convinces(at, length):
            at += length + FRAME_BYTES
            yield at

    def _next_header(self, begin: int) -> int | None:
        headers = iterate_headers(self._window, begin, self._window.size)
        return next((place for place, length in headers if self.convinces(place, length)), None)

    def _crc(self, offset: int, size: int, crc: int = 0) -> int:
        stop = offset + size
        while offset < stop:
            data = self._window.peek(offset, min(1 << 20, stop - offset))
            crc = google_crc32c.extend(crc, data)
            offset += len(data)
        return crc
