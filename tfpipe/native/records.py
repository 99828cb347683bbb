"""Reads, checks and parses many records of TFRecord files at once, in calls that release Python's lock.

Tables are arrays of int64 in C order.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.native import library
from tfpipe.native.library import get_memory

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
        ("addresses", ctypes.c_void_p * 5),  # of the keys, features, texts, ints and floats
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
    whole = np.zeros(len(frames), np.bool_)
    result = library.load().tfpipe_read_records(
        get_memory(spans, "spans", (len(spans), 4), 8),
        len(spans),
        get_memory(frames, "frames", (len(frames), 2), 8),
        len(frames),
        get_memory(block, "block", (len(block),), 1),
        len(block),
        get_memory(whole, "whole", (len(frames),), 1),
    )
    if result:
        raise _explain(result)
    return whole


def parse_examples(block: Any, payloads: Any) -> Examples:
    """Finds the features of serialized `tf.train.Example`s.

    A valid Example in a form that writers do not use, such as with unpacked numbers, is marked like a damaged one; the
    caller must parse it. `payloads` has the offset in the block and the size of each Example: int64 [examples, 2].
    """
    num_features, out = np.empty(len(payloads), np.int64), _Examples()
    memory = get_memory(block, "block", (len(block),), 1)
    table, counts = get_memory(payloads, "payloads", (len(payloads), 2), 8), num_features.ctypes.data
    arguments = memory, len(block), table, len(payloads), ctypes.byref(out), counts
    result = library.load().tfpipe_parse_examples(*arguments)
    if result:
        raise _explain(result)
    try:
        keys, features = np.empty((out.num_keys, 2), np.int64), np.empty((out.num_features, 4), np.int64)
        texts, ints = np.empty((out.num_texts, 2), np.int64), np.empty(out.num_ints, np.int64)
        floats = np.empty(out.num_floats, np.float32)
        for copy, address in zip((keys, features, texts, ints, floats), out.addresses, strict=True):
            if address is not None:
                ctypes.memmove(copy.ctypes.data, address, copy.nbytes)
    finally:
        library.load().tfpipe_free_examples(ctypes.byref(out))
    return Examples(num_features, keys, features, {TEXTS: texts, FLOATS: floats, INTS: ints})


def _explain(result: int) -> Exception:
    if result == library.NO_MEMORY:
        return MemoryError("The native library got no memory for the features of records.")
    return ValueError("A span leaves the block.")
