"""The stage `prefetch`: batches that wait for the trainer, from this host or from the workers of a tf.data service."""

from __future__ import annotations

import tensorflow as tf

from tfpipe.pipeline import service_client, service_steps
from tfpipe.pipeline.native_stages import make_worker_options
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage, Stages


def prefetch_batches(plan: ReadPlan) -> Stage:
    """Prepares batches ahead of the trainer, and says how many there will be."""
    config = plan.config

    def apply(batches: tf.data.Dataset) -> tf.data.Dataset:
        count = _count_batches(plan)
        if count is not None:
            batches = batches.apply(tf.data.experimental.assert_cardinality(count))
        if config.service is not None and not plan.by_steps:
            # Workers obey the options that are set above the service.
            batches = batches.with_options(make_worker_options(plan))
            batches = service_client.distribute(
                batches, config.service, training=config.training, limit_s=config.service_timeout_s
            )
        return wait_ahead(batches)

    def apply_around(stages: Stages) -> tf.data.Dataset:
        shares = service_steps.choose_shares(plan, stages)
        settings["service_share"] = shares
        batches = service_steps.distribute_steps(plan, stages, shares)
        return wait_ahead(batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)))

    def wait_ahead(batches: tf.data.Dataset) -> tf.data.Dataset:
        if config.prefetch_batches == 0:
            return batches
        return batches.prefetch(config.prefetch_batches or tf.data.AUTOTUNE)

    settings: dict[str, object] = {"buffer_size": config.prefetch_batches, "service": config.service or "none"}
    if plan.by_steps:
        settings["service_share"] = config.service_share
    reason = "the next batch is made while the device works on this one"
    return Stage("prefetch", apply, settings, reason, apply_around=apply_around if plan.by_steps else None)


def _count_batches(plan: ReadPlan) -> int | None:
    """Counts the batches of the whole dataset; None if nobody counted the records."""
    if plan.config.training:
        infinite: int = tf.data.INFINITE_CARDINALITY
        return infinite
    steps = plan.steps_per_epoch
    return None if steps is None else steps * plan.host_batch_size // plan.batch_size
