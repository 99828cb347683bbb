"""The stages `batch` and `prefetch`: batches of static shape in the form that a trainer takes, and ahead of it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfpipe.engine.batch import form_batch
from tfpipe.engine.plan import BatchPlan, has_true_size
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages.parse import Features


def batch_examples(plan: BatchPlan) -> Stage:
    """Makes batches of static shape, in the form that the config asks for."""
    is_whole = not is_true_size(plan)

    def apply(examples: tf.data.Dataset) -> tf.data.Dataset:
        if not plan.config.training:
            examples = _pad_evaluation(plan, examples) if is_whole else _mark(examples)
        batches = examples.batch(plan.replica_batch_size, drop_remainder=is_whole)
        return batches.map(lambda features: _format_batch(plan, features))

    settings = {"batch_size": plan.config.batch_size, "per_replica": plan.replica_batch_size}
    return Stage("batch", apply, settings, describe_shapes(plan))


def is_true_size(plan: BatchPlan) -> bool:
    """Returns whether the last batch is not filled up: it is for several replicas, and for a TPU."""
    return has_true_size(plan.config, plan.replica_batch_size) and not tf.config.list_logical_devices("TPU")


def describe_shapes(plan: BatchPlan) -> str:
    """Describes the sizes of the batches."""
    if plan.config.training:
        return "static shapes"
    return (
        "the last batch is smaller" if is_true_size(plan) else "static shapes; the last batch is filled up and masked"
    )


def masked_sum(values: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums a metric over the real examples of a batch, and counts them.

    Add up both results over batches and replicas, then divide the sum by the count.

    Args:
        values: The metric of each example, of shape [batch] and any number type or bool, such as
            `tf.equal(prediction, label)`.
        mask: The batch's mask, of shape [batch]: bool, or float32 from a batch with `as_supervised`.

    Returns:
        Two float32 scalars: the sum and the count.
    """
    weights = tf.cast(mask, tf.float32)
    # A product is not enough: the metric of a padded image may be NaN.
    real_values = tf.where(weights > 0, tf.cast(values, tf.float32), 0.0)
    return tf.reduce_sum(real_values * weights), tf.reduce_sum(weights)


def _pad_evaluation(plan: BatchPlan, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "mask", and fills up the last batch with zeros, so that all hosts yield as many batches."""
    marked = _mark(examples)
    zeros = {name: _make_zeros(spec) for name, spec in marked.element_spec.items()}
    padding, records = tf.data.Dataset.from_tensors(zeros), plan.source.num_records
    if records is None:
        padded = marked.concatenate(padding.repeat(plan.batch_size - 1))
        # Either all replicas of the host get a batch, or none does.
        return padded.window(plan.batch_size, drop_remainder=True).flat_map(tf.data.Dataset.zip)
    missing = plan.steps_per_epoch * plan.batch_size - len(plan.host.share(records))
    return marked.concatenate(padding.repeat(missing))


def _mark(examples: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "mask", which is True."""
    return examples.map(lambda features: {**features, "mask": tf.constant(True)})


def _make_zeros(spec: tf.TensorSpec) -> tf.Tensor:
    """Makes zeros of a shape, or empty text; an axis of unknown size, which a stage of the user's left, has none."""
    shape = [size or 0 for size in spec.shape]
    return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)


def _format_batch(plan: BatchPlan, batch: Features) -> Any:
    """Returns a batch as the trainer gets it: a dictionary, or (image, label[, mask]) with `as_supervised`.

    Labels become int32, or with `one_hot` float32 [batch, classes]. In a tuple the mask of the padding is float32, as
    Keras takes sample weights.
    """
    config, result = plan.config, dict(batch)
    if "label" in result:
        result["label"] = tf.cast(result["label"], tf.int32)
        if config.one_hot:
            result["label"] = tf.one_hot(result["label"], plan.source.num_classes)
    if config.as_supervised and "mask" in result:
        result["mask"] = tf.cast(result["mask"], tf.float32)
    return form_batch(result, config)


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
