"""Reads, checks and parses many records of TFRecord files at once, in calls that release Python's lock.

Tables are arrays of int64 in C order.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.native import library

NOTHING, TEXTS, FLOATS, INTS = range(4)
"""The kinds of a feature."""


class Examples(NamedTuple):
    """The features of several Examples, one after the other."""

    num_features: NDArray[np.int64]  # int64 [examples]; -1 if it is damaged or of an unusual form
    keys: NDArray[np.int64]  # int64 [keys, 2]: start and size of each distinct key in the block; need not be UTF-8
    features: NDArray[np.int64]  # int64 [features, 4]: row in `keys`, kind, first index in `values[kind]`, count
    values: dict[int, NDArray[Any]]  # float32 [floats], int64 [ints], and int64 [texts, 2]: start and size in the block


class _Examples(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("num_keys", "num_features", "num_texts", "num_ints", "num_floats")),
        *((name, ctypes.c_void_p) for name in ("keys", "features", "texts", "ints", "floats")),
    )


def masked_crc32c(data: Any, by_tables: bool = False) -> int:
    """Returns the checksum that TFRecord files use: a CRC32C, rotated, plus a constant."""
    view = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    result: int = library.load().tfpipe_masked_crc32c(view.ctypes.data, len(view), by_tables)
    return result


def read_records(spans: Any, frames: Any, block: Any) -> NDArray[np.bool_]:
    """Reads byte ranges of files into one block of memory, and checks the records in the block.

    Many ranges are requested before the first is awaited. Bytes that cannot be read become zeros. A span is an open
    file's descriptor, the offset in the file, the size, and the offset in the block; a frame is the offset of a record
    in the block, and its size with its framing. Returns for each record whether length and checksums hold: bool [n].
    """
    (span_rows, span_memory), (frame_rows, frame_memory) = _get_table(spans, 4), _get_table(frames, 2)
    whole = np.zeros(frame_rows, np.bool_)
    tables = (span_memory, span_rows, frame_memory, frame_rows)
    _check(library.load().tfpipe_read_records(*tables, *_get_block(block), _get_memory(whole.data)))
    return whole


def parse_examples(block: Any, payloads: Any) -> Examples:
    """Finds the features of serialized `tf.train.Example`s.

    A valid Example in a form that writers do not use, such as with unpacked numbers, is marked like a damaged one; the
    caller must parse it. `payloads` has the offset in the block and the size of each Example: int64 [examples, 2].
    """
    rows, memory = _get_table(payloads, 2)
    num_features, out = np.empty(rows, np.int64), _Examples()
    counts = _get_memory(num_features.data)
    _check(library.load().tfpipe_parse_examples(*_get_block(block), memory, rows, ctypes.byref(out), counts))
    try:
        return Examples(
            num_features=num_features,
            keys=_copy(out.keys, (out.num_keys, 2)),
            features=_copy(out.features, (out.num_features, 4)),
            values={
                TEXTS: _copy(out.texts, (out.num_texts, 2)),
                FLOATS: _copy(out.floats, (out.num_floats,), np.float32),
                INTS: _copy(out.ints, (out.num_ints,)),
            },
        )
    finally:
        library.load().tfpipe_free_examples(ctypes.byref(out))


def _get_table(table: Any, columns: int) -> tuple[int, Any]:
    """Checks the shape of a table, and returns its number of rows and a pointer to its memory."""
    view = memoryview(table)
    shape = view.shape or ()
    if len(shape) != 2 or shape[1] != columns or view.itemsize != 8 or not view.c_contiguous or view.readonly:
        raise ValueError(f"A table must be writable int64 [rows, {columns}] in C order, got {shape}.")
    return shape[0], _get_memory(view)


def _get_block(block: Any) -> tuple[Any, int]:
    """Returns a pointer to a block's memory, and its size in bytes."""
    view = memoryview(block)
    if view.readonly or not view.c_contiguous:
        raise ValueError("The block must be writable and in one piece.")
    return _get_memory(view), view.nbytes


def _get_memory(view: memoryview) -> Any:
    """Returns a ctypes pointer that keeps the memory alive. A ctypes array would need a new type for each size."""
    return ctypes.byref(ctypes.c_char.from_buffer(view)) if view.nbytes else None


def _copy(address: int | None, shape: tuple[int, ...], dtype: Any = np.int64) -> NDArray[Any]:
    made = np.empty(shape, dtype)
    if address is not None:
        ctypes.memmove(made.ctypes.data, address, made.nbytes)
    return made


def _check(result: int) -> None:
    if result == library.NO_MEMORY:
        raise MemoryError("The native library got no memory for the features of records.")
    if result:
        raise ValueError("A span leaves the block.")
