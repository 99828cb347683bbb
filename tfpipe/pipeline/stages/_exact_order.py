"""The exact order as datasets: the runs that a host reads, and the records that leave them, in their final order.

`tfpipe.order` defines the order, `_order_ops` computes it inside the graph, and this module makes datasets of it for
the stages `list`, `read` and `repeat`. Record numbers are not read but computed a second time beside the payloads: that
is cheaper than to carry each through the reader.

An epoch is listed in units of some steps. If a lane gives its run in several turns, a unit has the steps of one run of
every lane, and all runs of a unit end together: so a reader that takes a turn of each gives the final order. The last
units of an epoch, which have too few runs for all lanes, are listed turn by turn.
"""

import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages import _order_ops

_FOREVER = 2**62


def list_epochs(plan: ReadPlan) -> tf.data.Dataset:
    """Lists the numbers of epochs from that of the start step on, without end."""
    return tf.data.Dataset.range(plan.start[0], _FOREVER)


def list_units(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists what this host reads in units of some steps, from the start step on.

    Returns:
        A dataset of `((number, count), (record, seed))`. The first pair are the runs: int64 [n], the number of each
        run's first record and its count. The second pair are the records in their final order: int64 [m] and
        int32 [m, 2]. Numbers from the number of records on count from the first record again.

        The reader must read `plan.cycle_length` runs side by side, and take `plan.order.turn_records` of each in turn.
        Then it must leave out the first `plan.early_records`, which belong to steps before the start.
    """
    order, last_whole = plan.order, plan.order.runs_per_stream // plan.order.lanes * plan.unit_steps

    def list_unit(epoch: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], ...]:
        if plan.reads_lanes:
            runs, counts = tf.cond(
                end <= last_whole, lambda: _place_lanes(plan, begin), lambda: _place_turns(plan, begin, end)
            )
        else:
            runs, counts = _place_turns(plan, begin, end)
        positions = tf.concat([runs, _place_records(plan, begin, end, plan.share, 1)], axis=0)
        # For all at once: the operations for one record would cost 45 us.
        numbers, records = tf.split(_order_ops.number_records(order, epoch, positions), [tf.size(runs), -1], num=2)
        seeds = _order_ops.make_seeds(plan.config.seed, epoch, records % order.num_records)
        return (numbers, counts), (records, seeds)

    return _list_steps(plan, epochs).map(list_unit)


def list_runs(units: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the runs of units one by one: number of the first record, count."""
    return units.map(lambda runs, _: runs).unbatch()


def list_records(units: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the records of units one by one, in their final order: number, seed."""
    return units.map(lambda _, records: records).unbatch()


def _list_steps(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the units of these epochs from the start step on: epoch, first step, end."""
    (first_epoch, first_step), size, steps = plan.start, plan.unit_steps, plan.steps_per_epoch or 0

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        first = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)

        def make_unit(begin: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return epoch, tf.maximum(begin, first), tf.minimum(begin + size, steps)

        return tf.data.Dataset.range(first // size * size, steps, size).map(make_unit)

    return epochs.flat_map(list_epoch)


def _place_lanes(plan: ReadPlan, begin: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Places a run of each lane, or what is left of it at a step: position in the sequence, count; int64 [lanes].

    They stand in the order of the batches: some lanes of every stream, the next ones of every stream.
    """
    order, at_once = plan.order, min(plan.order.lanes, plan.share)
    turn = begin % plan.unit_steps // (order.lanes // at_once)
    lanes = tf.reshape(tf.range(order.lanes, dtype=tf.int64), [-1, 1, at_once])
    run = _streams(plan)[:, None] * order.runs_per_stream + begin // plan.unit_steps * order.lanes + lanes
    taken = turn * order.turn_records
    positions = tf.reshape(run * order.run_records + taken, [-1])
    return positions, tf.fill(tf.shape(positions), order.run_records - taken)


def _place_turns(plan: ReadPlan, begin: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Places each turn of some steps as a run of its own: position in the sequence, count; int64 [n].

    If the reader goes on with lanes, turns without records fill up its cycle, so that all lanes begin together.
    """
    stride = plan.order.turn_records
    positions = _place_records(plan, begin, end, plan.share // stride, stride)
    counts = tf.fill(tf.shape(positions), tf.constant(stride, tf.int64))
    if not plan.reads_lanes:
        return positions, counts
    missing = [[0, -tf.size(positions) % plan.cycle_length]]
    return tf.pad(positions, missing), tf.pad(counts, missing)


def _place_records(plan: ReadPlan, begin: tf.Tensor, end: tf.Tensor, per_stream: int, stride: int) -> tf.Tensor:
    """Places every `stride`-th record of some steps, batch after batch: int64 [steps * streams * per_stream]."""
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
