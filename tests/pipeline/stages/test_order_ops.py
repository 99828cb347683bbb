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
    ExactOrder((1000,) * 3, seed=0, num_streams=4, run_records=1, window_records=300),  # too many runs to be sorted
    ExactOrder((2**40, 2**40 + 1), seed=5, num_streams=4, run_records=3, window_records=50),
]
NUMBER = tf.TensorSpec([], tf.int64)


@pytest.mark.parametrize("order", CASES, ids=str)
def test_records_and_windows_are_those_of_the_order(order: ExactOrder) -> None:
    streams = np.arange(order.num_streams)[:, None] * order.records_per_stream

    @tf.function(input_signature=[NUMBER, tf.TensorSpec([None, None], tf.int64)])  # as `tf.data` runs it: traced
    def compute(epoch: tf.Tensor, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        numbers = _order_ops.number_records(order, epoch, positions)
        return numbers, _order_ops.make_window_permutations(order, epoch, positions)

    for epoch in (0, 1, 12345678901):
        for window in {0, 1 % order.num_windows, order.num_windows - 1}:
            start = window * order.window_records
            positions = streams + np.arange(start, min(start + order.window_records, order.records_per_stream))
            numbers, permutations = compute(epoch, positions)
            np.testing.assert_array_equal(numbers, order.numbers(epoch, positions))
            expected = [order.window_permutation(epoch, stream, window) for stream in range(order.num_streams)]
            np.testing.assert_array_equal(permutations, np.stack(expected))


def test_the_end_of_an_epoch_is_a_short_run() -> None:
    order = ExactOrder((10,), seed=3, num_streams=1, run_records=4)
    numbers = _order_ops.number_records(order, tf.constant(2, tf.int64), tf.range(10, dtype=tf.int64))
    np.testing.assert_array_equal(numbers, order.numbers(2, np.arange(10)))
    assert sorted(numbers.numpy().tolist()) == list(range(10))


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
