"""Which records, in which order, and how they are read: the stages from `repeat` to `shuffle`."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _exact_order, _memory_cache, _read
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.units import human_bytes


def repeat(plan: ReadPlan) -> Stage:
    """Epochs without end."""
    reason = "each epoch has an order of its own, so epochs come before files"
    return Stage("repeat", lambda _: _exact_order.list_epochs(plan), {"first_epoch": plan.start[0]}, reason)


def list_exact(plan: ReadPlan) -> Stage:
    """Runs of records in the exact order."""
    order = plan.order
    settings = {
        **_files(plan),
        "order": "exact",
        "seed": order.seed,
        "num_streams": order.num_streams,
        "streams_here": len(plan.streams),
        "run_records": order.run_records,
        "start_step": plan.start_step,
    }
    reason = "runs of adjacent records, permuted over all files: the same for any number of hosts, from any step on"
    return Stage("list", lambda epochs: _exact_order.list_exact(plan, epochs), settings, reason)


def list_files(plan: ReadPlan) -> Stage:
    """Files in a new order every epoch."""

    def apply(epochs: tf.data.Dataset | None) -> tf.data.Dataset:
        return _read.list_files(plan, tf.data.Dataset.range(1) if epochs is None else epochs)

    return Stage("list", apply, {**_files(plan), "order": "throughput"}, "files in a new order every epoch")


def list_once(plan: ReadPlan) -> Stage:
    """The evaluation's files, or this host's share of their records."""
    if plan.source.shard_records is None:
        return Stage("list", lambda _: _read.list_all(plan), _files(plan), "one pass over all files")
    settings = {**_files(plan), "records_here": len(_read.numbers_of(plan, _read.evaluation_runs(plan)))}
    reason = "every record once, an equal share for each host"
    return Stage("list", lambda _: _read.list_once(plan, _read.evaluation_runs(plan)), settings, reason)


def list_first_use(plan: ReadPlan) -> Stage:
    """Every record once, those first that training needs first."""
    reason = "the cache is filled in the order of the first epoch, which then waits for nothing else"
    return Stage("list", lambda _: _read.list_once(plan, _memory_cache.first_use(plan)), _files(plan), reason)


def read_exact(plan: ReadPlan) -> Stage:
    """Payloads of runs."""
    block = plan.order.run_records
    reason = "runs are read side by side and leave in the order of the list"
    return Stage("read", lambda runs: _read.read_runs(plan, runs, block), _reading(plan, block, True), reason)


def read_files(plan: ReadPlan) -> Stage:
    """Records of files, a block of each in turn."""
    settings = _reading(plan, plan.config.block_length, plan.deterministic)
    return Stage("read", lambda files: _read.read_files(plan, files), settings, "several files side by side")


def read_once(plan: ReadPlan) -> Stage:
    """The evaluation's records."""
    if plan.source.shard_records is None:
        return read_files(plan)
    return _read_list(plan, lambda: _read.evaluation_runs(plan), "in the order of the files")


def read_first_use(plan: ReadPlan) -> Stage:
    """The records that a cache keeps."""
    return _read_list(plan, lambda: _memory_cache.first_use(plan), "once: from then on records come from the cache")


def _read_list(plan: ReadPlan, runs: Callable[[], IntArray], reason: str) -> Stage:
    block = plan.config.block_length

    def apply(pieces: tf.data.Dataset) -> tf.data.Dataset:
        return _read.number_records(plan, _read.read_runs(plan, pieces, block), runs())

    return Stage("read", apply, _reading(plan, block, True), reason)


def shuffle_exact(plan: ReadPlan) -> Stage:
    """Windows, permuted."""
    records = min(plan.order.window_records, plan.order.records_per_stream) * len(plan.streams)
    size = human_bytes(records * plan.source.record_bytes)
    reason = f"encoded records, permuted within windows: {size} at a time, and as much again while the next is read"
    settings = {"window_records": plan.order.window_records, "records_in_memory": records}
    return Stage("shuffle", lambda payloads: _exact_order.shuffle_exact(plan, payloads), settings, reason)


def shuffle_buffer(plan: ReadPlan) -> Stage:
    """The classic buffer."""
    records = plan.shuffle_records
    reason = f"encoded records, not images: about {human_bytes(records * plan.source.record_bytes)}"
    return Stage("shuffle", lambda dataset: _read.shuffle_buffer(plan, dataset), {"buffer_size": records}, reason)


def _files(plan: ReadPlan) -> dict[str, object]:
    return {"files": len(plan.source.files), "host": f"{plan.host} of {plan.num_hosts}"}


def _reading(plan: ReadPlan, block_length: int, deterministic: bool) -> dict[str, object]:
    config = plan.config
    return {
        "cycle_length": config.cycle_length,
        "block_length": block_length,
        "num_parallel_calls": config.read_parallel_calls,
        "deterministic": deterministic,
    }
