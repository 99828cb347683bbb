"""The order inside the graph is the order of `tfpipe.order`, bit by bit."""

import random

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.pipeline.stages import _order_ops
from tfpipe.system.hash_permutation import key_of, permutation

CASES = [
    ExactOrder((12, 0, 5, 31), seed=7, num_streams=2, run_records=4, lanes=2),
    ExactOrder((3,), seed=-1, num_streams=1, run_records=16, lanes=4),
    ExactOrder((100, 37, 64), seed=2**63 + 11, num_streams=8, run_records=6, lanes=3, turn_records=2),
    ExactOrder((1000,) * 3, seed=0, num_streams=4, run_records=1),  # too many runs to be sorted
    ExactOrder((2**40, 2**40 + 1), seed=5, num_streams=4, run_records=3, lanes=50),
]
NUMBER = tf.TensorSpec([], tf.int64)


@pytest.mark.parametrize("order", CASES, ids=str)
def test_records_and_their_positions_are_those_of_the_order(order: ExactOrder) -> None:
    places = np.unique(np.linspace(0, order.records_per_stream - 1, 300).astype(np.int64))
    streams = np.arange(order.num_streams)[:, None]

    @tf.function(input_signature=[NUMBER])  # as `tf.data` runs it: traced
    def compute(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        positions = _order_ops.make_positions(order, tf.constant(streams), tf.constant(places)[None])
        return positions, _order_ops.number_records(order, epoch, positions) % order.num_records

    for epoch in (0, 1, 12345678901):
        positions, numbers = compute(epoch)
        expected = np.stack([order.positions(stream, places) for stream in range(order.num_streams)])
        np.testing.assert_array_equal(positions, expected)
        np.testing.assert_array_equal(numbers, order.numbers(epoch, expected))


@pytest.mark.parametrize("order", CASES[:3], ids=str)
def test_the_turns_of_a_lane_are_those_of_its_stream(order: ExactOrder) -> None:
    for lane in range(order.lanes):
        turns = np.arange(order.turns_per_lane)
        run, part = _order_ops.find_turns(order, tf.constant(lane, tf.int64), tf.constant(turns))
        positions = run.numpy() * order.run_records + part.numpy() * order.turn_records
        np.testing.assert_array_equal(positions, order.positions(0, (turns * order.lanes + lane) * order.turn_records))


def test_the_end_of_an_epoch_is_a_short_run() -> None:
    order = ExactOrder((10,), seed=3, num_streams=1, run_records=4)
    numbers = _order_ops.number_records(order, tf.constant(2, tf.int64), tf.range(10, dtype=tf.int64))
    np.testing.assert_array_equal(numbers % 10, order.numbers(2, np.arange(10)))
    assert sorted((numbers % 10).numpy().tolist()) == list(range(10))


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
