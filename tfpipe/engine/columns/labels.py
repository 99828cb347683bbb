"""Classes: the one class of an image, and lists of classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.columns.values import locate_values
from tfpipe.engine.parse import BadRecord, Column
from tfpipe.format.schema import FeatureSpec
from tfpipe.system.hash_permutation import IntArray

_LEAST = -(2**63) + 1  # the least int64 stands for "no class" elsewhere


def number_classes(name: str, column: Column, base: int) -> IntArray:
    """Returns the class of each record, int64 [records], counted from 0, which is stored as `base`."""
    column.check_counts(1, name)
    stored: IntArray = column.values
    least = max(base + _LEAST, -(2**63)) if base > 0 else -(2**63)
    return np.where(stored < least, _LEAST, stored - base) if base else stored


def rename_classes(labels: IntArray, classes: IntArray) -> IntArray:
    """Returns the numbers that labels, int64 [records], have in a mixture of datasets, which numbers their classes."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        row = int(wrong[0])
        raise BadRecord(row, f"its class must be from 0 to {len(classes) - 1}, got {labels[row]}")
    renamed: IntArray = classes[labels]
    return renamed


def form_labels(labels: IntArray, num_classes: int | None, filled: int) -> NDArray[Any]:
    """Makes the labels of a batch, with rows of zeros: int64 [rows], or with `num_classes` one-hot float32 vectors."""
    if num_classes is None:
        return np.concatenate((labels, np.zeros(filled, np.int64)))
    vectors = np.zeros((len(labels) + filled, num_classes), np.float32)
    vectors[: len(labels)] = labels[:, None] == np.arange(num_classes)
    return vectors


def make_multi_hot(spec: FeatureSpec, column: Column, filled: int) -> NDArray[np.float32]:
    """Makes vectors of lists of classes: float32 [rows, classes], with a 1 for each class of the record."""
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
