"""Finds the offset at which reading resumes in a damaged file, from the bytes alone.

Two things tell for sure where a record begins:

- **What is left of the damaged frame.** The length gives its checksum, and the checksum gives the length
  (`length_by_crc`). The length is right if it leads to a payload with a right checksum, to a header, or to the end of
  the file. The probability that this happens by chance is 1 in 2**32.
- **A search** for the next header whose checksum holds, and whose payload's checksum holds too or which another header
  follows: 1 in 2**64. But a payload may hold whole records, when a TFRecord file is among the data. So a run of records
  that begins inside a damaged record and breaks off inside it counts as a part of that record. The same holds for
  everything before an offset where the bytes since the damage end with their own checksum: those bytes are the payload
  of a record that has lost its header.

So no record is invented, and intact records are found again. Only records between two places of damage that both lie
inside the extent of one record can be missed. With an index `scan.py` finds those too.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import google_crc32c

from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.header_search import iterate_headers, length_by_crc
from tfpipe.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, decode_header, mask_crc

FrameDamage = Literal["length_crc", "payload_crc", "truncated", "garbage", "missing"]

_ENCLOSED_BYTES = 8 << 20  # how far the search for a payload without a header goes
_MAX_REREAD = 4  # hostile headers can make a search read at most this many times the file's size, plus the next line
_MIN_REREAD_BYTES = 256 << 20


class Damage(NamedTuple):
    """A place where an intact record should be and is not.

    Attributes:
        number: The number of the damaged record. If the bytes belong to no record, the number of the next one.
        offset: The offset at which the record begins, or would have begun.
        size: The number of bytes until reading resumes; 0 if nothing is left of the record.
        kind: The kind of damage.
        detail: The end of a sentence that says what is wrong.
    """

    number: int
    offset: int
    size: int
    kind: FrameDamage
    detail: str


class Search:
    """The search for the offset at which reading resumes, from the bytes alone."""

    def __init__(self, reader: HashedReader) -> None:
        self._reader = reader
        self._left = _MAX_REREAD * reader.size + _MIN_REREAD_BYTES

    def resume(self, at: int, number: int) -> tuple[list[Damage], int, int]:
        """Returns what is damaged at `at`, the offset where reading resumes, and the number of the record there."""
        reader = self._reader
        length = self.length_at(at)
        stop = self._proven_end(at, length)
        if stop is not None:
            stop = self._find_run_to(at, stop)
            return [self.describe(number, at, stop - at)], stop, number + 1
        if reader.size - at < HEADER_BYTES:
            detail = f"{reader.size - at} of {HEADER_BYTES} header bytes are there"
            return [Damage(number, at, reader.size - at, "truncated", detail)], reader.size, number + 1
        if length is None:
            stop, enclosed = self._after_lost_header(at)
            if enclosed:
                return [self.describe(number, at, stop - at)], stop, number + 1
            detail = f"{stop - at:,} bytes in which no record can be made out"
            return [Damage(number, at, stop - at, "garbage", detail)], stop, number
        stop = self._after_payload(at, at + length + FRAME_BYTES)
        return [self.describe(number, at, stop - at)], stop, number + 1

    def describe(self, number: int, at: int, size: int) -> Damage:
        """Describes the damage of a record that begins at `at` and takes up `size` bytes now."""
        length, left = self.length_at(at), self._reader.size - at
        if length is None:
            if left < HEADER_BYTES:
                return Damage(number, at, size, "truncated", f"{left} of {HEADER_BYTES} header bytes are there")
            return Damage(number, at, size, "length_crc", "the checksum of its length is wrong")
        if length > left - FRAME_BYTES and at + size >= self._reader.size:
            detail = f"it has {length:,} bytes of payload, {max(left - FRAME_BYTES, 0):,} are there"
            return Damage(number, at, size, "truncated", detail)
        detail = f"the checksum of its {length:,} bytes of payload is wrong"
        if size != length + FRAME_BYTES:
            detail += f", and the next record begins {size:,} bytes on, not {length + FRAME_BYTES:,}"
        return Damage(number, at, size, "payload_crc", detail)

    def length_at(self, at: int) -> int | None:
        """Returns the length in the header at `at`, or None if its checksum does not hold."""
        header = self._reader.peek(at, HEADER_BYTES)
        return decode_header(header) if len(header) == HEADER_BYTES else None

    def payload_holds(self, at: int, length: int) -> bool:
        """Returns whether the payload of that length, after a header at `at`, has a right checksum."""
        end = at + HEADER_BYTES + length
        if end + FOOTER_BYTES > self._reader.size:
            return False
        self._left -= length
        if self._left < 0:  # the file was made to be searched forever; from now on only a following header counts
            return False
        footer = int.from_bytes(self._reader.peek(end, FOOTER_BYTES), "little")
        return mask_crc(self._crc(at + HEADER_BYTES, length)) == footer

    def goes_on_at(self, stop: int) -> bool:
        """Returns whether a header stands at `stop`, or the file ends there."""
        return stop == self._reader.size or (stop < self._reader.size and self.length_at(stop) is not None)

    def convinces(self, at: int, length: int) -> bool:
        """Returns whether a following header or the payload's checksum confirms the header at `at`."""
        return self.goes_on_at(at + length + FRAME_BYTES) or self.payload_holds(at, length)

    def _proven_end(self, at: int, length: int | None, look_on: bool = True) -> int | None:
        """Returns the offset where the damaged record at `at` ends, or None if the rest of it does not tell."""
        reader = self._reader
        if at == reader.size:
            return at
        if length is not None:
            stop = at + length + FRAME_BYTES
            if stop > reader.size:
                return None
            if self.goes_on_at(stop):
                return stop
            # Both this payload and the next header may be damaged, as by a block of zeros.
            return stop if look_on and self._proven_end(stop, None, look_on=False) is not None else None
        header = reader.peek(at, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        lengths = int.from_bytes(header[:8], "little"), length_by_crc(int.from_bytes(header[8:], "little"))
        fitting = [length for length in lengths if at + length + FRAME_BYTES <= reader.size]
        # The payload's checksum first: a wrong length may lead to the header of a record inside the payload.
        for holds in (self.payload_holds, self._leads_to_header):
            for length in fitting:
                if holds(at, length):
                    return at + length + FRAME_BYTES
        return None

    def _leads_to_header(self, at: int, length: int) -> bool:
        return length > 0 and self.goes_on_at(at + length + FRAME_BYTES)

    def _find_run_to(self, at: int, stop: int) -> int:
        """Returns where the records begin that fill the end of a damaged record up to `stop`; else `stop`.

        Such records are no part of its payload, because its footer would have to stand behind them. They stand there if
        as many bytes were removed as some whole records have, from inside one record to inside another.
        """
        begin = at + 1
        while (place := self._next_header(begin, stop)) is not None:
            *_, end = self._run(place, stop)
            if end == stop:
                return place
            begin = max(end, place + 1)
        return stop

    def _after_payload(self, at: int, claimed: int) -> int:
        """Returns the offset where reading resumes after a record whose header claims the wrong end, `claimed`."""
        begin, size = at + 1, self._reader.size
        while (place := self._next_header(begin)) is not None:
            if place >= claimed:
                return place
            *_, begin = self._run(place, min(claimed, size))
            if begin >= min(claimed, size) and self._is_record(begin):
                return place
        return size

    def _is_record(self, at: int) -> bool:
        """Returns whether an intact record, a record of known extent, or the end of the file is at `at`."""
        length = self.length_at(at)
        return self._proven_end(at, length) is not None or (length is not None and self.payload_holds(at, length))

    def _after_lost_header(self, at: int) -> tuple[int, bool]:
        """Returns the offset where reading resumes after a lost header, and whether one whole payload lies between."""
        reader, begin, crc, upto = self._reader, at + 1, 0, at + HEADER_BYTES
        limit = min(reader.size, at + _ENCLOSED_BYTES)
        first = None
        while begin < limit and (place := self._next_header(begin)) is not None:
            first = place if first is None else first
            for begin in self._run(place, limit):
                if begin - FOOTER_BYTES < upto:
                    continue
                crc, upto = self._crc(upto, begin - FOOTER_BYTES - upto, crc), begin - FOOTER_BYTES
                if mask_crc(crc) == int.from_bytes(reader.peek(upto, FOOTER_BYTES), "little"):
                    return begin, True
            begin = max(begin, place + 1)
        if first is None and begin < reader.size:
            first = self._next_header(begin)
        if reader.size <= limit and reader.size - FOOTER_BYTES >= upto:
            crc = self._crc(upto, reader.size - FOOTER_BYTES - upto, crc)
            if mask_crc(crc) == int.from_bytes(reader.peek(reader.size - FOOTER_BYTES, FOOTER_BYTES), "little"):
                return reader.size, True
        return (reader.size if first is None else first), False

    def _run(self, at: int, limit: int) -> Iterator[int]:
        """Yields the ends of records that follow each other from `at` on, up to the first end at `limit` or beyond."""
        yield at
        while at < limit and (length := self.length_at(at)) is not None and self.convinces(at, length):
            at += length + FRAME_BYTES
            yield at

    def _next_header(self, begin: int, end: int | None = None) -> int | None:
        headers = iterate_headers(self._reader, begin, self._reader.size if end is None else end)
        return next((place for place, length in headers if self.convinces(place, length)), None)

    def _crc(self, offset: int, size: int, crc: int = 0) -> int:
        stop = offset + size
        while offset < stop:
            data = self._reader.peek(offset, min(1 << 20, stop - offset))
            crc = google_crc32c.extend(crc, data)
            offset += len(data)
        return crc
