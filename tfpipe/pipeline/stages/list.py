"""The stage `list`: which records or files this host reads, and in which order.

An element is a run of adjacent records (the number of the first one, counted through all files, and their count); or a
file (its number, the epoch); or in exact order a track, see `_exact_order`.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.order import ExactOrder, evaluation_order, expand_runs
from tfpipe.pipeline.plan.read_plan import LISTED_RECORDS, SCATTERED_RECORDS, ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _exact_order, _order_ops
from tfpipe.system.hash_permutation import FILES, IntArray, key_of


def list_exact(plan: ReadPlan) -> Stage:
    """Lists runs of records in the exact order."""
    order = plan.order
    settings = {
        **_file_settings(plan),
        "order": "exact",
        "seed": order.seed,
        "block_records": order.block_records,
        "start_step": plan.start_step,
    }
    reason = "blocks of adjacent records, permuted over all files: the same for any number of hosts, from any step on"
    return Stage("list", lambda epochs: _exact_order.list_tracks(plan, epochs), settings, reason)


def list_step_records(plan: ReadPlan) -> Stage:
    """Lists the records of single steps of the exact order."""
    settings = {
        **_file_settings(plan),
        "order": "exact",
        "seed": plan.order.seed,
        "block_records": plan.order.block_records,
    }
    reason = "the records of each step are computed, so a worker lists those of its own steps alone"
    return Stage("list", lambda steps: _exact_order.list_step_tracks(plan, steps), settings, reason)


def list_files(plan: ReadPlan) -> Stage:
    """Lists this host's files, or short runs out of all of them, in a new order every epoch."""
    shuffle = _shuffle_runs if plan.scatters else _shuffle_files

    def apply(epochs: tf.data.Dataset | None) -> tf.data.Dataset:
        return shuffle(plan, tf.data.Dataset.range(1) if epochs is None else epochs)

    settings = {**_file_settings(plan), "order": "throughput"}
    if not plan.scatters:
        return Stage("list", apply, settings, "files in a new order every epoch")
    reason = "short runs of small records in a new order every epoch, so that a short shuffle buffer mixes them"
    return Stage("list", apply, {**settings, "run_records": SCATTERED_RECORDS}, reason)


def list_once(plan: ReadPlan) -> Stage:
    """Lists this host's share of the records for evaluation; all files if nobody counted their records."""
    if plan.source.shard_records is None:
        return Stage("list", lambda _: _list_all_files(plan), _file_settings(plan), "one pass over all files")
    settings = {**_file_settings(plan), "records_here": len(record_numbers(plan, evaluation_runs(plan)))}
    reason = "every record once, an equal share for each host"
    return Stage("list", lambda _: list_runs_once(plan, evaluation_runs(plan)), settings, reason)


def list_first_use(plan: ReadPlan) -> Stage:
    """Lists the records of the first epoch, for a cache that is filled by it."""
    reason = "the cache is filled in the order of the first epoch, which then waits for nothing else"
    return Stage("list", lambda _: _exact_order.list_first_tracks(plan), _file_settings(plan), reason)


def list_runs_once(plan: ReadPlan, runs: IntArray) -> tf.data.Dataset:
    """Lists runs that are read once, in this order: number of the first record, count."""
    shard, first, count = split_runs(runs, plan.config.block_length).T
    return tf.data.Dataset.from_tensor_slices((tf.constant(plan.source.bases[shard] + first), tf.constant(count)))


def list_batches_once(plan: ReadPlan) -> tf.data.Dataset:
    """Lists the records that are read once as `_exact_order.list_batches` does, without seeds: all are 0.

    They are those of an evaluation, or in training those that a cache keeps, in the order of their first use.
    """
    if plan.config.training:
        numbers = np.concatenate(first_use_numbers(plan))
    else:
        numbers = record_numbers(plan, evaluation_runs(plan))
    batches = tf.data.Dataset.from_tensor_slices(tf.constant(numbers)).batch(plan.batch_size)
    return batches.map(lambda records: (records, tf.zeros([tf.size(records), 2], tf.int32)))


def evaluation_runs(plan: ReadPlan) -> IntArray:
    """Returns the runs of this host's share of the evaluation, of which the plan may choose some: int64 [n, 3]."""
    runs = evaluation_order(plan.source.shard_records or (), plan.num_hosts, plan.host)
    if plan.chosen is None:
        return runs
    numbers = record_numbers(plan, runs)
    return join_into_runs(plan, numbers[plan.chosen[numbers]])


def first_use_numbers(plan: ReadPlan) -> tuple[IntArray, IntArray]:
    """Returns the records of the first epoch from the start step on, in their order, and all others in file order.

    Both are numbers counted through all files: int64 [n] and [m]. Those of the first epoch are its rising numbers. If
    the plan chooses records, both lists have only these.
    """
    epoch, step = plan.start
    steps = np.arange(step, plan.steps_per_epoch or 0)
    first = plan.order.rising_numbers(
        epoch, plan.order.row_positions(steps, plan.global_batch_size, plan.rows).reshape(-1)
    )
    unread = np.ones(plan.source.num_records or 0, bool)
    unread[first % len(unread)] = False
    if plan.chosen is not None:
        first, unread = first[plan.chosen[first % len(unread)]], unread & plan.chosen
    return first, np.flatnonzero(unread)


def record_numbers(plan: ReadPlan, runs: IntArray) -> IntArray:
    """Returns the number of each record in the runs, counted over all files: int64 [records]."""
    shard, record = expand_runs(runs).T
    numbers: IntArray = plan.source.bases[shard] + record
    return numbers


def split_runs(runs: IntArray, max_records: int) -> IntArray:
    """Splits runs into runs of at most `max_records` records, so that several are read at once: int64 [n, 3]."""
    shard, first, count = runs.T
    parts = -(-count // max_records)
    row = np.repeat(np.arange(len(runs)), parts)
    at = (np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)) * max_records
    return np.stack([shard[row], first[row] + at, np.minimum(count[row] - at, max_records)], axis=1)


def _list_all_files(plan: ReadPlan) -> tf.data.Dataset:
    """Lists all files once and in order: number of the file, epoch 0."""
    epoch = tf.constant(0, tf.int64)
    return tf.data.Dataset.range(len(plan.source.files)).map(lambda file: (file, epoch))


def _shuffle_runs(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists short runs of this host's files in a new order every epoch: number of the file, first, count, epoch."""
    _check_files(plan)
    # The files of other hosts count as empty.
    records = [
        count if file % plan.num_hosts == plan.host else 0 for file, count in enumerate(plan.source.shard_records or ())
    ]
    seed = key_of(FILES, plan.config.seed, plan.start_step)
    order = ExactOrder(tuple(records), seed, num_streams=1, run_records=SCATTERED_RECORDS)

    def list_part(epoch: tf.Tensor, start: tf.Tensor) -> tf.data.Dataset:
        positions = tf.range(start, tf.minimum(start + LISTED_RECORDS, order.num_records))
        file, first, count = _exact_order.make_runs(order, epoch, positions)
        return tf.data.Dataset.from_tensor_slices((file, first, count)).map(lambda *run: (*run, epoch))

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        starts = tf.data.Dataset.range(0, order.num_records, LISTED_RECORDS)
        return starts.flat_map(lambda start: list_part(epoch, start))

    return epochs.flat_map(list_epoch)


def _shuffle_files(plan: ReadPlan, epochs: tf.data.Dataset) -> tf.data.Dataset:
    """Lists this host's files in a new order every epoch: number of the file, epoch."""
    _check_files(plan)
    host_files = np.arange(plan.host, len(plan.source.files), plan.num_hosts, dtype=np.int64)
    prefix = key_of(FILES, plan.config.seed, plan.start_step)

    def list_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = _order_ops.make_permutations(_order_ops.extend_key(prefix, epoch), tf.constant(len(host_files)))
        shuffled = tf.gather(tf.constant(host_files), order)
        return tf.data.Dataset.from_tensor_slices(shuffled).map(lambda file: (file, epoch))

    return epochs.flat_map(list_epoch)


def _check_files(plan: ReadPlan) -> None:
    if len(plan.source.files) < plan.num_hosts:
        raise ConfigError(
            f"{plan.num_hosts} input pipelines but only {len(plan.source.files)} files in {plan.source.name}. Write "
            f"{plan.num_hosts} or more shards, or read in exact order, which shares out records."
        )


def join_into_runs(plan: ReadPlan, numbers: IntArray) -> IntArray:
    """Joins rising record numbers into runs, cut where a number is missing or a shard ends: int64 [n, 3]."""
    bases = plan.source.bases
    shard = np.searchsorted(bases, numbers, side="right") - 1
    begins_run = np.ones(len(numbers), bool)
    begins_run[1:] = (np.diff(numbers) != 1) | (np.diff(shard) != 0)
    starts = np.flatnonzero(begins_run)
    counts = np.diff(np.append(starts, len(numbers)))
    return np.stack([shard[starts], numbers[starts] - bases[shard[starts]], counts], axis=1).astype(np.int64)


def _file_settings(plan: ReadPlan) -> dict[str, object]:
    return {"files": len(plan.source.files), "host": f"{plan.host} of {plan.num_hosts}"}
