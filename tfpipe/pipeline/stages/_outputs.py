"""From encoded records to named features, and from augmented images to the batches that a trainer gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH, FeatureSpec
from tfpipe.pipeline.plan.read_plan import ReadPlan

Features = dict[str, tf.Tensor]

_TF_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
_PADDING: dict[str, Any] = {"bytes": "", "int64": -1, "float": 0.0}


def parse(plan: ReadPlan, payload: tf.Tensor) -> Features:
    """Reads the features that the pipeline needs out of one `tf.train.Example`.

    Returns:
        "encoded" (string), "label" (int64) where there are labels, "height" and "width" (int64, of the original)
        where the manifest vouches for them, and each included feature under its own name; lists are padded or cut to
        `max_boxes`.
    """
    source = plan.source
    wanted = {"encoded": source.image_key}
    if source.label_key is not None:
        wanted["label"] = source.label_key
    if source.has_sizes:
        wanted |= {"height": IMAGE_HEIGHT, "width": IMAGE_WIDTH}
    included = {name: _spec(plan, name) for name in plan.config.extra_features}
    specs = {key: _parser(source.schema[key]) for key in wanted.values()}
    specs |= {name: _parser(spec) for name, spec in included.items()}
    example = tf.io.parse_single_example(payload, specs)
    features = {name: example[key] for name, key in wanted.items()}
    if source.label_base:
        features["label"] -= source.label_base
    for name, spec in included.items():
        features[name] = _padded(example[name], spec, plan.config.max_boxes)
    return features


def with_seed(plan: ReadPlan, features: Mapping[str, tf.Tensor], seed: tf.Tensor) -> Features:
    """The features, and where something is drawn the seed of this record in this epoch: "seed", int32 [2]."""
    if not plan.config.training or plan.config.augment == "none":
        return dict(features)
    return {**features, "seed": seed}


def pad_evaluation(plan: ReadPlan, examples: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "mask", and zeros behind the last example where the mask is False, so that the last batch is full.

    Every host yields the same number of batches, since hosts that step together must stop together. A padded image
    is 1 x 1 in the original: a device that divides by 0 gets NaN, which Keras' weight of 0 does not take away.
    """
    marked = examples.map(lambda features: {**features, "mask": tf.constant(True)})
    zeros = {
        name: tf.fill(spec.shape, "") if spec.dtype == tf.string else tf.zeros(spec.shape, spec.dtype)
        for name, spec in marked.element_spec.items()
    }
    zeros |= {name: tf.ones_like(zeros[name]) for name in ("height", "width") if name in zeros}
    steps, padding = plan.steps_per_epoch, tf.data.Dataset.from_tensors(zeros)
    if plan.num_hosts > 1 and plan.source.shard_records is None:
        raise ConfigError(
            f"Evaluation on {plan.num_hosts} hosts needs to know where each record lies, and {plan.source.unplaced}. "
            "Evaluate on one host."
        )
    if steps is None:
        padded = marked.concatenate(padding.repeat(plan.host_batch_size - 1))
        # A batch for each of the host's replicas, or for none.
        return padded.window(plan.host_batch_size, drop_remainder=True).flat_map(tf.data.Dataset.zip)
    total, own = steps * plan.host_batch_size, plan.evaluation_records or 0
    lost = min(plan.config.max_bad_records, own) if plan.config.on_bad_record == "skip" else 0
    padded = marked.concatenate(padding.repeat(total - own + lost))
    if not lost:
        return padded
    # Not `take`: it may end before what is cached has ended, and then the cache is thrown away.
    return padded.enumerate().filter(lambda i, _: i < total).map(lambda _, features: features)


def finish(plan: ReadPlan, batch: Features) -> Any:
    """What the trainer gets of a batch: a dictionary, or (image, label[, mask]) with `as_supervised`.

    Labels become int32, or with `one_hot` float32 [batch, classes]. In a tuple the mask is float32, as Keras takes
    sample weights; and with augment="device" the first element is a dictionary of image, height, width and seed.
    """
    config, result = plan.config, dict(batch)
    if "label" in result:
        result["label"] = tf.cast(result["label"], tf.int32)
        if config.one_hot:
            result["label"] = tf.one_hot(result["label"], plan.source.num_classes)
    if not config.as_supervised:
        return result
    inputs = {
        name: result[name] for name in ("image", "height", "width", "seed", *config.extra_features) if name in result
    }
    first = inputs if len(inputs) > 1 else inputs["image"]
    return (
        (first, result["label"], tf.cast(result["mask"], tf.float32)) if "mask" in result else (first, result["label"])
    )


def masked_sum(values: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The sum of a metric over real examples, and their number; add up both over batches and replicas, then divide.

    Args:
        values: Of shape [batch], such as `tf.equal(prediction, label)`; any number type or bool.
        mask: Of shape [batch]: bool, or float as in a tuple.

    Returns:
        float32 scalars: sum, count.
    """
    weights = tf.cast(mask, tf.float32)
    # Not a product alone: a padded image may have given NaN.
    kept = tf.where(weights > 0, tf.cast(values, tf.float32), 0.0)
    return tf.reduce_sum(kept * weights), tf.reduce_sum(weights)


def _spec(plan: ReadPlan, name: str) -> FeatureSpec:
    return plan.source.schema[name]


def _parser(spec: FeatureSpec) -> Any:
    dtype = _TF_DTYPES[spec.dtype]
    return tf.io.VarLenFeature(dtype) if spec.shape is None else tf.io.FixedLenFeature(spec.shape, dtype)


def _padded(value: Any, spec: FeatureSpec, length: int) -> tf.Tensor:
    """A list of any length as a tensor of one length; beyond the list -1, 0.0 or "" stand."""
    if spec.shape is not None:
        return value
    values = value.values[:length]
    padding = tf.fill([length - tf.size(values)], tf.constant(_PADDING[spec.dtype], values.dtype))
    return tf.ensure_shape(tf.concat([values, padding], axis=0), [length])
