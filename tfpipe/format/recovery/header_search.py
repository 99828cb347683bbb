"""Where record headers stand in bytes of any kind, by the checksum of their length; and a length by its checksum.

A header is 8 bytes of length and 4 of checksum. That a place in random bytes looks like one is a matter of 1 in 2**32:
about once in 4 GB, less often since the length must also fit in the file. So a header alone proves little, and whoever
resumes reading asks for more: `resync.py`.
"""

from collections.abc import Iterator
from functools import cache

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfpipe.format.recovery.hashed_reader import WINDOW_BYTES, Window
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, mask_crc, masked_crc32c, unmask_crc

_LENGTH_BYTES = 8
_FIRST_BYTES = 1 << 15
_ALL_ONES = 0xFFFFFFFF
_ZERO_LENGTH_CRC = masked_crc32c(bytes(_LENGTH_BYTES))


def iterate_headers(window: Window, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields place and length of every header from `begin` to `end` whose checksum holds and whose record fits.

    Takes some 5 ms a megabyte, of zeros 25, and memory for one window.
    """
    step = _FIRST_BYTES  # the next record is near, mostly
    while begin < end:
        data = window.peek(begin, min(step, end - begin) + HEADER_BYTES - 1)
        for at, length in find_headers(data, window.size):
            place = begin + at
            if place < end and place + length + FRAME_BYTES <= window.size:
                yield place, length
        begin, step = begin + step, min(2 * step, WINDOW_BYTES)


def find_headers(data: bytes, max_length: int) -> list[tuple[int, int]]:
    """Place and length of every header in `data` whose checksum holds and whose length is at most `max_length`.

    Few places hold a length that small, so the checksums of few are computed: by tables, since a CRC is linear. Zeroed
    bytes hold a length everywhere, but all the same one.
    """
    places = len(data) - HEADER_BYTES + 1
    if places <= 0:
        return []
    lengths = np.ndarray((places,), "<u8", data, strides=(1,))
    crcs = np.ndarray((places,), "<u4", data, _LENGTH_BYTES, strides=(1,))
    small = np.flatnonzero(lengths <= max_length)
    zero = lengths[small] == 0
    right = np.empty(small.size, bool)
    right[zero] = crcs[small[zero]] == _ZERO_LENGTH_CRC
    right[~zero] = crcs[small[~zero]] == _masked_crcs(lengths[small[~zero]])
    return [(at, int(lengths[at])) for at in small[right].tolist()]


def length_by_crc(masked: int) -> int:
    """The one length below 2**32 that has this checksum.

    A CRC of 32 bits takes every value once over all 32-bit messages; the zeros above them change nothing about that. So
    it can be run backwards, from its end over 8 zero bytes to the message in its beginning.
    """
    state = unmask_crc(masked) ^ _ALL_ONES
    table, by_top = _byte_table()
    for _ in range(_LENGTH_BYTES):
        index = by_top[state >> 24]
        state = ((state ^ table[index]) << 8 | index) & _ALL_ONES
    return state ^ _ALL_ONES


def _masked_crcs(lengths: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """The checksum of each length: that of zeros, changed by each byte in turn."""
    crcs = np.full(lengths.size, google_crc32c.value(bytes(_LENGTH_BYTES)), np.uint32)
    for k, table in enumerate(_position_tables()):
        crcs ^= table[(lengths >> np.uint64(8 * k) & np.uint64(255)).astype(np.uint8)]
    masked: NDArray[np.uint32] = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(mask_crc(0))
    return masked


@cache
def _position_tables() -> list[NDArray[np.uint32]]:
    """For each of the 8 bytes, how each of its values changes the checksum of zeros."""
    zeros = google_crc32c.value(bytes(_LENGTH_BYTES))
    tables = []
    for k in range(_LENGTH_BYTES):
        before, after = bytes(k), bytes(_LENGTH_BYTES - 1 - k)
        one = [google_crc32c.value(before + bytes((value,)) + after) ^ zeros for value in range(256)]
        tables.append(np.array(one, np.uint32))
    return tables


@cache
def _byte_table() -> tuple[list[int], list[int]]:
    """The CRC's table of 256 numbers, and the position of the one with each top byte."""
    table = [google_crc32c.value(bytes((255 - index,))) ^ 0xFF000000 for index in range(256)]
    by_top = [0] * 256
    for index, entry in enumerate(table):
        by_top[entry >> 24] = index
    return table, by_top
