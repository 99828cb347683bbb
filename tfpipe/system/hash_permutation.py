"""Keys, hashes and permutations that are the same on every machine and with every release of a library.

A library's random generator may change, and a checkpoint would then resume at other records. The hash is SplitMix64
(Steele, Lea and Flood, OOPSLA 2014; constants of Vigna's splitmix64.c), a bijection.
"""

from math import isqrt

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

GAMMA = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
MAX_SORTED = 1024
"""The largest size for which `permute` sorts the numbers by hashes, which makes all orders equally likely."""
FEISTEL_ROUNDS = 6
_MASK = 2**64 - 1

# The first part of every key names the purpose of its numbers.
LEAD, RUNS, EXAMPLE, FILES, MIXTURE, CACHE, DROPOUT, WEIGHTS, SAMPLE = 1, 2, 4, 5, 6, 7, 8, 9, 10  # 3 is free


def key_of(*numbers: int) -> int:
    """Hashes several numbers to a key of 64 bits. A change of any number changes the key."""
    key = 0
    for number in numbers:  # as `_mix_array` does, without NumPy, which takes ten times as long for a single number
        z = ((key ^ number) + GAMMA) & _MASK
        for shift, factor in ROUNDS:
            z = (z ^ (z >> shift)) * factor & _MASK
        key = z ^ (z >> 31)
    return key


def make_seeds(seed: int, epoch: int, numbers: IntArray) -> npt.NDArray[np.int32]:
    """Makes the seed of each record in an epoch, int32 [n, 2]: the key of the seed, the epoch and the number."""
    keys = _mix_array((numbers.astype(np.uint64) ^ np.uint64(key_of(EXAMPLE, seed, epoch))) + np.uint64(GAMMA))
    return keys.astype("<u8").view("<i4").astype(np.int32).reshape(-1, 2)


def permutation(key: int, size: int) -> IntArray:
    """Returns the numbers from 0 to `size` - 1 in the order of their hashes: int64 [size].

    The hashes are the first outputs of SplitMix64 from the state `key`. Arithmetic of unsigned arrays wraps.
    """
    hashes = _mix_array(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(key))
    return np.asarray(np.argsort(hashes, kind="stable"), np.int64)


def permute(key: int, size: int, indices: IntArray) -> IntArray:
    """Returns the elements at `indices` of a keyed permutation of 0 to `size` - 1: int64 of their shape.

    Up to `MAX_SORTED` numbers are sorted by their hashes. More go through a Feistel network over pairs of numbers
    (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002): 0.4 us an index, whatever the size.
    """
    if size <= MAX_SORTED:
        sorted_numbers: IntArray = permutation(key, size)[indices]
        return sorted_numbers
    return _walk(key, size, indices, is_inverse=False)


def find_indices(key: int, size: int, numbers: IntArray) -> IntArray:
    """Returns the indices of numbers in a keyed permutation, int64: the inverse of `permute`."""
    if size <= MAX_SORTED:
        indices: IntArray = np.argsort(permutation(key, size), kind="stable")[numbers]
        return indices
    return _walk(key, size, numbers, is_inverse=True)


def _walk(key: int, size: int, numbers: IntArray, is_inverse: bool) -> IntArray:
    """Returns the numbers encrypted by the Feistel network, or decrypted, within 0 to `size` - 1."""
    found: IntArray = numbers.copy()
    side = isqrt(size - 1) + 1  # the smallest whole number whose square is at least `size`
    round_keys = [key_of(key ^ index) for index in range(FEISTEL_ROUNDS)]
    outside = np.ones(numbers.shape, bool)
    # There are a few more pairs than numbers. A result that is too large goes through the network again, until it is
    # small enough ("cycle walking"): the mapping stays a bijection.
    while outside.any():
        left, right = np.divmod(found[outside], side)
        for round_key in reversed(round_keys) if is_inverse else round_keys:
            if is_inverse:
                left, right = (right - hash_numbers(round_key, left)) % side, left
            else:
                left, right = right, (left + hash_numbers(round_key, right)) % side
        found[outside] = left * side + right
        outside = found >= size
    return found


def hash_numbers(key: int, numbers: IntArray) -> IntArray:
    """Hashes numbers to 63 bits: int64 of their shape, never negative."""
    mixed = _mix_array(numbers.astype(np.uint64) * np.uint64(GAMMA) + np.uint64(key))
    return np.asarray(mixed >> np.uint64(1), np.int64)


def _mix_array(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mixes bits by the finishing rounds of SplitMix64."""
    for shift, factor in ROUNDS:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(z ^ (z >> np.uint64(31)))
