"""Finds the offset at which reading resumes in a damaged file, from the bytes alone.

If the length in the damaged record's header holds and leads to a header or to the end of the file, reading resumes
there. Else it resumes at the next header whose checksum holds and which another header, the end of the file, or its
payload's checksum confirms: by chance 1 in 2**64. That may be a record inside the payload of a record that has lost its
header. With an index `scan.py` tells the two apart, and finds all intact records.
"""

from typing import Literal, NamedTuple

import google_crc32c

from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.header_search import iterate_headers
from tfpipe.format.tfrecord import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, decode_header, mask_crc

FrameDamage = Literal["length_crc", "payload_crc", "truncated", "garbage", "missing"]

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
        length, size = self.length_at(at), self._reader.size
        if length is not None and self.goes_on_at(at + length + FRAME_BYTES):
            stop = at + length + FRAME_BYTES
        else:
            headers = iterate_headers(self._reader, at + 1, size)
            stop = next((place for place, length in headers if self._is_confirmed(place, length)), size)
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

    def _is_confirmed(self, at: int, length: int) -> bool:
        """Returns whether a following header, the end of the file or the payload confirms the header at `at`."""
        return self.goes_on_at(at + length + FRAME_BYTES) or self.payload_holds(at, length)

    def _crc(self, offset: int, size: int) -> int:
        stop, crc = offset + size, 0
        while offset < stop:
            data = self._reader.peek(offset, min(1 << 20, stop - offset))
            crc = google_crc32c.extend(crc, data)
            offset += len(data)
        return crc
