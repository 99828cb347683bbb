"""The stage `prefetch`: batches that wait for the trainer."""

from __future__ import annotations

import tensorflow as tf

from tfpipe.engine.plan import BatchPlan
from tfpipe.pipeline.stage import Stage


def prefetch_batches(plan: BatchPlan) -> Stage:
    """Prepares batches ahead of the trainer, and says how many there will be."""
    config = plan.config

    def apply(batches: tf.data.Dataset) -> tf.data.Dataset:
        count = _count_batches(plan)
        if count is not None:
            batches = batches.apply(tf.data.experimental.assert_cardinality(count))
        if config.prefetch_batches == 0:
            return batches
        return batches.prefetch(config.prefetch_batches or tf.data.AUTOTUNE)

    reason = "the next batch is made while the device works on this one"
    return Stage("prefetch", apply, {"buffer_size": config.prefetch_batches}, reason)


def _count_batches(plan: BatchPlan) -> int | None:
    """Counts the batches of the whole dataset; None if nobody counted the records, or a later stage ends each pass."""
    if plan.config.training:
        infinite: int = tf.data.INFINITE_CARDINALITY
        return infinite if plan.host.epochs is None else None
    known = plan.source.num_records is not None
    return plan.steps_per_epoch * plan.batch_size // plan.replica_batch_size if known else None
