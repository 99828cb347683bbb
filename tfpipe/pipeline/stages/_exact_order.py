"""The exact order as datasets: what each lane of a host reads, and the records in their final order.

`tfpipe.order` defines the order, `_order_ops` computes it inside the graph, and this module makes datasets of it for
the stages `list`, `read` and `repeat`. Record numbers are not read but computed a second time beside the payloads: that
is cheaper than to carry each through the reader.

```
tracks of an epoch   lane 0, lane 1, ..., lane n - 1     read side by side, a turn of each: they end together
                     lane 0, lane 1, ..., lane n - 1     the next runs of each, if a lane has more than 256
                     lane 0, lane 1, ..., lane n - 1     single turns: what is left at the end of an epoch
```

A track is what the reader opens: some runs, one after another. A round is a turn of each lane.
"""

import bisect
import itertools

import numpy as np
import tensorflow as tf

from tfpipe.order import ExactOrder
from tfpipe.pipeline.plan.read_plan import LISTED_RECORDS, ReadPlan
from tfpipe.pipeline.stages import _order_ops
from tfpipe.system.hash_permutation import IntArray

_FOREVER = 2**62
_TRACK_RUNS = 256


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
    if not plan.in_lanes:
        return _list_runs(plan, epochs)
    bounds, first_round = _cut_rounds(plan), plan.start[1] // plan.steps_per_round

    def list_part(epoch: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begin, end = tf.gather(bounds, part), tf.gather(bounds, part + 1)
        begin = tf.where(epoch == plan.start[0], tf.maximum(begin, first_round), begin)
        positions, count = _place_runs(plan, tf.cast(begin, tf.int64), tf.cast(end, tf.int64))
        return _order_ops.number_records(plan.order, epoch, positions), count

    first_part = bisect.bisect_right(bounds[:-1], first_round) - 1
    return _list_parts(plan, epochs, first_part, len(bounds) - 1).map(list_part).unbatch()


def list_first_tracks(plan: ReadPlan) -> tf.data.Dataset:
    """Lists the tracks of the first epoch from the start step on, as `list_tracks` does.

    They are computed here and now, by the same operations. In the graph these would take 0.1 s before the first batch.
    """
    with tf.init_scope(), tf.device("CPU:0"):
        if plan.in_lanes:
            first_round = plan.start[1] // plan.steps_per_round
            parts = [
                _place_runs(plan, tf.constant(max(begin, first_round), tf.int64), tf.constant(end, tf.int64))
                for begin, end in itertools.pairwise(_cut_rounds(plan))
                if end > first_round
            ]
            positions, count = (_join_tracks([part[k].numpy() for part in parts]) for k in range(2))
        else:
            run = plan.order.turn_records
            begin, end = tf.constant([plan.start[1], plan.steps_per_epoch or 0], tf.int64)
            positions = _place_records(plan, begin, end, plan.read_rows[::run]).numpy()
            count = np.full_like(positions, run)
    numbers = plan.order.rising_numbers(plan.start[0], positions)
    return tf.data.Dataset.from_tensor_slices((tf.constant(numbers), tf.constant(count)))


def _cut_rounds(plan: ReadPlan) -> list[int]:
    """Cuts the rounds of an epoch into parts that are listed at once: their first rounds, and the end of the last."""
    order = plan.order
    rounds = -(-(plan.steps_per_epoch or 0) // plan.steps_per_round)
    lane_rounds, late_rounds = _TRACK_RUNS * order.turns_per_run, max(LISTED_RECORDS // plan.round_records, 1)
    return [*range(0, order.turns_per_lane, lane_rounds), *range(order.turns_per_lane, rounds, late_rounds), rounds]


def _join_tracks(parts: list[IntArray]) -> IntArray:
    """Joins the tracks of several parts, int64 [lanes, runs]; zeros stand behind the runs of a shorter part."""
    runs = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, runs - part.shape[1]))) for part in parts])


def _list_runs(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists tracks of one run each, in the order in which they are read."""
    run = plan.order.turn_records

    def list_part(epoch: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        positions = _place_records(plan, *_find_steps(plan, epoch, part), plan.read_rows[::run])
        count = tf.fill(tf.shape(positions), tf.constant(run, tf.int64))
        return _order_ops.number_records(plan.order, epoch, positions), count

    return _list_step_parts(plan, epochs).map(list_part).unbatch()


def _place_runs(plan: ReadPlan, begin: tf.Tensor, end: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the runs of all lanes in some rounds: positions and counts of records, int64 [lanes, runs]."""
    order = plan.order
    # In the order of the batches: some lanes of every stream, then the next ones of every stream.
    turn_rows, stream_turns = plan.read_rows[:: order.turn_records], order.lanes // plan.steps_per_round
    slots = tf.constant(np.array(turn_rows) // order.turn_records)[:, None]
    steps = tf.range(plan.steps_per_round, dtype=tf.int64)[:, None, None]
    stream, lane = slots // stream_turns, steps * stream_turns + slots % stream_turns
    # The rounds in which runs begin. The first run may have begun before, and the last one may end later. The rounds
    # behind those of whole runs have runs of one turn.
    length = tf.where(begin < order.turns_per_lane, tf.constant(order.turns_per_run, tf.int64), 1)
    phase = lane * order.lane_offset % order.turns_per_run
    first = tf.range(begin, end + length, length) - (begin + phase) % length
    first, last = tf.maximum(first, begin), tf.minimum(first + length, end)
    turn = first * order.lanes + lane
    in_epoch = turn < (plan.steps_per_epoch or 0) * plan.share // order.turn_records
    count = tf.where(in_epoch, tf.maximum(last - first, 0) * order.turn_records, 0)
    positions = _order_ops.make_positions(order, stream, turn * order.turn_records)
    count = tf.broadcast_to(count, tf.shape(positions))
    return tf.reshape(positions, [plan.cycle_length, -1]), tf.reshape(count, [plan.cycle_length, -1])


def list_records(plan: ReadPlan, epochs: tf.data.Dataset, *, chosen_only: bool = False) -> tf.data.Dataset:
    """Lists the number and the seed of each record in its final order, from the start step on.

    Numbers from the number of records on count from the first record again. If the plan chooses records, the list has
    only these with `chosen_only`; otherwise it has all, each with a third value that says whether it is chosen.
    """

    def list_part(epoch: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # For all at once: the operations for one record would cost 45 us.
        numbers = _number_part(plan, epoch, part, plan.rows if chosen_only else plan.read_rows)
        kept = _find_kept(plan, numbers, plan.rows if chosen_only else plan.read_rows)
        if kept is not None and chosen_only:
            numbers = tf.boolean_mask(numbers, kept)
        seeds = _order_ops.make_seeds(plan.config.seed, epoch, numbers % plan.order.num_records)
        return (numbers, seeds) if kept is None or chosen_only else (numbers, seeds, kept)

    return _list_step_parts(plan, epochs).map(list_part).unbatch()


def list_batches(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the numbers and the seeds of the records of each batch of a replica, from the start step on.

    Returns:
        A dataset of (numbers, seeds): int64 [batch_size] and int32 [batch_size, 2]. Numbers from the number of records
        on count from the first record again.
    """
    size = plan.batch_size

    def list_part(epoch: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        numbers = _number_part(plan, epoch, part, plan.rows)
        seeds = _order_ops.make_seeds(plan.config.seed, epoch, numbers % plan.order.num_records)
        return tf.reshape(numbers, [-1, size]), tf.reshape(seeds, [-1, size, 2])

    return _list_step_parts(plan, epochs).map(list_part).unbatch()


def list_step_tracks(plan: ReadPlan, steps: tf.data.Dataset) -> tf.data.Dataset:
    """Lists what a worker reads for some global steps, in the order of their batches.

    Only the records of these steps are listed, so steps that other workers make cost nothing here. Those of a step stay
    together, because operations for one record cost as much as for all of them.

    Args:
        plan: The read plan of the host that gets the batches.
        steps: int64: numbers of global steps, in any order.

    Returns:
        A dataset of (first, seeds), an element for each step. `first`, int64 [tracks], numbers the first of
        `plan.track_records` adjacent records each; `seeds`, int32 [tracks, track_records, 2], has the seed of each.
    """
    order, size = plan.order, plan.track_records
    epoch_steps = tf.constant(plan.steps_per_epoch or 0, tf.int64)

    def list_step(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        epoch, begin = step // epoch_steps, step % epoch_steps
        positions = _place_records(plan, begin, begin + 1, plan.rows[::size])
        first = _order_ops.number_records(order, epoch, positions)
        numbers = (first[:, None] + tf.range(size, dtype=tf.int64)) % order.num_records
        return first, _order_ops.make_seeds(plan.config.seed, epoch, numbers)

    return steps.map(list_step)


def list_step_batches(plan: ReadPlan, steps: tf.data.Dataset) -> tf.data.Dataset:
    """Lists the records of each batch of a replica as `list_batches` does, for some global steps alone.

    Args:
        plan: The read plan of the host that gets the batches.
        steps: int64: numbers of global steps, in any order.
    """
    epoch_steps, size = tf.constant(plan.steps_per_epoch or 0, tf.int64), plan.batch_size

    def list_step(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        epoch, begin = step // epoch_steps, step % epoch_steps
        numbers = _order_ops.number_records(plan.order, epoch, _place_records(plan, begin, begin + 1, plan.rows))
        seeds = _order_ops.make_seeds(plan.config.seed, epoch, numbers % plan.order.num_records)
        return tf.reshape(numbers, [-1, size]), tf.reshape(seeds, [-1, size, 2])

    return steps.map(list_step).unbatch()


def list_choices(plan: ReadPlan) -> tf.data.Dataset:
    """Lists whether each record is a `chosen` one, in the final order, from the start step on: int64, 1 or 0."""

    def list_part(epoch: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        return tf.cast(_is_chosen(plan, _number_part(plan, epoch, part, plan.rows)), tf.int64)

    return _list_step_parts(plan, list_epochs(plan)).map(list_part).unbatch()


def keep_chosen(plan: ReadPlan, records: tf.data.Dataset) -> tf.data.Dataset:
    """Leaves out the records that the plan does not choose.

    Args:
        plan: The read plan.
        records: Payloads of all records, each with what `list_records` says about it.
    """
    if not plan.leaves_out:
        return records
    # A function that only returns one of its arguments is not run. To compute it for each record would cost 20 us, and
    # a map that takes the third value away again 30 us.
    return records.filter(lambda _, number: number[2])


def _number_part(plan: ReadPlan, epoch: tf.Tensor, part: tf.Tensor, rows: range) -> tf.Tensor:
    begin, end = _find_steps(plan, epoch, part)
    return _order_ops.number_records(plan.order, epoch, _place_records(plan, begin, end, rows))


def _find_kept(plan: ReadPlan, numbers: tf.Tensor, rows: range) -> tf.Tensor | None:
    """Finds which records of some steps are this host's and chosen: bool [n]; None if all are."""
    kept = None if plan.chosen is None else _is_chosen(plan, numbers)
    if rows == plan.rows:
        return kept
    own = tf.constant([row in plan.rows for row in rows])
    own = tf.tile(own, tf.size(numbers)[None] // len(rows))
    return own if kept is None else own & kept


def _is_chosen(plan: ReadPlan, numbers: tf.Tensor) -> tf.Tensor:
    with tf.init_scope():  # captured once; inside a function, each copy of it would store the table again
        chosen = tf.constant(plan.chosen)
    return tf.gather(chosen, numbers % plan.order.num_records)


def _list_parts(plan: ReadPlan, epochs: tf.data.Dataset, first: int, count: int) -> tf.data.Dataset:
    """Lists the parts of epochs that are listed at once: (epoch, part). The first epoch begins with part `first`.

    Nested datasets would be easier to read, but TensorFlow takes 30 ms for each function of one before the first batch.
    """

    def list_parts(epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parts = tf.range(tf.where(epoch == plan.start[0], tf.constant(first, tf.int64), 0), count)
        return tf.fill(tf.shape(parts), epoch), parts

    return epochs.map(list_parts).unbatch()


def _list_step_parts(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists parts of `_steps_at_once` steps."""
    size = _steps_at_once(plan)
    return _list_parts(plan, epochs, plan.start[1] // size, -(-(plan.steps_per_epoch or 0) // size))


def _find_steps(plan: ReadPlan, epoch: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the first step of a part, and the step behind it. Steps before the start are left out."""
    begin = part * _steps_at_once(plan)
    end = tf.minimum(begin + _steps_at_once(plan), plan.steps_per_epoch or 0)
    return tf.where(epoch == plan.start[0], tf.maximum(begin, plan.start[1]), begin), end


def _steps_at_once(plan: ReadPlan) -> int:
    return max(LISTED_RECORDS // plan.host_batch_size, 1)


def _place_records(plan: ReadPlan, begin: tf.Tensor, end: tf.Tensor, rows: range) -> tf.Tensor:
    """Finds the records in some rows of some steps, batch after batch: int64 [steps * rows]."""
    row = tf.constant(np.array(rows, np.int64))
    places = tf.range(begin, end)[:, None] * plan.share + row % plan.share
    return tf.reshape(_order_ops.make_positions(plan.order, row // plan.share, places), [-1])


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
