"""The stage `parse`: named features out of encoded records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfpipe.engine.features import BatchFeature
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH, FeatureSpec
from tfpipe.pipeline.image_choice import choose_images
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _bad_records

Features = dict[str, tf.Tensor]

_TF_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
_UNREADABLE = {"uint32": tf.int32}  # `decode_raw` knows another dtype of the same bits
_PADDING: dict[str, Any] = {"bytes": "", "int64": -1, "float": 0.0}


def parse_records(plan: ReadPlan) -> Stage:
    """Parses the features that the pipeline needs out of each record."""

    def apply(records: tf.data.Dataset) -> tf.data.Dataset:
        return map_in_parallel(plan, leave_out_bad(plan, records), make_parser(plan))

    settings = {**parallel_settings(plan), "on_bad_record": plan.config.on_bad_record}
    return Stage("parse", apply, settings, "only the features that are needed")


def leave_out_bad(plan: ReadPlan, records: tf.data.Dataset) -> tf.data.Dataset:
    """Leaves out records that are missing, if the config asks for that and they can be told."""
    return _bad_records.leave_out(plan, records) if _skips_bad(plan) else records


def make_parser(plan: ReadPlan) -> Callable[..., Features]:
    """Makes the function from what `read` gives to the features of one record, or of a batch of records."""
    counted = plan.source.shard_records is not None
    in_order = counted and (plan.exact or not plan.config.training)

    def parse(read: tuple[tf.Tensor, tf.Tensor], number: tuple[tf.Tensor, ...]) -> Features:
        (place, payload), (record, seed) = read, number[:2]
        if in_order and not _skips_bad(plan):
            payload = _bad_records.or_raise(plan, payload, place, record)
        features = parse_example(plan, payload)
        if plan.source.per_record is not None:
            features, seed = choose_images(plan, features, seed)
        if not plan.caches_whole:
            return add_seed(plan, features, seed)
        # The stage `repeat` behind the cache adds seeds, in an order that is not exact from the record's number.
        return features if plan.exact else {**features, "number": record}

    return parse


def _skips_bad(plan: ReadPlan) -> bool:
    return plan.config.on_bad_record == "skip" and plan.source.shard_records is not None


def parse_example(plan: ReadPlan, payload: tf.Tensor) -> Features:
    """Parses the features that the pipeline needs out of one `tf.train.Example`, or out of several.

    Args:
        plan: The read plan.
        payload: Scalar string, or strings of shape [n].

    Returns:
        "encoded" (string), "label" (int64) where there are labels, "height" and "width" (int64, of the original)
        where the manifest vouches for them, "image/format" (string) where records come in two forms, and each further
        feature under its own name. Lists are padded or cut to `max_boxes`, tensors and classes to `pad_to`. Of
        several Examples each has an axis more. Without images there is no "encoded". Of several images "encoded",
        "height" and "width" have one value for each, as dense or ragged tensors.
    """
    source, keys = plan.source, _choose_keys(plan)
    parsers = {key: _make_parser(source.schema[key]) for key in list_parsed_features(plan)}
    parse = tf.io.parse_single_example if payload.shape.rank == 0 else tf.io.parse_example
    example = parse(payload, parsers)
    features = {name: _densify(example[key]) for name, key in keys.items()}
    if source.label_base:
        features["label"] -= source.label_base
    for feature in plan.features:
        tensor = feature.spec.tensor
        if feature.spec.names:
            features |= _read_classes(feature, example[feature.name])
        elif tensor is None:
            features[feature.name] = _pad_list(example[feature.name], feature.spec, plan.config.max_boxes)
        else:
            sizes = None if tensor.sizes is None else example[tensor.sizes]
            features |= _read_tensors(feature, example[feature.name], sizes)
    return features


def list_parsed_features(plan: ReadPlan) -> frozenset[str]:
    """Returns the features that the pipeline parses out of a record."""
    specs = [feature.spec for feature in plan.features]
    sizes = [spec.tensor.sizes for spec in specs if spec.tensor is not None and spec.tensor.sizes is not None]
    return frozenset({*_choose_keys(plan).values(), *(spec.name for spec in specs), *sizes})


def _choose_keys(plan: ReadPlan) -> dict[str, str]:
    """Returns the feature that holds each value, without the extra features."""
    source = plan.source
    keys = {} if source.image_key is None else {"encoded": source.image_key}
    if source.label_key is not None:
        keys["label"] = source.label_key
    if source.has_sizes:
        keys |= {"height": IMAGE_HEIGHT, "width": IMAGE_WIDTH}
    return keys


def add_seed(plan: ReadPlan, features: Mapping[str, tf.Tensor], seed: tf.Tensor) -> Features:
    """Adds "seed" where the augmentation draws random numbers.

    It is the record's seed in this epoch, int32 [2], or one for each of several images.
    """
    if not plan.config.training or plan.config.augment == "none" or not plan.source.has_images:
        return dict(features)
    return {**features, "seed": seed}


def map_in_parallel(plan: ReadPlan, dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Maps a function over a dataset with as many parallel calls as the config asks for."""
    calls = plan.config.num_parallel_calls
    if calls is None:
        # Without autotuning, AUTOTUNE would mean at most 16 threads.
        calls = tf.data.AUTOTUNE if plan.config.autotunes else plan.config.max_threads
    return dataset.map(function, num_parallel_calls=calls, deterministic=plan.deterministic)


def parallel_settings(plan: ReadPlan) -> dict[str, object]:
    """Returns what `map_in_parallel` is built with, for the settings of a stage."""
    return {"num_parallel_calls": plan.config.num_parallel_calls, "deterministic": plan.deterministic}


def _densify(value: Any) -> Any:
    """Returns lists of any length without their places: dense for one record, ragged for several."""
    if not isinstance(value, tf.SparseTensor):
        return value
    return value.values if value.shape.rank == 1 else tf.RaggedTensor.from_sparse(value)


def _make_parser(spec: FeatureSpec) -> Any:
    dtype = _TF_DTYPES[spec.dtype]
    return tf.io.VarLenFeature(dtype) if spec.shape is None else tf.io.FixedLenFeature(spec.shape, dtype)


def _read_classes(feature: BatchFeature, value: Any) -> dict[str, tf.Tensor]:
    """Reads the list of classes of one record, or of several, in the form that the config asks for."""
    if feature.multi_hot:
        return {feature.name: _make_multi_hot(value, len(feature.spec.names))}
    if feature.pad_to is None:
        assert not feature.is_ragged or value.shape.rank == 1  # a plan with such a feature reads record by record
        return {feature.name: value.values if feature.is_ragged else value}
    (length,) = feature.pad_to
    lists = tf.RaggedTensor.from_sparse(value) if value.shape.rank > 1 else None
    sizes = tf.size(value.values)[None] if lists is None else lists.row_lengths()[:, None]
    return {
        feature.name: _pad_list(value, feature.spec, length),
        feature.sizes_name: tf.cast(sizes, tf.int32),
    }


def _make_multi_hot(value: Any, num_classes: int) -> tf.Tensor:
    """Makes a vector for one list of classes, or for each of several; a class outside of the range is an error."""
    if isinstance(value, tf.SparseTensor):
        indices, classes = value.indices, value.values
    else:
        indices, classes = tf.where(tf.fill(tf.shape(value), True)), tf.reshape(value, [-1])
    places = tf.concat([indices[:, :-1], classes[:, None]], axis=1)
    zeros = tf.zeros(tf.concat([tf.shape(value)[:-1], [num_classes]], axis=0))
    vectors = tf.tensor_scatter_nd_update(zeros, places, tf.ones_like(classes, tf.float32))
    return tf.ensure_shape(vectors, [*value.shape[:-1], num_classes])


def _pad_list(value: Any, spec: FeatureSpec, length: int) -> tf.Tensor:
    """Pads or cuts lists to one length; -1, 0.0 or "" stand behind their ends. Returns other features as they are."""
    if spec.shape is not None:
        return value
    padding = tf.constant(_PADDING[spec.dtype], value.dtype)
    if value.shape.rank == 1:
        values = value.values[:length]
        return tf.ensure_shape(tf.concat([values, tf.fill([length - tf.size(values)], padding)], axis=0), [length])
    count = value.dense_shape[0]
    cut = tf.sparse.slice(value, [0, 0], [count, length])
    return tf.sparse.to_dense(tf.SparseTensor(cut.indices, cut.values, [count, length]), padding)


def _read_tensors(feature: BatchFeature, data: tf.Tensor, sizes: tf.Tensor | None) -> dict[str, tf.Tensor]:
    """Reads a tensor, or those of several records.

    Args:
        feature: The feature and its padding.
        data: Scalar string, or strings of shape [n].
        sizes: The stored sizes of the unknown axes, int64 [axes] or [n, axes]; None if the records hold none.

    Returns:
        The tensor under the feature's name. Of several records it has an axis more. If it is padded, its stored sizes
        are beside it, int32 [axes].
    """
    if data.shape.rank == 0:
        return _read_tensor(feature, data, sizes)
    tensor = feature.spec.tensor
    assert tensor is not None
    if tensor.encoding == "raw" and not tensor.num_unknown:
        return {feature.name: tf.reshape(_decode_raw(data, tensor.dtype), [-1, *tensor.shape])}
    assert not feature.is_ragged  # a plan with such a feature reads record by record
    outputs = {feature.name: tf.TensorSpec(feature.shape, _get_dtype(tensor.dtype))}
    if feature.pad_to is not None:
        outputs[feature.sizes_name] = tf.TensorSpec([tensor.num_unknown], tf.int32)
    stored = tf.zeros([tf.size(data), 0], tf.int64) if sizes is None else sizes
    tensors: dict[str, tf.Tensor] = tf.map_fn(
        lambda one: _read_tensor(feature, *one), (data, stored), fn_output_signature=outputs
    )
    return tensors


def _read_tensor(feature: BatchFeature, data: tf.Tensor, sizes: tf.Tensor | None) -> dict[str, tf.Tensor]:
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
