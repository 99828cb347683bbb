"""The exact order as datasets: what each lane of a host reads, and the records in their final order.

`tfpipe.order` defines the order, `_order_ops` computes it inside the graph, and this module makes datasets of it for
the stages `list`, `read` and `repeat`. Record numbers are not read but computed a second time beside the payloads: that
is cheaper than to carry each through the reader.

```
tracks of an epoch   lane 0, lane 1, ..., lane n - 1     read side by side, a turn of each: they end together
                     lane 0, lane 1, ..., lane n - 1     the next runs of each, if a lane has more than 256
                     turn, turn, ..., turn, empty, ...   what is left at the end of an epoch, and belongs to no lane
```

A track is what the reader opens: some runs, one after another. If it would take much memory to open the next tracks
early, empty ones keep the reader from it.
"""

import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.pipeline.plan.read_plan import LISTED_RECORDS, ReadPlan
from tfpipe.pipeline.stages import _order_ops

_FOREVER = 2**62
_TRACK_RUNS = 256
_READ_AHEAD = 2
"""The tracks that tf.data opens before it needs them, for each one that it reads."""


def list_epochs(plan: ReadPlan) -> tf.data.Dataset:
    """Lists the numbers of epochs from that of the start step on, without end."""
    return tf.data.Dataset.range(plan.start[0], _FOREVER)


def list_tracks(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the tracks of these epochs from the start step on.

    The reader must read `plan.cycle_length` of them side by side, and take `plan.order.turn_records` of each in turn.
    Then it must leave out the first `plan.early_records`, which belong to steps before the start.

    Returns:
        A dataset of (first, count), int64 [runs]: the number of the first record of each run, and the number of its
        records. From some run on all may have none. If there are no lanes, a track is one run, and both are scalars.
    """
    order, lane_steps, steps = plan.order, plan.lane_steps, plan.steps_per_epoch or 0

    def list_turns(epoch: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        stride = order.turn_records
        positions = _place_records(plan, begin, end, plan.share // stride, stride)
        first = _order_ops.number_records(order, epoch, positions)
        count = tf.fill(tf.shape(first), tf.constant(stride, tf.int64))
        if lane_steps:
            missing = [[0, -tf.size(first) % plan.cycle_length]]
            first, count = tf.pad(first, missing)[:, None], tf.pad(count, missing)[:, None]
        return tf.data.Dataset.from_tensor_slices((first, count))

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        first = _first_step(plan, epoch)
        turns = _list_steps(plan, tf.maximum(first, lane_steps), steps).flat_map(lambda *part: list_turns(epoch, *part))
        return _list_lanes(plan, epoch, first).concatenate(turns) if lane_steps else turns

    return epochs.flat_map(list_epoch)


def _list_lanes(plan: ReadPlan, epoch: tf.Tensor, first_step: tf.Tensor) -> tf.data.Dataset:
    """Lists the tracks of all lanes from a step on, as `list_tracks` does: none if the step comes after the lanes."""
    order, at_once = plan.order, min(plan.order.lanes, plan.share)
    # In the order of the batches: some lanes of every stream, then the next ones of every stream.
    lane = tf.reshape(tf.range(order.lanes, dtype=tf.int64), [-1, 1, at_once, 1])
    stream = _streams(plan)[:, None, None]
    phase = lane * order.lane_offset % order.turns_per_run
    size = _TRACK_RUNS * order.turns_per_run

    def list_part(begin: tf.Tensor) -> tf.data.Dataset:
        end = tf.minimum(begin + size, order.turns_per_lane)
        # The turns at which runs begin. The first one may have begun before, and the last one may end later.
        turns = tf.range(begin, end + order.turns_per_run, order.turns_per_run) - (begin + phase) % order.turns_per_run
        starts, stops = tf.maximum(turns, begin), tf.minimum(turns + order.turns_per_run, end)
        run, part = _order_ops.find_turns(order, lane, starts)
        positions = (stream * order.runs_per_stream + run) * order.run_records + part * order.turn_records
        first = tf.reshape(_order_ops.number_records(order, epoch, positions), [plan.cycle_length, -1])
        count = tf.maximum(stops - starts, 0) * order.turn_records
        count = tf.reshape(tf.broadcast_to(count, tf.shape(positions)), [plan.cycle_length, -1])
        if not plan.opens_next_epoch:
            empty = [[0, _READ_AHEAD * plan.cycle_length], [0, 0]]
            first, count = tf.pad(first, empty), tf.pad(count, empty)
        return tf.data.Dataset.from_tensor_slices((first, count))

    first_turn = first_step // (order.lanes // at_once)
    return tf.data.Dataset.range(first_turn, order.turns_per_lane, size).flat_map(list_part)


def list_records(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the number and the seed of each record in its final order, from the start step on.

    Numbers from the number of records on count from the first record again.
    """
    order = plan.order

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        def list_part(begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
            numbers = _order_ops.number_records(order, epoch, _place_records(plan, begin, end, plan.share, 1))
            # For all at once: the operations for one record would cost 45 us.
            seeds = _order_ops.make_seeds(plan.config.seed, epoch, numbers % order.num_records)
            return tf.data.Dataset.from_tensor_slices((numbers, seeds))

        return _list_steps(plan, _first_step(plan, epoch), plan.steps_per_epoch or 0).flat_map(list_part)

    return epochs.flat_map(list_epoch)


def _first_step(plan: ReadPlan, epoch: tf.Tensor) -> tf.Tensor:
    return tf.where(epoch == plan.start[0], tf.constant(plan.start[1], tf.int64), 0)


def _list_steps(plan: ReadPlan, first: tf.Tensor, end: int) -> tf.data.Dataset:
    """Lists steps in parts that are listed at once: first step, end."""
    size = max(LISTED_RECORDS // plan.host_batch_size, 1)
    return tf.data.Dataset.range(first, end, size).map(lambda begin: (begin, tf.minimum(begin + size, end)))


def _place_records(plan: ReadPlan, begin: tf.Tensor, end: tf.Tensor, per_stream: int, stride: int) -> tf.Tensor:
    """Finds every `stride`-th record of some steps, batch after batch: int64 [steps * streams * per_stream]."""
    places = tf.reshape(stride * tf.range(begin * per_stream, end * per_stream), [-1, 1, per_stream])
    return tf.reshape(_order_ops.make_positions(plan.order, _streams(plan)[:, None], places), [-1])


def _streams(plan: ReadPlan) -> tf.Tensor:
    return tf.range(plan.streams.start, plan.streams.stop, dtype=tf.int64)


def make_runs(order: ExactOrder, epoch: tf.Tensor, positions: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Cuts records at positions of the sequence into runs of adjacent ones: shard, first record, count; int64 [n]."""
    numbers = _order_ops.number_records(order, epoch, positions) % order.num_records
    starts = tf.constant(order.shard_starts)
    shard = tf.searchsorted(starts, numbers, side="right", out_type=tf.int64) - 1
    follows = (positions[1:] == positions[:-1] + 1) & (positions[1:] % order.run_records != 0)
    follows &= (numbers[1:] == numbers[:-1] + 1) & (shard[1:] == shard[:-1])
    begins = tf.where(tf.concat([[True], ~follows], axis=0)[: tf.size(positions)])[:, 0]
    count = tf.concat([begins[1:], [tf.size(positions, tf.int64)]], axis=0) - begins
    shard = tf.gather(shard, begins)
    return shard, tf.gather(numbers, begins) - tf.gather(starts, shard), count
