"""The exact order as datasets: the windows of an epoch, the runs that each window reads, and its records permuted.

`tfpipe.order` defines the order, `_order_ops` computes it inside the graph, and this module makes datasets of it for
the stages `list`, `shuffle` and `repeat`. Record numbers are not read but computed a second time beside the payloads:
that is cheaper than to carry each through the reader.
"""

from typing import NamedTuple

import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages import _order_ops

_FOREVER = 2**62


class WindowRecords(NamedTuple):
    """The records of one window.

    Attributes:
        positions: int64 [n], in the order of the batches: each record's position among the payloads as they were read.
        numbers: int64 [n], in the order of the batches: each record's number, counted through all files.
        seeds: int32 [n, 2], in the order of the batches: each record's seed in this epoch.
        read_numbers: int64 [m], in the order of reading: the number of every record that was read.
    """

    positions: tf.Tensor
    numbers: tf.Tensor
    seeds: tf.Tensor
    read_numbers: tf.Tensor


def list_epochs(plan: ReadPlan) -> tf.data.Dataset:
    """Lists the numbers of epochs from that of the start step on, without end."""
    return tf.data.Dataset.range(plan.start[0], _FOREVER)


def list_windows(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the windows of these epochs from the start step on: epoch, number of the window."""
    size = plan.window_records
    first_epoch, first_window = plan.start[0], plan.start[1] * plan.share // size
    # A last window that fills no batch is not read.
    end = -(-(plan.steps_per_epoch or 0) * plan.share // size)

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        begin = tf.where(epoch == first_epoch, tf.constant(first_window, tf.int64), 0)
        return tf.data.Dataset.range(begin, end).map(lambda window: (epoch, window))

    return epochs.flat_map(list_epoch)


def list_runs(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the runs of this host's streams, window after window, from the start step on: shard, first, count, slots.

    If windows are permuted, runs without records fill up the last window of an epoch, so that every window has
    `window_slots(plan)` slots.
    """

    def list_window(epoch: tf.Tensor, window: tf.Tensor) -> tf.data.Dataset:
        if plan.permutes_windows:
            runs = make_runs(plan.order, epoch, _make_positions(plan, window))
            runs = _fill_slots(runs, window_slots(plan), plan.order.run_records)
        else:
            runs = make_runs(plan.order, epoch, _deal_to_batches(plan, epoch, window, _make_positions(plan, window)))
        return tf.data.Dataset.from_tensor_slices(runs)

    return list_windows(plan, epochs).flat_map(list_window)


def list_records(plan: ReadPlan) -> tf.data.Dataset:
    """Lists the number and the seed of each record in its final order, from the start step on."""
    windows = list_windows(plan, list_epochs(plan))
    return windows.map(lambda epoch, window: locate_records(plan, epoch, window)[1:3]).unbatch()


def locate_records(plan: ReadPlan, epoch: tf.Tensor, window: tf.Tensor) -> WindowRecords:
    """Computes which records of a window leave it, in the order of the batches."""
    sequence = _make_positions(plan, window)
    read_numbers = _order_ops.number_records(plan.order, epoch, tf.reshape(sequence, [-1]))
    size = tf.shape(sequence, tf.int64)[1]
    rows = tf.range(len(plan.streams), dtype=tf.int64)[:, None]
    if plan.permutes_windows:
        places = _order_ops.make_window_permutations(plan.order, epoch, sequence)
    else:
        places = tf.range(size)[None]
    positions = _deal_to_batches(plan, epoch, window, places + size * rows)
    numbers = tf.gather(read_numbers, positions)
    # For all records at once: one record's twenty operations would cost 45 us.
    seeds = _order_ops.make_seeds(plan.config.seed, epoch, numbers)
    return WindowRecords(positions, numbers, seeds, read_numbers)


def window_slots(plan: ReadPlan) -> int:
    """Counts the payloads of one window of all this host's streams, with the holes that fill up an epoch's last one."""
    return len(plan.streams) * min(plan.window_records, plan.order.records_per_stream)


def _make_positions(plan: ReadPlan, window: tf.Tensor) -> tf.Tensor:
    """Makes the positions of a window in the epoch's sequence: int64 [streams, records of the window]."""
    size, length = plan.window_records, plan.order.records_per_stream
    base = tf.constant([stream * length for stream in plan.streams], tf.int64)
    return base[:, None] + tf.range(window * size, tf.minimum((window + 1) * size, length))


def _deal_to_batches(plan: ReadPlan, epoch: tf.Tensor, window: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
    """Deals the records of a window to batches: int64 [streams, n] becomes [m], batch after batch.

    It leaves out what comes before the start step, and the end of the last window if it fills no batch.
    """
    streams, share = len(plan.streams), plan.share
    batches = tf.shape(items, tf.int64)[1] // share
    dealt = tf.reshape(items[:, : batches * share], [streams, batches, share])
    before_start = plan.start[1] - window * (plan.window_records // share)
    skipped = tf.where(epoch == plan.start[0], tf.clip_by_value(before_start, 0, batches), 0)
    return tf.reshape(tf.transpose(dealt, [1, 0, 2])[skipped:], [-1])


def make_runs(order: ExactOrder, epoch: tf.Tensor, positions: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Cuts records at positions of the sequence into runs of adjacent ones: shard, first, count, slots; int64 [n]."""
    positions = tf.reshape(positions, [-1])
    numbers, starts = _order_ops.number_records(order, epoch, positions), tf.constant(order.shard_starts)
    shard = tf.searchsorted(starts, numbers, side="right", out_type=tf.int64) - 1
    if order.run_records == 1:
        ones = tf.ones_like(shard)
        return shard, numbers - tf.gather(starts, shard), ones, ones
    follows = (positions[1:] == positions[:-1] + 1) & (positions[1:] % order.run_records != 0)
    follows &= (numbers[1:] == numbers[:-1] + 1) & (shard[1:] == shard[:-1])
    begins = tf.where(tf.concat([[True], ~follows], axis=0)[: tf.size(positions)])[:, 0]
    count = tf.concat([begins[1:], [tf.size(positions, tf.int64)]], axis=0) - begins
    shard = tf.gather(shard, begins)
    return shard, tf.gather(numbers, begins) - tf.gather(starts, shard), count, count


def _fill_slots(runs: tuple[tf.Tensor, ...], slots: int, max_slots: int) -> tuple[tf.Tensor, ...]:
    """Adds runs without records until there are as many slots as in any window."""
    missing = slots - tf.reduce_sum(runs[2])
    padding_slots = tf.minimum(tf.range(missing, 0, -max_slots, tf.int64), max_slots)
    zeros = tf.zeros_like(padding_slots)
    padding = (zeros, zeros, zeros, padding_slots)
    return tuple(tf.concat(pair, axis=0) for pair in zip(runs, padding, strict=True))
