"""Numbers and text: one value of each record, a fixed number of them, or lists that are padded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.features import BatchFeature
from tfpipe.engine.parse import Column
from tfpipe.format.schema import FeatureSpec

_PADDING: dict[str, Any] = {"bytes": b"", "int64": -1, "float": 0.0}


def make_values(feature: BatchFeature, column: Column, filled: int) -> dict[str, Any]:
    """Makes the part of a batch that holds numbers or text, with `filled` rows of zeros or empty text.

    Under the feature's name is int64 or float32 [rows, *shape], where padded lists have the shape [length], and the
    others are a list with an array for each record. Text is a list, in which each record has one bytes object, or a
    list of them unless the shape is `()`. Beside padded lists are their stored lengths, int32 [rows, 1], but not beside
    those of boxes.
    """
    spec, name = feature.spec, feature.name
    if spec.shape is not None:
        return {name: _stack_values(spec, column, filled)}
    if feature.pad_to is None:
        return {name: _split_lists(column, filled)}
    padded = _pad_lists(column, feature.pad_to[0], _PADDING[spec.dtype], filled)
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
    texts = column.list_bytes()
    if spec.shape == ():
        return [*texts, *[b""] * filled]
    return [texts[k * count : (k + 1) * count] for k in range(len(column.counts))] + [[b""] * count] * filled


def _pad_lists(column: Column, length: int, padding: Any, filled: int) -> Any:
    """Pads or cuts the lists of all records to one length, and adds rows of zeros or empty text behind them."""
    records = len(column.counts)
    if column.memory is not None:
        texts, ends = column.list_bytes(), np.cumsum(column.counts).tolist()
        lists = [texts[begin:end][:length] for begin, end in zip([0, *ends], ends, strict=False)]
        return [*[row + [padding] * (length - len(row)) for row in lists], *[[b""] * length for _ in range(filled)]]
    padded = np.zeros((records + filled, length), column.values.dtype)
    padded[:records] = padding
    rows, places = locate_values(column)
    fits = places < length
    padded[rows[fits], places[fits]] = column.values[fits]
    return padded


def _split_lists(column: Column, filled: int) -> list[Any]:
    """Splits numbers into an array for each record, and text into a list, with empty ones behind them."""
    if column.memory is not None:
        texts, ends = column.list_bytes(), np.cumsum(column.counts).tolist()
        return [*(texts[begin:end] for begin, end in zip([0, *ends], ends, strict=False)), *[[]] * filled]
    lists = np.split(column.values, np.cumsum(column.counts)[:-1]) if len(column.counts) else []
    return [*lists, *[np.zeros(0, column.values.dtype)] * filled]


def locate_values(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the record of each value, and its place among the values of the record, each int64 [values]."""
    rows = np.repeat(np.arange(len(column.counts)), column.counts)
    return rows, np.arange(len(rows)) - np.repeat(column.firsts, column.counts)
