"""The stage `shuffle`: encoded records in a new order, before they are decoded, so that what it holds is small."""

from __future__ import annotations

import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _bad_records, _exact_order
from tfpipe.pipeline.stages._bad_records import HOLE
from tfpipe.system.hash_permutation import FILES, key_of
from tfpipe.system.units import human_bytes


def shuffle_exact(plan: ReadPlan) -> Stage:
    """Permutes the records of each window and deals them to batches."""
    records = _exact_order.window_slots(plan)
    size = human_bytes(records * plan.source.record_bytes)
    reason = f"encoded records, permuted within windows: {size} at a time, and as much again while the next is read"
    settings = {"window_records": plan.window_records, "records_in_memory": records}
    return Stage("shuffle", lambda payloads: _permute_windows(plan, payloads), settings, reason)


def shuffle_buffer(plan: ReadPlan) -> Stage:
    """Draws each record from a buffer, as `tf.data` pipelines usually do."""
    records = plan.shuffle_records
    seed = key_of(FILES, plan.config.seed, plan.start_step, 1) >> 1
    reason = f"encoded records, not images: about {human_bytes(records * plan.source.record_bytes)}"
    return Stage("shuffle", lambda dataset: dataset.shuffle(records, seed=seed), {"buffer_size": records}, reason)


def _permute_windows(plan: ReadPlan, payloads: tf.data.Dataset) -> tf.data.Dataset:
    """Adds numbers and seeds to payloads, window by window. Holds a window, and the next one while it is read."""

    def pick(payloads: tf.Tensor, window: _exact_order.WindowRecords) -> tuple[tf.Tensor, ...]:
        picked = tf.gather(payloads, window.positions)
        if checks:
            holes = tf.equal(payloads[: tf.size(window.read_numbers)], HOLE)
            picked = _bad_records.or_raise(plan, picked, tf.boolean_mask(window.read_numbers, holes))
        return picked, window.numbers, window.seeds

    checks = plan.config.on_bad_record == "raise"
    windows = _exact_order.list_windows(plan, _exact_order.list_epochs(plan))
    records = windows.map(lambda *window: _exact_order.locate_records(plan, *window))
    return (
        tf.data.Dataset.zip((payloads.batch(_exact_order.window_slots(plan)), records))
        .map(pick)
        .prefetch(1)  # or reading would stand still until the window before has been read out
        .unbatch()
    )
