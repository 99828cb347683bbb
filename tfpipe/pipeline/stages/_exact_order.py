"""The exact order as datasets: the windows of an epoch, the runs that each window reads, and its records permuted.

`tfpipe.order` defines the order, `_order_ops` computes it inside the graph, and this module makes datasets of it for
the stages `list`, `shuffle` and `repeat`. Record numbers are not read but computed a second time beside the payloads:
that is cheaper than to carry each through the reader.
"""

from typing import NamedTuple

import tensorflow as tf

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
    """Lists the windows of these epochs from the start step on: epoch, its runs, number of the window."""
    first_epoch, first_window = plan.start[0], plan.start[1] * plan.share // plan.order.window_records

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        epoch_runs = _order_ops.make_epoch_runs(plan.order, epoch)
        begin = tf.where(epoch == first_epoch, tf.constant(first_window, tf.int64), 0)
        # A last window that fills no batch is not read.
        end = -(-(plan.steps_per_epoch or 0) * plan.share // plan.order.window_records)
        return tf.data.Dataset.range(begin, end).map(lambda window: (epoch, epoch_runs, window))

    return epochs.flat_map(list_epoch)


def list_runs(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the runs of this host's streams, window after window, from the start step on: shard, first, count, slots.

    Runs without records fill up the last window of an epoch, so that every window has `window_slots(plan)` slots.
    """

    def list_window(epoch: tf.Tensor, epoch_runs: _order_ops.EpochRuns, window: tf.Tensor) -> tf.data.Dataset:
        runs = _order_ops.make_window_runs(plan.order, epoch_runs, plan.streams, window)
        missing = window_slots(plan) - tf.reduce_sum(runs.count)
        max_slots = plan.order.run_records
        padding_slots = tf.minimum(tf.range(missing, 0, -max_slots, tf.int64), max_slots)
        zeros = tf.zeros_like(padding_slots)
        columns = (runs.shard, runs.first, runs.count, runs.count)
        padding = (zeros, zeros, zeros, padding_slots)
        return tf.data.Dataset.from_tensor_slices(
            tuple(tf.concat(pair, axis=0) for pair in zip(columns, padding, strict=True))
        )

    return list_windows(plan, epochs).flat_map(list_window)


def list_records(plan: ReadPlan) -> tf.data.Dataset:
    """Lists the number and the seed of each record in its final order, for records that a cache holds already."""
    windows = list_windows(plan, list_epochs(plan))
    return windows.map(lambda *window: locate_records(plan, *window)[1:3]).unbatch()


def locate_records(
    plan: ReadPlan, epoch: tf.Tensor, epoch_runs: _order_ops.EpochRuns, window: tf.Tensor
) -> WindowRecords:
    """Computes which records of a window leave it, in the order of the batches."""
    order, share, streams = plan.order, plan.share, plan.streams
    permutations = _order_ops.make_window_permutations(order, epoch, streams, window)
    per_stream = tf.shape(permutations, tf.int64)[1]
    batches = per_stream // share  # the end of the last window may fill none
    positions = permutations + per_stream * tf.range(len(streams), dtype=tf.int64)[:, None]
    positions = tf.reshape(positions[:, : batches * share], [len(streams), batches, share])
    positions = tf.transpose(positions, [1, 0, 2])
    before_start = plan.start[1] - window * (order.window_records // share)
    skipped = tf.where(epoch == plan.start[0], tf.clip_by_value(before_start, 0, batches), 0)
    positions = tf.reshape(positions[skipped:], [-1])
    runs = _order_ops.make_window_runs(order, epoch_runs, streams, window)
    first = tf.gather(tf.constant(plan.source.bases), runs.shard) + runs.first
    read_numbers = tf.ragged.range(first, first + runs.count).values
    numbers = tf.gather(read_numbers, positions)
    # For all records at once: one record's twenty operations would cost 45 us.
    seeds = _order_ops.make_seeds(plan.config.seed, epoch, numbers)
    return WindowRecords(positions, numbers, seeds, read_numbers)


def window_slots(plan: ReadPlan) -> int:
    """Counts the payloads of one window of all this host's streams, with the holes that fill up an epoch's last one."""
    return len(plan.streams) * min(plan.order.window_records, plan.order.records_per_stream)
