"""The hash that every order rests on."""

from tfpipe.system import hash_permutation
from tfpipe.system.hash_permutation import hashes


def test_the_hash_is_splitmix64():
    published = [  # of the state 1234567
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert hashes(1234567, 5).tolist() == published
    assert hash_permutation._mix(1234567) == published[0]
    assert [hash_permutation._mix(key) for key in (0, 2**64 - 1)] == [int(hashes(key, 1)[0]) for key in (0, 2**64 - 1)]
