"""Tensors: stacked where all have one shape, padded or cut to one, or a list."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.features import BatchFeature
from tfpipe.engine.parse import BadRecord, Column
from tfpipe.errors import FormatError


def make_tensors(feature: BatchFeature, column: Column, sizes: Column | None, filled: int) -> dict[str, Any]:
    """Makes the part of a batch that holds tensors, with `filled` ones of zeros behind the records.

    Under the feature's name is an array [rows, *shape], or a list of arrays that have several shapes. The values of
    bfloat16 are their bits, as uint16. Beside padded tensors are their stored sizes, int32 [rows, axes].
    """
    kind = feature.spec.tensor
    assert kind is not None
    column.check_counts(1, feature.name)
    tensors: list[NDArray[Any]] = []
    all_sizes: list[Any] = [None] * len(column.counts) if sizes is None else sizes.list_records()
    for row, stored_sizes in enumerate(all_sizes):
        try:
            tensors.append(kind.read_bits(column.get_bytes(row), stored_sizes))
        except FormatError as error:
            raise BadRecord(row, f"{feature.name!r} must be {error}") from None
    shape = [size or 0 for size in feature.shape]
    if feature.is_ragged:
        return {feature.name: [*tensors, *[np.zeros(shape, kind.bits)] * filled]}
    stacked = np.zeros((len(tensors) + filled, *shape), kind.bits)
    if feature.pad_to is None:
        for row, tensor in enumerate(tensors):
            stacked[row] = tensor
        return {feature.name: stacked}
    stored = np.zeros((len(stacked), len(feature.pad_to)), np.int32)
    for row, tensor in enumerate(tensors):
        _put(stacked[row], tensor, feature.pad_to)
        stored[row] = tensor.shape[: len(feature.pad_to)]
    return {feature.name: stacked, feature.sizes_name: stored}


def _put(target: NDArray[Any], tensor: NDArray[Any], pad_to: tuple[int, ...]) -> None:
    """Puts as much of a tensor as fits at the beginning of zeros."""
    cut = tensor[tuple(slice(size) for size in pad_to)]
    target[tuple(slice(size) for size in cut.shape)] = cut
