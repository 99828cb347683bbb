"""`tfpipe.order` as TensorFlow operations: the same numbers, computed inside the `tf.data` graph.

A pipeline that asked Python for its order could not run in a remote host's input pipeline or in a tf.data service,
and would hold Python's lock in the middle of training. So hashes, permutations and cuts are done here once more,
with 64-bit unsigned arithmetic, which wraps in TensorFlow as it does in NumPy. Every function gives what `ExactOrder`
gives, bit by bit; `tests/pipeline/stages/test_order_ops.py` compares the two.

Costs on one core: an epoch's sequence of 80,000 runs (1.28 million records) takes about 10 ms, a window of 4,096
records about 1 ms.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.system.hash_permutation import EXAMPLE, GAMMA, LEAD, ROUNDS, RUNS, WINDOW, key_of


class Runs(NamedTuple):
    """Several runs of adjacent records of one shard, in reading order: three int64 vectors of equal length.

    Attributes:
        shard: The number of each run's shard.
        first: The first record of each run, counted in its shard.
        count: The records of each run.
    """

    shard: tf.Tensor
    first: tf.Tensor
    count: tf.Tensor


class EpochRuns(NamedTuple):
    """The runs of an epoch, permuted.

    Attributes:
        runs: The runs in reading order.
        starts: The position where each run begins, and the end: int64 [runs + 1].
    """

    runs: Runs
    starts: tf.Tensor


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
    # `top_k` gives the largest first; no two hashes are equal. Signed numbers would sort otherwise.
    return tf.cast(tf.math.top_k(tf.bitwise.invert(hashes), tf.cast(size, tf.int32)).indices, tf.int64)


def make_seeds(seed: int, epoch: tf.Tensor, record: tf.Tensor) -> tf.Tensor:
    """Computes the seed of records in one epoch, for stateless random numbers: int32 of their shape and [2]."""
    return tf.bitcast(extend_key(key_of(EXAMPLE, seed), epoch, record), tf.int32)


def make_epoch_runs(order: ExactOrder, epoch: tf.Tensor) -> EpochRuns:
    """Computes the runs of an epoch, which is an int64 scalar."""
    size = order.run_records
    # The remainder of a division of unsigned numbers, by halves that fit a signed one.
    high, low = _halves(extend_key(key_of(LEAD, order.seed), epoch))
    lead = ((high % size) * (2**32 % size) + low % size) % size
    records = tf.constant(order.shard_records, tf.int64)
    per_shard = tf.where(records > 0, (records + lead + size - 1) // size, 0)
    ends = tf.cumsum(per_shard)
    shard = _number_groups(ends)
    index = tf.range(tf.size(shard, tf.int64)) - tf.gather(ends - per_shard, shard)
    first = tf.maximum(index * size - lead, 0)
    count = tf.minimum((index + 1) * size - lead, tf.gather(records, shard)) - first
    shuffled = make_permutations(extend_key(key_of(RUNS, order.seed), epoch), tf.size(shard))
    runs = Runs(*(tf.gather(column, shuffled) for column in (shard, first, count)))
    return EpochRuns(runs, tf.concat([[0], tf.cumsum(runs.count)], axis=0))


def make_window_runs(order: ExactOrder, epoch_runs: EpochRuns, streams: range, window: tf.Tensor) -> Runs:
    """Computes the runs that several streams read for one window, stream after stream; `window` is an int64 scalar."""
    base = tf.constant([stream * order.records_per_stream for stream in streams], tf.int64)
    begin, end = _window_bounds(order, window)
    start, stop = base + begin, base + end
    first = tf.searchsorted(epoch_runs.starts, start, side="right", out_type=tf.int64) - 1
    last = tf.searchsorted(epoch_runs.starts, stop, side="left", out_type=tf.int64)
    numbers = tf.ragged.range(first, last)
    row, index = _number_groups(numbers.row_splits[1:]), numbers.values
    begins = tf.maximum(tf.gather(epoch_runs.starts, index), tf.gather(start, row))
    ends = tf.minimum(tf.gather(epoch_runs.starts, index + 1), tf.gather(stop, row))
    moved = begins - tf.gather(epoch_runs.starts, index)
    runs = epoch_runs.runs
    return Runs(tf.gather(runs.shard, index), tf.gather(runs.first, index) + moved, ends - begins)


def make_window_permutations(order: ExactOrder, epoch: tf.Tensor, streams: range, window: tf.Tensor) -> tf.Tensor:
    """Computes the order in which each stream's records leave a window: int64 [streams, records of the window]."""
    begin, end = _window_bounds(order, window)
    prefix = extend_key(key_of(WINDOW, order.seed), epoch)
    keys = extend_key(prefix, tf.constant(list(streams), tf.int64), window)
    return make_permutations(keys, end - begin)


def _number_groups(ends: tf.Tensor) -> tf.Tensor:
    """Returns the number of the group that each element belongs to, from where the groups end: int64 [ends[-1]].

    `tf.repeat` gives the same, but is dozens of operations, and a pipeline took 80 ms longer to build.
    """
    return tf.searchsorted(ends, tf.range(ends[-1]), side="right", out_type=tf.int64)


def _window_bounds(order: ExactOrder, window: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    start = window * order.window_records
    return start, tf.minimum(start + order.window_records, order.records_per_stream)


def _mix(z: tf.Tensor) -> tf.Tensor:
    """Mixes bits by the finishing rounds of SplitMix64."""
    for shift, factor in ROUNDS:
        z = tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, _constant(shift))) * _constant(factor)
    return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, _constant(31)))


def _halves(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    high = tf.bitcast(tf.bitwise.right_shift(value, _constant(32)), tf.int64)
    return high, tf.bitcast(tf.bitwise.bitwise_and(value, _constant(2**32 - 1)), tf.int64)


def _constant(value: int) -> tf.Tensor:
    return tf.constant(np.uint64(value))  # from a NumPy number: a Python one above 2^63 is refused
