"""Hashes millions of names, and reads the sizes of files, in calls that release Python's lock."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.native import library

NO_FILE, NOT_REGULAR = -1, -2
"""The sizes that `read_sizes` returns for a missing file, and for a path that is not a regular file."""


def hash_texts(texts: Any, offsets: NDArray[np.int64], key: bytes) -> NDArray[np.uint64]:
    """Returns the keyed BLAKE2b hash of each text: 8 bytes, read as a little-endian number.

    `texts` is a buffer, and `offsets` has the start of each text in it and the end of the last one.
    """
    data = np.frombuffer(texts, np.uint8) if texts is not None and len(texts) else np.empty(0, np.uint8)
    hashes = np.empty(len(offsets) - 1, np.uint64)
    addresses = data.ctypes.data, offsets.ctypes.data
    library.load().tfpipe_hash_texts(*addresses, len(hashes), key, len(key), hashes.ctypes.data)
    return hashes


def read_sizes(folder: int, paths: Sequence[str]) -> NDArray[np.int64]:
    """Returns the size of each file, `NO_FILE` or `NOT_REGULAR`; paths are relative to the descriptor `folder`."""
    sizes = np.empty(len(paths), np.int64)
    names = "\0".join([*paths, ""]).encode("utf-8", "surrogateescape")
    library.load().tfpipe_read_sizes(folder, names, len(paths), sizes.ctypes.data)
    return sizes
