"""Protobuf's wire format, as far as an Example needs it. Memory is taken only for values within the given bounds."""

from array import array
from collections.abc import Iterator

import numpy as np

from tfpipe.errors import FormatError
from tfpipe.system.budget import FIELDS, Budget, OverBudget

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""The wire types of protobuf, which tell how the value after a tag is encoded."""

_SMALL_RUN = 16  # below this many bytes a Python loop beats NumPy's fixed cost
_CHUNK_BYTES = 1 << 16  # bytes of packed varints decoded at once, which bounds the index arrays
_INT64_MAX = 2**63 - 1
_BYTE = tuple(bytes((i,)) for i in range(128))


def varint(value: int) -> bytes:
    """Encodes a number from 0 to 2**64 - 1 with seven bits a byte, lowest first."""
    if value < 128:
        return _BYTE[value]
    if value < 1 << 14:
        return bytes((value & 127 | 128, value >> 7))
    if value < 1 << 21:  # as most lengths are
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(buffer: bytes, pos: int, end: int, budget: Budget) -> Iterator[tuple[int, int, int, int]]:
    """Yields the number, the wire type, and the start and stop of the value of each field of one message."""
    while pos < end:
        try:
            budget.take(items=1)
        except OverBudget:
            raise wire_error(f"it has more than {FIELDS.items:,} fields", pos) from None
        tag, start = read_varint(buffer, pos, end, 5)
        field, wire = tag >> 3, tag & 7
        if not field or tag >= 2**32:
            raise wire_error(f"field number {field} does not exist", pos)
        if wire == LENGTH:
            size, start = read_varint(buffer, start, end, 10)
            stop = start + size
        elif wire == VARINT:
            _, stop = read_varint(buffer, start, end, 10)
        elif wire in (FIXED32, FIXED64):
            stop = start + (4 if wire == FIXED32 else 8)
        else:  # 3 and 4 are groups, which protobuf gave up before there were Examples
            raise wire_error(f"field {field} has wire type {wire}, which no Example has", pos)
        if stop > end:
            raise wire_error(f"field {field} says it has {stop - start} bytes, but {end - start} are left", pos)
        yield field, wire, start, stop
        pos = stop


def read_varint(buffer: bytes, pos: int, end: int, max_bytes: int) -> tuple[int, int]:
    """Returns the number at `pos` and the position after it."""
    if pos < end and buffer[pos] < 128:
        return buffer[pos], pos + 1
    value = 0
    for k in range(max_bytes):
        if pos + k >= end:
            raise wire_error("an integer is cut off", end)
        byte = buffer[pos + k]
        value |= (byte & 127) << 7 * k
        if byte < 128:
            return value, pos + k + 1
    raise wire_error(f"an integer is longer than {max_bytes} bytes", pos)


def read_int64s(buffer: bytes, start: int, stop: int, out: "array[int]") -> None:
    """Appends the varints from `start` to `stop` to an int64 array."""
    if stop - start > _SMALL_RUN:
        _read_long_run(buffer, start, stop, out)
        return
    while start < stop:
        value, start = read_varint(buffer, start, stop, 10)
        value &= 2**64 - 1
        out.append(value - 2**64 if value > _INT64_MAX else value)


def _read_long_run(buffer: bytes, start: int, stop: int, out: "array[int]") -> None:
    """Appends packed varints, chunk by chunk with NumPy. A varint ends at the first byte below 128."""
    while start < stop:
        raw = np.frombuffer(buffer, np.uint8, min(_CHUNK_BYTES, stop - start), start)
        ends = np.flatnonzero(raw < 128)
        if not ends.size or (start + raw.size == stop and ends[-1] != raw.size - 1):
            raise wire_error("an integer is cut off", stop)
        starts = np.concatenate(([0], ends[:-1] + 1))
        lengths = ends - starts + 1
        if lengths.max() > 10:
            raise wire_error("an integer is longer than 10 bytes", start + int(starts[lengths.argmax()]))
        values = np.zeros(ends.size, np.uint64)
        for k in range(int(lengths.max())):
            rows = lengths > k
            values[rows] |= (raw[starts[rows] + k] & 127).astype(np.uint64) << np.uint64(7 * k)
        out.frombytes(values.tobytes())
        start += int(ends[-1]) + 1


def expect(good: bool, name: str, wire: int, offset: int) -> None:
    """Raises `FormatError` unless a known field has its wire type."""
    if not good:
        raise wire_error(f"{name} has wire type {wire}", offset)


def wire_error(what: str, offset: int) -> FormatError:
    """Returns the error for bytes that are not a valid Example, with their offset."""
    return FormatError(f"Not a tf.train.Example: {what}, at byte {offset}.")
