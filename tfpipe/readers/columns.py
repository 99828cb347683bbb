"""One feature of the records of a batch as an array or a list, for the readers without TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format.example import Feature
from tfpipe.format.schema import FeatureSpec
from tfpipe.pipeline.plan.batch_features import BatchFeature

_PADDING: dict[str, Any] = {"bytes": b"", "int64": -1, "float": 0.0}
_DTYPES: dict[str, Any] = {"int64": np.int64, "float": np.float32}


def make_columns(feature: BatchFeature, records: list[dict[str, Feature]], length: int, filled: int) -> dict[str, Any]:
    """Makes the part of a batch that holds a feature.

    Args:
        feature: The feature, and the sizes that its tensors are padded to.
        records: The records of the batch.
        length: The length of lists, which are padded or cut.
        filled: The number of rows of zeros behind the records.

    Returns:
        The feature under its name: an array, text as a list of bytes, tensors and classes of open size as a list of
        arrays. The values of bfloat16 are their bits, as uint16. If tensors or classes are padded, their stored sizes
        are beside them, int32.

    Raises:
        FormatError: A record does not hold what the schema says.
    """
    if feature.spec.names:
        return _make_classes(feature, records, filled)
    if feature.spec.tensor is None:
        return {feature.name: _make_column(feature.spec, records, length, filled)}
    tensors = [feature.spec.check_stored(record) for record in records]
    shape = [size or 0 for size in feature.shape]
    if feature.is_ragged:
        return {feature.name: [*tensors, *[np.zeros(shape, feature.spec.tensor.bits)] * filled]}
    column = np.zeros((len(records) + filled, *shape), feature.spec.tensor.bits)
    if feature.pad_to is None:
        for row, tensor in enumerate(tensors):
            column[row] = tensor
        return {feature.name: column}
    sizes = np.zeros((len(column), len(feature.pad_to)), np.int32)
    for row, tensor in enumerate(tensors):
        _put(column[row], tensor, feature.pad_to)
        sizes[row] = tensor.shape[: len(feature.pad_to)]
    return {feature.name: column, feature.sizes_name: sizes}


def _make_classes(feature: BatchFeature, records: list[dict[str, Feature]], filled: int) -> dict[str, Any]:
    """Makes the part of a batch that holds lists of classes, in the form that the config asks for."""
    spec, lists = feature.spec, list[NDArray[np.int64]]()
    for record in records:
        value = record.get(spec.name)
        lists.append(np.array([] if value is None else value, np.int64))
    if feature.is_ragged:
        return {spec.name: [*lists, *[np.zeros(0, np.int64)] * filled]}
    if feature.multi_hot:
        vectors = np.zeros((len(lists) + filled, len(spec.names)), np.float32)
        for vector, classes in zip(vectors, lists, strict=False):
            if np.any((classes < 0) | (classes >= len(vector))):
                raise FormatError(f"Every record must have classes from 0 to {len(vector) - 1} in {spec.name}.")
            vector[classes] = 1
        return {spec.name: vectors}
    if feature.pad_to is None:
        return {spec.name: _make_column(spec, records, 0, filled)}
    sizes = np.array([[len(classes)] for classes in lists] + [[0]] * filled, np.int32)
    return {spec.name: _make_column(spec, records, feature.pad_to[0], filled), feature.sizes_name: sizes}


def _put(place: NDArray[Any], tensor: NDArray[Any], pad_to: tuple[int, ...]) -> None:
    """Puts the part of a tensor that fits at the beginning of zeros."""
    part = tensor[tuple(slice(size) for size in pad_to)]
    place[tuple(slice(size) for size in part.shape)] = part


def _make_column(spec: FeatureSpec, records: list[dict[str, Feature]], length: int, filled: int) -> Any:
    """Makes an array of one feature; lists are padded or cut to `length`, text is a list for each record."""
    values = [record.get(spec.name) for record in records]
    rows: list[list[Any]] = [[] if value is None else list(value) for value in values]
    if spec.shape is None:
        rows = [[*row[:length], *[_PADDING[spec.dtype]] * (length - len(row))] for row in rows]
    count = length if spec.shape is None else int(np.prod(spec.shape, dtype=int))
    if any(len(row) != count for row in rows):
        raise FormatError(f"Every record must have {count} values of {spec.name}.")
    rows += [[b"" if spec.dtype == "bytes" else 0] * count for _ in range(filled)]
    if spec.dtype == "bytes":
        return [row[0] for row in rows] if spec.shape == () else rows
    return np.array(rows, _DTYPES[spec.dtype]).reshape(len(rows), *((length,) if spec.shape is None else spec.shape))
