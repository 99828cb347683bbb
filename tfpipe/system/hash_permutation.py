"""Keys, hashes and permutations that are the same on every machine and with every release of NumPy or TensorFlow.

A permutation sorts positions by a keyed hash. It does not use a library's random generator: the next release may
change its numbers, and then the position in a checkpoint would mean other records. The hash is SplitMix64 (Steele,
Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants of Vigna's splitmix64.c). It
is a bijection: no two hashes are equal, so every sorting method gives the same order. The pipeline's exact order
computes the same permutations in TensorFlow.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

GAMMA = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MASK = 2**64 - 1

# The first part of every key names the purpose of its numbers.
LEAD, RUNS, WINDOW, EXAMPLE, FILES, MIXTURE = range(1, 7)


def key_of(*parts: int) -> int:
    """Returns a key of 64 bits made from several numbers. A change of any number changes the key."""
    key = 0
    for part in parts:
        key = _mix(key ^ (part & _MASK))
    return key


def permutation(key: int, size: int) -> IntArray:
    """Returns the numbers from 0 to `size` - 1 in the order of their hashes: int64 [size]."""
    return np.asarray(np.argsort(hashes(key, size), kind="stable"), np.int64)


def hashes(key: int, size: int) -> npt.NDArray[np.uint64]:
    """Returns the first `size` outputs of SplitMix64 from the state `key`. Arithmetic of unsigned arrays wraps."""
    z = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(key)
    for shift, factor in ROUNDS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _mix(state: int) -> int:
    """Returns the first of `hashes` without NumPy, which is ten times as fast for a single number."""
    z = (state + GAMMA) & _MASK
    for shift, factor in ROUNDS:
        z = (z ^ (z >> shift)) * factor & _MASK
    return z ^ (z >> 31)
