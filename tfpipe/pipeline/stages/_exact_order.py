"""The exact order as datasets: what each lane of a host reads, and the records in their final order.

`tfpipe.order` defines the order, `_order_ops` computes it inside the graph, and this module makes datasets of it for
the stages `list`, `read` and `repeat`. Record numbers are not read but computed a second time beside the payloads: that
is cheaper than to carry each through the reader.

```
tracks of an epoch   lane 0, lane 1, ..., lane n - 1     read side by side, a turn of each: they end together
                     empty, ..., empty                   keep the reader from opening what follows too early, if that
                                                         would take much memory
                     turn, turn, ..., turn, empty, ...   what is left at the end of an epoch, and belongs to no lane
```

A track is what the reader opens: a lane with all of its runs, or a single turn.
"""

import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.pipeline.plan.read_plan import LISTED_RECORDS, ReadPlan
from tfpipe.pipeline.stages import _order_ops

_FOREVER = 2**62
_LISTED_RUNS = 256  # of a lane at once
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
        A dataset of (lane, first, count, epoch), int64. A lane is numbered through all streams, and has `count` turns
        from turn `first` on. If it is -1, the track is a single turn: `first` is the number of its first record, and
        `count` that of its records.
    """
    order, lane_steps, steps = plan.order, plan.lane_steps, plan.steps_per_epoch or 0
    streams, at_once = len(plan.streams), min(order.lanes, plan.share)
    # In the order of the batches: some lanes of every stream, then the next ones of every stream.
    lanes = tf.reshape(tf.range(order.lanes, dtype=tf.int64), [-1, 1, at_once]) + order.lanes * _streams(plan)[:, None]
    lanes = tf.reshape(lanes, [-1])
    num_empty = 0 if plan.opens_next_epoch else _READ_AHEAD * len(lanes)

    def list_lanes(epoch: tf.Tensor, begin: tf.Tensor) -> tf.data.Dataset:
        turn = begin // (order.lanes // at_once)
        turns = tf.fill([streams * order.lanes], order.turns_per_lane - turn)
        empty = tf.zeros([num_empty], tf.int64)
        columns = (
            tf.concat([lanes, empty - 1], 0),
            tf.fill([len(lanes) + num_empty], turn),
            tf.concat([turns, empty], 0),
        )
        return tf.data.Dataset.from_tensor_slices(columns).map(lambda *track: (*track, epoch))

    def list_turns(epoch: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.data.Dataset:
        stride = order.turn_records
        positions = _place_records(plan, begin, end, plan.share // stride, stride)
        first = _order_ops.number_records(order, epoch, positions)
        count = tf.fill(tf.shape(first), tf.constant(stride, tf.int64))
        if lane_steps:
            missing = [[0, -tf.size(first) % plan.cycle_length]]
            first, count = tf.pad(first, missing), tf.pad(count, missing)
        columns = (tf.fill(tf.shape(first), tf.constant(-1, tf.int64)), first, count)
        return tf.data.Dataset.from_tensor_slices(columns).map(lambda *track: (*track, epoch))

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        first = _first_step(plan, epoch)
        turns = _list_steps(plan, tf.maximum(first, lane_steps), steps).flat_map(lambda *part: list_turns(epoch, *part))
        if not lane_steps:
            return turns
        begins = tf.data.Dataset.range(first, tf.minimum(first + 1, lane_steps))  # one, or none
        return begins.flat_map(lambda begin: list_lanes(epoch, begin)).concatenate(turns)

    return epochs.flat_map(list_epoch)


def list_runs(plan: ReadPlan, lane: tf.Tensor, first: tf.Tensor, count: tf.Tensor, epoch: tf.Tensor) -> tf.data.Dataset:
    """Lists the runs of a lane that has `count` turns from turn `first` on: number of the first record, count."""
    order = plan.order
    stream, lane_of_stream = lane // order.lanes, lane % order.lanes
    # Turns at which a run begins, or the first one, or the one at which the lane comes back to its first run.
    phase = lane_of_stream * order.lane_offset % order.turns_per_run
    first_whole = first + (-(first + phase)) % order.turns_per_run
    end = first + count

    def list_part(at: tf.Tensor) -> tf.data.Dataset:
        turns = tf.range(at, tf.minimum(at + _LISTED_RUNS * order.turns_per_run, end), order.turns_per_run)
        turns = tf.maximum(turns, first)
        stops = tf.minimum(turns + order.turns_per_run - (turns + phase) % order.turns_per_run, end)
        run, part = _order_ops.find_turns(order, lane_of_stream, turns)
        positions = (stream * order.runs_per_stream + run) * order.run_records + part * order.turn_records
        numbers = _order_ops.number_records(order, epoch, positions)
        return tf.data.Dataset.from_tensor_slices((numbers, (stops - turns) * order.turn_records))

    starts = tf.data.Dataset.range(
        tf.where(first_whole > first, first_whole - order.turns_per_run, first), end, _LISTED_RUNS * order.turns_per_run
    )
    return starts.flat_map(list_part)


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
