"""The order inside the graph is the order of `tfpipe.order`, bit by bit."""

import random

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.pipeline.stages import _order_ops
from tfpipe.system.hash_permutation import key_of, permutation

CASES = [
    ExactOrder((12, 0, 5, 31), seed=7, num_streams=2, run_records=4, window_records=8),
    ExactOrder((3,), seed=-1, num_streams=1, run_records=16, window_records=512),
    ExactOrder((100, 37, 64), seed=2**63 + 11, num_streams=8, run_records=5, window_records=7),
    ExactOrder((1000,) * 3, seed=0, num_streams=4, run_records=1, window_records=300),
]
NUMBER = tf.TensorSpec([], tf.int64)


@pytest.mark.parametrize("order", CASES, ids=str)
def test_windows_and_permutations_are_those_of_the_order(order: ExactOrder) -> None:
    streams = range(order.num_streams // 2, order.num_streams) if order.num_streams > 1 else range(1)

    @tf.function(input_signature=[NUMBER, NUMBER])  # as `tf.data` runs it: traced
    def read(epoch, window):
        sequence = _order_ops.make_epoch_runs(order, epoch)
        runs = _order_ops.make_window_runs(order, sequence, streams, window)
        return tf.stack(runs, axis=1), _order_ops.make_window_permutations(order, epoch, streams, window)

    for epoch in (0, 1, 12345678901):
        for window in {0, 1 % order.num_windows, order.num_windows - 1}:
            runs, permutations = read(epoch, window)
            expected = np.concatenate([order.window_runs(epoch, stream, window) for stream in streams])
            np.testing.assert_array_equal(runs, expected)
            expected = np.stack([order.window_permutation(epoch, stream, window) for stream in streams])
            np.testing.assert_array_equal(permutations, expected)


def test_keys_and_permutations_for_random_parts() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(5):
        first = draw.randrange(-(2**63), 2**63)

        @tf.function(input_signature=[NUMBER, NUMBER])
        def extend(second, third, first=first):
            return _order_ops.extend_key(key_of(first), second, third)

        for _ in range(10):
            second, third = (draw.randrange(-(2**63), 2**63) for _ in range(2))
            key = extend(second, third)
            assert int(key) == key_of(first, second, third)
            size = draw.randrange(1, 2000)
            np.testing.assert_array_equal(_order_ops.make_permutations(key, size), permutation(int(key), size))


def test_a_seed_of_each_record_and_epoch() -> None:
    seeds = _order_ops.make_seeds(5, tf.constant(3, tf.int64), tf.range(1000, dtype=tf.int64))
    assert seeds.shape == (1000, 2)
    assert seeds.dtype == tf.int32
    assert len({tuple(seed) for seed in seeds.numpy()}) == 1000
    one = _order_ops.make_seeds(5, tf.constant(3, tf.int64), tf.constant(17, tf.int64))
    np.testing.assert_array_equal(one, seeds[17])
    other = _order_ops.make_seeds(5, tf.constant(4, tf.int64), tf.constant(17, tf.int64))
    assert one.numpy().tolist() != other.numpy().tolist()
