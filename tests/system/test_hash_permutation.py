"""The hash and the permutations that every order rests on."""

import numpy as np
import pytest

from tests.engine.test_order import chi_square
from tfpipe.system.hash_permutation import GAMMA, find_indices, hash_numbers, key_of, permute


def test_the_hash_is_splitmix64():
    published = [  # of the state 1234567
        *(6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821)
    ]
    assert [key_of(1234567 + k * GAMMA) for k in range(5)] == published
    assert hash_numbers(1234567, np.arange(1, 6)).tolist() == [number >> 1 for number in published]
    assert [key_of(key) >> 1 for key in (0, 2**64 - 1)] == [hash_numbers(key, np.ones(1))[0] for key in (0, 2**64 - 1)]


@pytest.mark.parametrize("size", [1, 2, 1024, 1025, 5000])
def test_places_are_the_inverse(size: int):
    numbers = np.arange(size)
    assert find_indices(7, size, permute(7, size, numbers)).tolist() == numbers.tolist()
    assert permute(7, size, find_indices(7, size, numbers)).tolist() == numbers.tolist()


def test_places_of_a_large_permutation_are_random():
    drawn = np.array([permute(key_of(key), 1500, np.arange(1500)) for key in range(300)])
    assert all(len(set(one)) == 1500 for one in drawn.tolist())
    for place in (0, 1, 749, 1499):
        assert chi_square(np.bincount(drawn[:, place] // 150, minlength=10)) < 27.9  # 9 degrees of freedom
    neighbors = (drawn[:, 1:] - drawn[:, :-1]) % 1500  # as far apart as any two
    assert chi_square(np.bincount(neighbors.ravel() // 150, minlength=10)) < 27.9
