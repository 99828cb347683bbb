"""The features of the records that a batch holds besides images: which ones, the sizes that they are padded to, and
their arrays: numbers, text, tensors, and classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.parse import BadRecord, Column
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.schema import CLASS_TEXT, IMAGE_HEIGHT, IMAGE_WIDTH, RESERVED, FeatureSpec
from tfpipe.system.hash_permutation import IntArray

_BOXES = "image/object/"
_LEAST = -(2**63) + 1  # the least int64 stands for "no class" elsewhere
_PADDING: dict[str, Any] = {"bytes": b"", "int64": -1, "float": 0.0}


@dataclass(frozen=True)
class BatchFeature:
    """A feature of the records that a batch holds besides image and label."""

    spec: FeatureSpec
    pad_to: tuple[int, ...] | None = None  # the size of each unknown axis of a tensor, or of a list
    multi_hot: bool = False  # whether classes become a vector with a 1 for each

    @property
    def name(self) -> str:
        """The name of the feature, in the records and in the batch."""
        return self.spec.name

    @property
    def is_ragged(self) -> bool:
        """Whether records of one batch may have different shapes."""
        return self.num_unknown > 0 and self.pad_to is None and not self.multi_hot

    @property
    def num_unknown(self) -> int:
        """The number of axes whose size differs between records."""
        tensor = self.spec.tensor
        return int(self.spec.shape is None) if tensor is None else tensor.num_unknown

    @property
    def is_box(self) -> bool:
        """Whether the feature has a value for each bounding box; a batch does not hold the number of these values."""
        return self.name.startswith(_BOXES) and self.spec.tensor is None

    @property
    def sizes_name(self) -> str:
        """The name under which a batch holds the stored sizes of a padded tensor or list."""
        return f"{self.name}.sizes"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of a tensor in a batch, without the axis of the batch."""
        assert self.spec.tensor is not None
        unknown, shape = self.spec.tensor.num_unknown, self.spec.tensor.shape
        return shape if self.pad_to is None else (*self.pad_to, *shape[unknown:])


def list_batch_features(source: Source, config: PipelineConfig) -> tuple[BatchFeature, ...]:
    """Lists a batch's other features: `extra_features`, or all if none is named and the records have no image."""
    schema, names = source.schema, config.extra_features
    if not names and not source.has_images:
        left_out = {source.label_key, CLASS_TEXT, *schema.sizes_keys}
        names = tuple(name for name in schema.names if name not in left_out)
    if source.value_key is not None and source.value_key not in names:
        names = (*names, source.value_key)
    free = {name for name, is_used in (("image", source.has_images), ("label", source.label_key)) if not is_used}
    for name in names:
        if name in RESERVED and name not in free:
            raise ConfigError(f"`extra_features` must not name {name!r}: the pipeline uses this name itself.")
        if name not in schema:
            raise ConfigError(
                f"`extra_features` must name features of {source.name}, got {name!r}; it has {', '.join(schema.names)}."
            )
    sizes = {name: size if isinstance(size, tuple) else (size,) for name, size in config.pad_to.items()}
    boxes = (name for name in names if name.startswith(_BOXES) and schema[name].shape is None)
    sizes = {**dict.fromkeys(boxes, (config.max_boxes,)), **sizes}
    advice = {name: " Add it to `extra_features`." for name in schema.names if name not in {*names, *RESERVED}}
    for name in config.multi_hot:
        if name not in names or not schema[name].names:
            listed = ", ".join(name for name in names if schema[name].names) or "none"
            more = advice[name] if name in advice and schema[name].names else ""
            raise ConfigError(f"`multi_hot` must name lists of classes in the batch ({listed}), got {name!r}.{more}")
    features = tuple(BatchFeature(schema[name], sizes.pop(name, None), name in config.multi_hot) for name in names)
    for feature in (feature for feature in features if feature.pad_to is not None):
        if feature.multi_hot:
            raise ConfigError(f"`pad_to` must not name {feature.name!r}, which `multi_hot` names too. Choose one.")
        if (given := len(feature.pad_to or ())) != feature.num_unknown:
            what = feature.spec.tensor or feature.spec.kind
            raise ConfigError(
                f"`pad_to` must give {feature.name!r} a size for each unknown axis, got {given} for {what}."
            )
    if sizes:
        name = next(iter(sizes))
        has = f"it has {', '.join(names) or 'none'}.{advice.get(name, '')}"
        raise ConfigError(f"`pad_to` must name features of the batch, got {name!r}; {has}")
    return features


def list_stored_features(source: Source, features: Sequence[BatchFeature]) -> tuple[str, ...]:
    """Lists the stored features that must be read to make a batch."""
    sizes = (IMAGE_HEIGHT, IMAGE_WIDTH) if source.has_sizes else ()
    names = [source.image_key, *source.more_images, source.label_key, *sizes]
    for feature in features:
        names += [feature.name, feature.spec.tensor.sizes if feature.spec.tensor is not None else None]
    return tuple(name for name in names if name is not None)


def make_values(feature: BatchFeature, column: Column, filled: int) -> dict[str, Any]:
    """Makes the batch's entries for a feature of numbers or text, with `filled` rows of zeros or empty text.

    Numbers are int64 or float32 [rows, *shape], padded lists [rows, length], and other lists a list of arrays. Text is
    a list, in which each record has one bytes object, or a list of them unless the shape is `()`. Padded lists, except
    those of boxes, come with their stored lengths, int32 [rows, 1].
    """
    spec, name = feature.spec, feature.name
    if spec.shape is not None:
        return {name: _stack_values(spec, column, filled)}
    if feature.pad_to is None:
        empty: Any = np.zeros(0, column.values.dtype) if column.memory is None else []
        return {name: [*column.list_records(), *[empty] * filled]}
    length, padding = feature.pad_to[0], _PADDING[spec.dtype]
    if column.memory is not None:
        texts = [[*row[:length], *[padding] * (length - len(row))] for row in column.list_records()]
        padded: Any = [*texts, *[[b""] * length for _ in range(filled)]]
    else:
        padded = np.zeros((len(column.counts) + filled, length), column.values.dtype)
        padded[: len(column.counts)] = padding
        rows, indices = locate_values(column)
        fits = indices < length
        padded[rows[fits], indices[fits]] = column.values[fits]
    if feature.is_box:
        return {name: padded}
    sizes = np.concatenate((column.counts, np.zeros(filled, np.int64)))[:, None].astype(np.int32)
    return {name: padded, feature.sizes_name: sizes}


def _stack_values(spec: FeatureSpec, column: Column, filled: int) -> Any:
    assert spec.shape is not None
    count = int(np.prod(spec.shape, dtype=int))
    column.check_counts(count, spec.name)
    if column.memory is None:
        rows = column.values.reshape(-1, *spec.shape)
        return np.concatenate((rows, np.zeros((filled, *spec.shape), rows.dtype))) if filled else np.array(rows)
    if spec.shape == ():
        return [*column.list_bytes(), *[b""] * filled]
    return column.list_records() + [[b""] * count] * filled


def locate_values(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns each value's record, and its index among the record's values, both int64 [values]."""
    rows = np.repeat(np.arange(len(column.counts)), column.counts)
    return rows, np.arange(len(rows)) - np.repeat(column.firsts, column.counts)


def make_tensors(feature: BatchFeature, column: Column, sizes: Column | None, filled: int) -> dict[str, Any]:
    """Makes the batch's entries for a feature of tensors, with `filled` tensors of zeros after the records.

    Tensors are an array [rows, *shape], or a list of arrays if their shapes differ. bfloat16 values are held as their
    bits, in uint16. Padded tensors come with their stored sizes, int32 [rows, axes].
    """
    kind = feature.spec.tensor
    assert kind is not None
    is_list = kind.encoding == "list"
    if is_list and column.memory is None and not kind.num_unknown:
        return {feature.name: _stack_values(feature.spec, column, filled)}
    if not is_list:
        column.check_counts(1, feature.name)
    lists = column.list_records() if is_list else []
    tensors: list[NDArray[Any]] = []
    all_sizes: list[Any] = [None] * len(column.counts) if sizes is None else sizes.list_records()
    for row, stored_sizes in enumerate(all_sizes):
        try:
            if is_list:
                tensors.append(kind.read_list(lists[row], stored_sizes))
            else:
                tensors.append(kind.read_bits(column.get_bytes(row), stored_sizes))
        except FormatError as error:
            raise BadRecord(row, f"{feature.name!r} must be {error}") from None
    shape = [size or 0 for size in feature.shape]
    if feature.is_ragged:
        return {feature.name: [*tensors, *[np.zeros(shape, kind.bits)] * filled]}
    stacked = np.zeros((len(tensors) + filled, *shape), kind.bits)
    pad_to = feature.pad_to or ()
    stored = np.zeros((len(stacked), len(pad_to)), np.int32)
    for row, tensor in enumerate(tensors):  # what does not fit is cut off
        cut = tensor[tuple(map(slice, pad_to))]
        stacked[row, ...][tuple(map(slice, cut.shape))] = cut
        stored[row] = tensor.shape[: len(pad_to)]
    return {feature.name: stacked, feature.sizes_name: stored} if pad_to else {feature.name: stacked}


def make_labels(
    name: str, column: Column, base: int, classes: IntArray | None, num_classes: int | None, filled: int
) -> NDArray[Any]:
    """Makes the labels of a batch and `filled` zeros: int64 [rows], or one-hot float32 vectors with `num_classes`.

    Labels count from 0, which is stored as `base`. `classes` gives the number of each class in a mixture of datasets,
    where labels below 0, of no class, stay as they are.
    """
    column.check_counts(1, name)
    labels: IntArray = column.values
    if base:
        least = max(base + _LEAST, -(2**63)) if base > 0 else -(2**63)
        labels = np.where(labels < least, _LEAST, labels - base)
    if classes is not None:
        wrong = np.flatnonzero(labels >= len(classes))
        if len(wrong):
            row = int(wrong[0])
            raise BadRecord(row, f"its class must be at most {len(classes) - 1}, got {labels[row]}")
        labels, known = labels.copy(), labels >= 0
        labels[known] = classes[labels[known]]
    if num_classes is None:
        return np.concatenate((labels, np.zeros(filled, np.int64)))
    vectors = np.zeros((len(labels) + filled, num_classes), np.float32)
    vectors[: len(labels)] = labels[:, None] == np.arange(num_classes)
    return vectors


def make_multi_hot(spec: FeatureSpec, column: Column, filled: int) -> NDArray[np.float32]:
    """Makes a vector of each record's list of classes, with a 1 for each class in it: float32 [rows, classes]."""
    rows, _ = locate_values(column)
    wrong = np.flatnonzero((column.values < 0) | (column.values >= len(spec.names)))
    if len(wrong):
        got = column.values[wrong[0]]
        raise BadRecord(
            int(rows[wrong[0]]), f"{spec.name!r} must hold classes from 0 to {len(spec.names) - 1}, got {got}"
        )
    vectors = np.zeros((len(column.counts) + filled, len(spec.names)), np.float32)
    vectors[rows, column.values] = 1
    return vectors
