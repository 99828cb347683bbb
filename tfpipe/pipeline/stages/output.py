"""From finished images to the batches that a trainer takes: the stages `batch` and `prefetch`."""

from __future__ import annotations

import tensorflow as tf

from tfpipe.pipeline import service_client
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage, tf_data_options
from tfpipe.pipeline.stages import _outputs


def batch(plan: ReadPlan) -> Stage:
    """Batches of static shape, in the form that was asked for."""

    def apply(examples: tf.data.Dataset) -> tf.data.Dataset:
        if not plan.config.training:
            examples = _outputs.pad_evaluation(plan, examples)
        batches = examples.batch(plan.batch_size, drop_remainder=True)
        return batches.map(lambda features: _outputs.finish(plan, features))

    settings = {"batch_size": plan.batch_size, "global_batch_size": plan.global_batch_size}
    reason = "static shapes" if plan.config.training else "static shapes; the last batch is filled up and masked"
    return Stage("batch", apply, settings, reason)


def prefetch(plan: ReadPlan) -> Stage:
    """Batches that wait for the trainer, and how many there will be."""
    config = plan.config

    def apply(batches: tf.data.Dataset) -> tf.data.Dataset:
        if config.training:
            count = tf.data.INFINITE_CARDINALITY
        else:
            steps = plan.steps_per_epoch
            count = None if steps is None else steps * plan.host_batch_size // plan.batch_size
        if count is not None:
            batches = batches.apply(tf.data.experimental.assert_cardinality(count))
        if config.service is not None:
            # Workers obey the options that are set above the service.
            batches = batches.with_options(tf_data_options(config, plan.deterministic))
            batches = service_client.distribute(batches, config.service, training=config.training)
        if config.prefetch_batches == 0:
            return batches
        return batches.prefetch(config.prefetch_batches or tf.data.AUTOTUNE)

    settings = {"buffer_size": config.prefetch_batches, "service": config.service or "none"}
    return Stage("prefetch", apply, settings, "the next batch is made while the device works on this one")
