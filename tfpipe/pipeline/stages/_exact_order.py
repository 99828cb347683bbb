"""The exact order as `tf.data`: runs of records to read, window after window, and the windows permuted once read.

`tfpipe.order` says what comes when, `order_ops` computes it, and here it becomes datasets. The numbers of the records
are not read but computed, a second time, beside the payloads: cheaper than to carry each through the reader.
"""

import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages import _bad_records, _order_ops
from tfpipe.pipeline.stages._bad_records import HOLE

_FOREVER = 2**62


def list_epochs(plan: ReadPlan) -> tf.data.Dataset:
    """Numbers of epochs from that of the start step on, for ever."""
    return tf.data.Dataset.range(plan.start[0], _FOREVER)


def list_exact(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Runs of this host's streams, window after window, from the start step on."""

    def runs(epoch: tf.Tensor, sequence: _order_ops.Sequence, window: tf.Tensor) -> tf.data.Dataset:
        read = _order_ops.window_runs(plan.order, sequence, plan.streams, window)
        pad = _slots(plan) - tf.reduce_sum(read.count)
        size = plan.order.run_records
        pads = tf.minimum(tf.range(pad, 0, -size, tf.int64), size)
        zeros = tf.zeros_like(pads)
        columns = (read.shard, read.first, read.count, read.count)
        padding = (zeros, zeros, zeros, pads)
        return tf.data.Dataset.from_tensor_slices(
            tuple(tf.concat(pair, axis=0) for pair in zip(columns, padding, strict=True))
        )

    return _windows(plan, epochs).flat_map(runs)


def shuffle_exact(plan: ReadPlan, payloads: tf.data.Dataset) -> tf.data.Dataset:
    """Windows of payloads, permuted and dealt to batches. Holds a window, and the next one while it is read."""

    def pick(payloads: tf.Tensor, places: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        positions, records, seeds, read = places
        picked = tf.gather(payloads, positions)
        if check:
            bad = tf.boolean_mask(read, tf.equal(payloads[: tf.size(read)], HOLE))
            picked = _bad_records.or_raise(plan, picked, bad)
        return picked, records, seeds

    check = plan.config.on_bad_record == "raise"
    windows = _windows(plan, list_epochs(plan)).map(lambda *window: _places(plan, *window))
    return (
        tf.data.Dataset.zip((payloads.batch(_slots(plan)), windows))
        .map(pick)
        .prefetch(1)  # or reading would stand still until the window before has been read out
        .unbatch()
    )


def exact_records(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """The order alone, without reading: number of the record, its seed; for what a cache holds already."""
    windows = _windows(plan, epochs).map(lambda *window: _places(plan, *window)[1:3])
    return windows.unbatch()


def _windows(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """The windows of these epochs from the start step on: epoch, its sequence of runs, number of the window."""
    first_epoch, first_window = plan.start[0], plan.start[1] * plan.share // plan.order.window_records

    def windows(epoch: tf.Tensor) -> tf.data.Dataset:
        sequence = _order_ops.sequence(plan.order, epoch)
        begin = tf.where(epoch == first_epoch, tf.constant(first_window, tf.int64), 0)
        # A last window that fills no batch is not read.
        end = -(-(plan.steps_per_epoch or 0) * plan.share // plan.order.window_records)
        return tf.data.Dataset.range(begin, end).map(lambda window: (epoch, sequence, window))

    return epochs.flat_map(windows)


def _places(
    plan: ReadPlan, epoch: tf.Tensor, sequence: _order_ops.Sequence, window: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """For a window, in the order of the batches: positions as read and numbers of the records, int64 [n]; seeds, int32
    [n, 2]. And in the order of reading the numbers of all its records.
    """
    order, share, streams = plan.order, plan.share, plan.streams
    permutations = _order_ops.window_permutations(order, epoch, streams, window)
    per_stream = tf.shape(permutations, tf.int64)[1]
    batches = per_stream // share  # of the last window the end fills none
    positions = permutations + per_stream * tf.range(len(streams), dtype=tf.int64)[:, None]
    positions = tf.reshape(positions[:, : batches * share], [len(streams), batches, share])
    positions = tf.transpose(positions, [1, 0, 2])
    before = plan.start[1] - window * (order.window_records // share)
    skipped = tf.where(epoch == plan.start[0], tf.clip_by_value(before, 0, batches), 0)
    positions = tf.reshape(positions[skipped:], [-1])
    runs = _order_ops.window_runs(order, sequence, streams, window)
    first = tf.gather(tf.constant(plan.source.bases), runs.shard) + runs.first
    numbers = tf.ragged.range(first, first + runs.count).values
    records = tf.gather(numbers, positions)
    # For all at once: for one record its twenty operations would cost 45 us.
    return positions, records, _order_ops.example_seed(plan.config.seed, epoch, records), numbers


def _slots(plan: ReadPlan) -> int:
    """Payloads of a window of all this host's streams; the last window of an epoch is filled up with holes."""
    return len(plan.streams) * min(plan.order.window_records, plan.order.records_per_stream)
