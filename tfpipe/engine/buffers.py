"""Memory for batches, which is reused once no array in it is referenced any more.

The C library frees blocks of more than 32 MB at once, and the system zeroes each page of a new one: 80 us an image.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_LEAST_BYTES = 1 << 20  # the C library itself reuses smaller blocks
_MOST_BLOCKS = 3  # unused blocks that are kept: more are rarely free at once
_ALIGNMENT = 64  # bytes: TensorFlow and JAX copy arrays of a smaller alignment

# Its methods are safe from any thread, also within a garbage collection. A block too many drops the oldest one.
_unused: deque[NDArray[np.uint8]] = deque(maxlen=_MOST_BLOCKS)


def allocate(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Returns a C-order array of unknown content, aligned to 64 bytes; its memory is reused once no view is left."""
    num_bytes = prod(shape) * np.dtype(dtype).itemsize
    size, is_large = num_bytes + _ALIGNMENT, num_bytes >= _LEAST_BYTES
    memory: NDArray[np.uint8] | None = None
    for _ in range(len(_unused) if is_large else 0):
        with suppress(IndexError):  # another thread was faster
            memory = _unused.popleft()
            if len(memory) == size:
                break
            _unused.append(memory)
    else:
        memory = np.empty(size, np.uint8)
    assert memory is not None
    # From a memoryview, so that NumPy makes this array, and not `memory`, the base of all views.
    begin = -memory.ctypes.data % _ALIGNMENT
    array: NDArray[Any] = np.frombuffer(memory.data[begin : begin + num_bytes], dtype)
    if is_large:
        weakref.finalize(array, _unused.append, memory).atexit = False
    return array.reshape(shape)
