"""Keys, hashes and permutations that are the same on every machine and with every release of NumPy or TensorFlow.

A permutation sorts positions by a keyed hash, since a library's next release may change what its random generator
gives: then a checkpoint's position would mean other records. The hash is that of SplitMix64 (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", OOPSLA 2014; constants of Vigna's splitmix64.c), a bijection: no
two hashes are equal, so every sorting method agrees. `tfpipe.pipeline.stages._order_ops` does the same in TensorFlow.
"""

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

GAMMA = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_MASK = 2**64 - 1

# First part of every key: what is drawn with it.
LEAD, RUNS, WINDOW, EXAMPLE, FILES, MIXTURE = range(1, 7)


def key_of(*parts: int) -> int:
    """A key of 64 bits out of several numbers; any change of one gives another."""
    key = 0
    for part in parts:
        key = _mix(key ^ (part & _MASK))
    return key


def permutation(key: int, size: int) -> IntArray:
    """The numbers below `size` in the order of their hashes: int64 [size]."""
    return np.asarray(np.argsort(hashes(key, size), kind="stable"), np.int64)


def hashes(key: int, size: int) -> npt.NDArray[np.uint64]:
    """The first outputs of SplitMix64 from the state `key`; arithmetic of unsigned arrays wraps."""
    z = np.arange(1, size + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(key)
    for shift, factor in ROUNDS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _mix(state: int) -> int:
    """The first of `hashes`, without NumPy: for a single number ten times as fast."""
    z = (state + GAMMA) & _MASK
    for shift, factor in ROUNDS:
        z = (z ^ (z >> shift)) * factor & _MASK
    return z ^ (z >> 31)
