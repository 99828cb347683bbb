"""`tfpipe.order` as TensorFlow operations: the same numbers, computed inside the `tf.data` graph.

A pipeline that asked Python for its order could not run in a remote host's input pipeline or in a tf.data service,
and would hold Python's lock in the middle of training. So hashes, permutations and cuts are done here once more,
with 64-bit unsigned arithmetic, which wraps in TensorFlow as it does in NumPy. Every function gives what `ExactOrder`
gives, bit by bit; `tests/pipeline/stages/test_order_ops.py` compares the two.

The numbers of 4,096 records take about 1 ms of one core.
"""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.system.hash_permutation import (
    EXAMPLE,
    FEISTEL_ROUNDS,
    GAMMA,
    LEAD,
    MAX_SORTED,
    ROUNDS,
    RUNS,
    key_of,
    square_side,
)


def extend_key(key: tf.Tensor | int, *parts: tf.Tensor) -> tf.Tensor:
    """Extends a key by further parts, to what `key_of` gives for all of them.

    Args:
        key: The key of the first parts, from `key_of`: uint64, or a Python number.
        *parts: The further parts: int64 tensors of shapes that broadcast.

    Returns:
        uint64 of the broadcast shape.
    """
    result = key if isinstance(key, tf.Tensor) else _constant(key)
    for part in parts:
        result = _mix(tf.bitwise.bitwise_xor(result, tf.bitcast(part, tf.uint64)) + _constant(GAMMA))
    return result


def make_permutations(keys: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Makes a permutation of `size` numbers for each key: int64 of the keys' shape and one axis more."""
    counter = tf.bitcast(tf.range(1, tf.cast(size, tf.int64) + 1), tf.uint64)
    hashes = _mix(counter * _constant(GAMMA) + keys[..., None])
    # `top_k` gives the largest first. No two hashes are equal. Signed numbers would sort otherwise.
    return tf.cast(tf.math.top_k(tf.bitwise.invert(hashes), size).indices, tf.int64)


def make_seeds(seed: int, epoch: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """Computes the seed of records in one epoch, for stateless random numbers: int32 of their shape and [2]."""
    return tf.bitcast(extend_key(key_of(EXAMPLE, seed), epoch, record), tf.int32)


def number_records(order: ExactOrder, epoch: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Computes the records at positions of an epoch's sequence, as `ExactOrder.numbers` does.

    Returns:
        int64 of the shape of the positions. Numbers above `num_records` go on counting from the first record, so that
        those of a run rise by one.
    """
    return tf.ensure_shape(_build_numbering(order)(epoch, positions), positions.shape)


@functools.lru_cache(maxsize=16)
def _build_numbering(order: ExactOrder) -> Callable[..., tf.Tensor]:
    """Builds the graph of `_compute_numbers`, which a pipeline uses in three places: to copy it takes 50 ms each."""
    with tf.init_scope():
        function = tf.function(functools.partial(_compute_numbers, order), autograph=False)
        numbering: Callable[..., tf.Tensor] = function.get_concrete_function(
            tf.TensorSpec([], tf.int64), tf.TensorSpec(None, tf.int64)
        )
    return numbering


def _compute_numbers(order: ExactOrder, epoch: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    whole_runs = order.num_records // order.run_records
    run, place = positions // order.run_records, positions % order.run_records
    lead = _to_63_bits(extend_key(key_of(LEAD, order.seed), epoch)) % order.num_records
    if whole_runs:
        # The short run at the end keeps its place. It is looked up as any other, and then left as it is.
        permuted = permute(extend_key(key_of(RUNS, order.seed), epoch), whole_runs, tf.minimum(run, whole_runs - 1))
        run = tf.where(run < whole_runs, permuted, run)
    return run * order.run_records + place + lead


def permute(key: tf.Tensor, size: int, places: tf.Tensor) -> tf.Tensor:
    """Computes the numbers at some places of a keyed permutation, as `hash_permutation.permute` does.

    Args:
        key: uint64, a scalar.
        size: The number of places of the whole permutation.
        places: int64 of any shape.

    Returns:
        int64 of the same shape.
    """
    if size <= MAX_SORTED:
        return tf.gather(make_permutations(key, tf.constant(size)), places)
    side, round_keys = square_side(size), extend_key(key, tf.range(FEISTEL_ROUNDS, dtype=tf.int64))

    # One loop, for TensorFlow takes a millisecond for each operation, and ten for each loop, before the first batch. A
    # number whose last round leaves it outside goes through all rounds once more.
    def permute_once(
        index: tf.Tensor, left: tf.Tensor, right: tf.Tensor, outside: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        mixed = (left + _hash_numbers(round_keys[index % FEISTEL_ROUNDS], right)) % side
        left, right = tf.where(outside, right, left), tf.where(outside, mixed, right)
        index += 1
        return index, left, right, outside & ((index % FEISTEL_ROUNDS > 0) | (left * side + right >= size))

    state = (tf.constant(0), places // side, places % side, tf.ones_like(places, tf.bool))
    _, left, right, _ = tf.while_loop(lambda *state: tf.reduce_any(state[-1]), permute_once, state)
    return left * side + right


def make_positions(order: ExactOrder, stream: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Computes positions in the sequence of any epoch, as `ExactOrder.positions` does.

    Args:
        order: The exact order.
        stream: int64: numbers of streams.
        places: int64: places among the records of these streams, of a shape that broadcasts.

    Returns:
        int64 of the broadcast shape.
    """
    turn, record = places // order.turn_records, places % order.turn_records
    turns_of_run, runs, lanes = order.turns_per_run, order.runs_per_stream, order.lanes
    run, part = find_turns(order, turn % lanes, turn // lanes)
    late, late_runs = turn - lanes * order.turns_per_lane, max(runs % lanes, 1)
    run = tf.where(late < 0, run, runs - runs % lanes + late % late_runs)
    part = tf.where(late < 0, part, late // late_runs)
    in_runs = (stream * runs + run) * order.run_records + part * order.turn_records
    rest = turn - runs * turns_of_run
    in_rest = order.num_streams * runs * order.run_records + (stream * order.rest_turns + rest) * order.turn_records
    return tf.where(rest < 0, in_runs, in_rest) + record


def find_turns(order: ExactOrder, lane: tf.Tensor, turn: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds which run of a stream a lane reads at a turn, and which part of it: int64 of the broadcast shape."""
    turn = (turn + lane * order.lane_offset % order.turns_per_run) % max(order.turns_per_lane, 1)
    return turn // order.turns_per_run * order.lanes + lane, turn % order.turns_per_run


def _mix(z: tf.Tensor) -> tf.Tensor:
    """Mixes bits by the finishing rounds of SplitMix64."""
    for shift, factor in ROUNDS:
        z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, _constant(shift))) * _constant(factor)
    return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, _constant(31)))


def _hash_numbers(key: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    return _to_63_bits(_mix(tf.bitcast(numbers, tf.uint64) * _constant(GAMMA) + key))


def _to_63_bits(value: tf.Tensor) -> tf.Tensor:
    """Returns half of an unsigned number, which fits a signed one, and that can be divided."""
    return tf.bitcast(tf.bitwise.right_shift(value, _constant(1)), tf.int64)


def _constant(value: int) -> tf.Tensor:
    return tf.constant(np.uint64(value))  # from a NumPy number: a Python one above 2^63 is refused
