"""Memory for batches, which is used again once nobody holds the arrays in it.

The C library gives blocks of more than 32 MB back at once, and the system clears each page anew: 80 us an image.
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

_LEAST_BYTES = 1 << 20  # smaller blocks are used again by the C library
_MOST_BLOCKS = 3  # that nobody uses: more batches are rarely free at once
_ALIGNMENT = 64  # TensorFlow and JAX copy what is aligned less

_unused: deque[NDArray[np.uint8]] = deque()  # its methods are safe from any thread, also within a garbage collection


def allocate(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Returns an array in C order, aligned to 64 bytes, of unknown content; its views keep it from being used again."""
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
    # The array is the base of all of its views, because a memoryview is its own.
    begin = -memory.ctypes.data % _ALIGNMENT
    array: NDArray[Any] = np.frombuffer(memory.data[begin : begin + num_bytes], dtype)
    if is_large:
        weakref.finalize(array, _give_back, memory).atexit = False
    return array.reshape(shape)


def _give_back(memory: NDArray[np.uint8]) -> None:
    _unused.append(memory)
    while len(_unused) > _MOST_BLOCKS:
        with suppress(IndexError):  # another thread was faster
            _unused.popleft()
