"""The stage `parse`: named features out of encoded records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.crops import CHOICE_KEY, list_image_words
from tfpipe.engine.features import BatchFeature
from tfpipe.engine.plan import BatchPlan, draws_images
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH, FeatureSpec
from tfpipe.pipeline.stage import Stage
from tfpipe.system.hash_permutation import EXAMPLE, key_of

Features = dict[str, tf.Tensor]

_TF_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
_UNREADABLE = {"uint32": tf.int32}  # `decode_raw` knows another dtype of the same bits
_PADDING: dict[str, Any] = {"bytes": "", "int64": -1, "float": 0.0}


def parse_records(plan: BatchPlan) -> Stage:
    """Parses the features that the pipeline needs out of each record."""

    def parse(payload: tf.Tensor, seed: tf.Tensor | None = None) -> Features:
        features = parse_example(plan, payload)
        if plan.source.per_record is not None:
            features, seed = choose_images(plan, features, tf.zeros([2], tf.int32) if seed is None else seed)
        return features if seed is None or caches_whole(plan.config) or not _draws(plan) else {**features, "seed": seed}

    def apply(records: tf.data.Dataset) -> tf.data.Dataset:
        if _draws(plan) and not caches_whole(plan.config):
            records = tf.data.Dataset.zip((records, _draw_seeds(plan)))
        return map_in_parallel(plan, records, parse)

    return Stage("parse", apply, parallel_settings(plan), "only the features that are needed")


def caches_whole(config: PipelineConfig) -> bool:
    """Returns whether a cache keeps whole decoded images, to be augmented anew every epoch."""
    return config.cache == "decoded" and config.training


def keeps_order(config: PipelineConfig) -> bool:
    """Returns whether elements keep their order, although a slow one then holds up the next."""
    chosen = config.tf_data.deterministic
    return not config.training if chosen is None else chosen


def add_seeds(plan: BatchPlan, images: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "seed", int32 [2], to the features of images that come from a cache, if the augmentation draws numbers."""
    if not _draws(plan):
        return images
    return tf.data.Dataset.zip((images, _draw_seeds(plan))).map(lambda features, seed: {**features, "seed": seed})


def _draws(plan: BatchPlan) -> bool:
    """Returns whether the augmentation, or the choice among several images, draws random numbers."""
    crops = plan.source.has_images and plan.config.augment != "none"
    return plan.config.training and (crops or draws_images(plan))


def _draw_seeds(plan: BatchPlan) -> tf.data.Dataset:
    """Draws a seed for each image, int32 [2], without end."""
    key = key_of(EXAMPLE, plan.config.seed, plan.host.start_step, plan.host.index) >> 1
    numbers = tf.data.Dataset.random(seed=key).batch(2, drop_remainder=True)
    return numbers.map(lambda pair: tf.cast(pair, tf.int32))


def parse_example(plan: BatchPlan, payload: tf.Tensor) -> Features:
    """Parses the features that the pipeline needs out of one `tf.train.Example`.

    Args:
        plan: The plan of the pipeline.
        payload: Scalar string.

    Returns:
        "encoded" (string), "label" (int64) where there are labels, "height" and "width" (int64, of the original)
        where the manifest vouches for them, and each further feature under its own name. Boxes are padded or cut to
        `max_boxes`, tensors and lists to `pad_to`. Without images there is no "encoded". Of several images "encoded",
        "height" and "width" have one value for each.
    """
    source, keys = plan.source, _choose_keys(plan)
    parsers = {key: _make_parser(source.schema[key]) for key in list_parsed_features(plan)}
    example = tf.io.parse_single_example(payload, parsers)
    features = {name: _densify(example[key]) for name, key in keys.items()}
    if source.label_base:
        features["label"] -= source.label_base
    for feature in plan.features:
        tensor = feature.spec.tensor
        if tensor is None:
            features |= _read_values(feature, example[feature.name])
        else:
            sizes = None if tensor.sizes is None else example[tensor.sizes]
            features |= _read_tensor(feature, example[feature.name], sizes)
    return features


def list_parsed_features(plan: BatchPlan) -> frozenset[str]:
    """Returns the features that the pipeline parses out of a record."""
    specs = [feature.spec for feature in plan.features]
    sizes = [spec.tensor.sizes for spec in specs if spec.tensor is not None and spec.tensor.sizes is not None]
    return frozenset({*_choose_keys(plan).values(), *(spec.name for spec in specs), *sizes})


def _choose_keys(plan: BatchPlan) -> dict[str, str]:
    """Returns the feature that holds each value, without the extra features."""
    source = plan.source
    keys = {} if source.image_key is None else {"encoded": source.image_key}
    if source.label_key is not None:
        keys["label"] = source.label_key
    if source.has_sizes:
        keys |= {"height": IMAGE_HEIGHT, "width": IMAGE_WIDTH}
    return keys


def choose_images(
    plan: BatchPlan, features: Mapping[str, Any], seed: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Chooses the images of a record, and gives each image a seed.

    The choice and the seeds follow from the record's seed, so they are those of `tfpipe.engine.crops`: images with the
    smallest of as many random numbers, in the order of the record. The seed of image k is the record's own, whose first
    word is changed by k; that of image 0 is not changed.

    Args:
        plan: The plan of the pipeline.
        features: The features: "encoded", and "height" and "width" if they are there, have a value for each image.
        seed: The seed of the record, int32 [2].

    Returns:
        The features with `num_images` values each, or without an axis for them if a batch holds the first image; and
        a seed for each image, int32 [images, 2], or the record's own.
    """
    lists = {name: features[name] for name in ("encoded", "height", "width") if name in features}
    number, counts = plan.num_images, plan.source.per_record
    assert counts is not None
    chosen = tf.range(number or 1)
    if draws_images(plan):
        assert number is not None
        chosen = _draw_images(seed, tf.size(lists["encoded"]), number, counts.largest)
    taken = {name: tf.gather(values, chosen) for name, values in lists.items()}
    if number is None:
        return {**features, **{name: values[0] for name, values in taken.items()}}, seed
    words = tf.gather(tf.constant(list_image_words(counts.largest)), chosen)
    seeds = tf.stack([tf.bitwise.bitwise_xor(seed[:1], words), tf.zeros_like(words) + seed[1:]], axis=-1)
    return {**features, **taken}, seeds


def _draw_images(seed: tf.Tensor, count: tf.Tensor, number: int, most: int) -> tf.Tensor:
    """Draws images without repetition: their numbers in the record, int32 [number]."""
    key = tf.bitwise.bitwise_xor(seed, tf.constant(CHOICE_KEY, tf.int32))
    numbers = tf.random.stateless_uniform([most], key, minval=None, maxval=None, dtype=tf.int32)
    ranks = tf.where(tf.range(most) < count, tf.cast(numbers, tf.int64), np.iinfo(np.int64).max)
    return tf.sort(tf.argsort(ranks, stable=True)[:number])


def map_in_parallel(plan: BatchPlan, dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Maps a function over a dataset with as many parallel calls as the config asks for."""
    calls = plan.config.tf_data.num_parallel_calls
    if calls is None:
        # Without autotuning, AUTOTUNE would mean at most 16 threads.
        calls = tf.data.AUTOTUNE if plan.config.autotunes else plan.config.max_threads
    return dataset.map(function, num_parallel_calls=calls, deterministic=keeps_order(plan.config))


def parallel_settings(plan: BatchPlan) -> dict[str, object]:
    """Returns what `map_in_parallel` is built with, for the settings of a stage."""
    return {"num_parallel_calls": plan.config.tf_data.num_parallel_calls, "deterministic": keeps_order(plan.config)}


def _densify(value: Any) -> Any:
    """Returns a list of any length without its indices."""
    return value.values if isinstance(value, tf.SparseTensor) else value


def _make_parser(spec: FeatureSpec) -> Any:
    dtype = _TF_DTYPES[spec.dtype]
    return tf.io.VarLenFeature(dtype) if spec.shape is None else tf.io.FixedLenFeature(spec.shape, dtype)


def _read_values(feature: BatchFeature, value: Any) -> dict[str, tf.Tensor]:
    """Reads values, or a list of them in the form that the config asks for."""
    if feature.multi_hot:
        return {feature.name: _make_multi_hot(_densify(value), len(feature.spec.names))}
    if feature.pad_to is None:
        return {feature.name: _densify(value)}
    (length,) = feature.pad_to
    padded = {feature.name: _pad_list(value, feature.spec, length)}
    return padded if feature.is_box else {**padded, feature.sizes_name: tf.cast(tf.size(value.values)[None], tf.int32)}


def _make_multi_hot(classes: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Makes a vector of a list of classes; a class outside of the range is an error."""
    ones = tf.ones_like(classes, tf.float32)
    return tf.tensor_scatter_nd_update(tf.zeros([num_classes]), classes[:, None], ones)


def _pad_list(value: Any, spec: FeatureSpec, length: int) -> tf.Tensor:
    """Pads or cuts a list to one length; -1, 0.0 or "" stand behind its end."""
    padding, values = tf.constant(_PADDING[spec.dtype], value.dtype), value.values[:length]
    return tf.ensure_shape(tf.concat([values, tf.fill([length - tf.size(values)], padding)], axis=0), [length])


def _read_tensor(feature: BatchFeature, data: tf.Tensor, sizes: tf.Tensor | None) -> dict[str, tf.Tensor]:
    """Reads a tensor; `sizes` are the stored sizes of its unknown axes, int64 [axes], if the record holds them.

    If it is padded, its stored sizes are beside it, int32 [axes].
    """
    kind = feature.spec.tensor
    assert kind is not None
    if kind.encoding == "proto":
        tensor = tf.io.parse_tensor(data, _get_dtype(kind.dtype))
    else:
        known = kind.shape[kind.num_unknown :]
        if kind.needs_sizes:
            assert sizes is not None
            shape = tf.concat([sizes, tf.constant(known, tf.int64, [len(known)])], axis=0)
        else:
            shape = tf.constant([-1] * kind.num_unknown + list(known), tf.int64, [len(kind.shape)])
        tensor = tf.reshape(_decode_raw(data, kind.dtype), shape)
    tensor = tf.ensure_shape(tensor, kind.shape)
    return {feature.name: tensor} if feature.pad_to is None else _pad(feature, tensor, feature.pad_to)


def _pad(feature: BatchFeature, tensor: tf.Tensor, pad_to: tuple[int, ...]) -> dict[str, tf.Tensor]:
    """Pads a tensor with zeros, or cuts it, and adds its sizes, which count what was cut too."""
    stored = tf.shape(tensor)[: len(pad_to)]
    cut = tensor[tuple(slice(size) for size in pad_to)]
    missing = tf.constant(pad_to) - tf.shape(cut)[: len(pad_to)]
    after = tf.concat([missing, tf.zeros([tensor.shape.rank - len(pad_to)], tf.int32)], axis=0)
    padded = tf.pad(cut, tf.stack([tf.zeros_like(after), after], axis=1))
    return {feature.name: tf.ensure_shape(padded, feature.shape), feature.sizes_name: stored}


def _decode_raw(data: tf.Tensor, dtype: str) -> tf.Tensor:
    values = tf.io.decode_raw(data, _UNREADABLE.get(dtype, _get_dtype(dtype)))
    return tf.bitcast(values, _get_dtype(dtype)) if dtype in _UNREADABLE else values


def _get_dtype(dtype: str) -> tf.DType:
    return tf.dtypes.as_dtype(dtype)
