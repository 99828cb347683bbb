"""A batch whose rows were made in several parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfpipe.system.hash_permutation import IntArray

_IMAGE = "image"


def join_rows(parts: Sequence[dict[str, Any]], rows: Sequence[IntArray], images_per_row: int = 1) -> dict[str, Any]:
    """Joins the parts of a batch by the rows that each has. An array of images is whole already in each part."""
    return {
        name: _join([part[name] for part in parts], rows, images_per_row if name == _IMAGE else 1)
        if name != _IMAGE or not isinstance(parts[0][name], np.ndarray)
        else parts[0][name]
        for name in parts[0]
    }


def _join(values: Sequence[Any], rows: Sequence[IntArray], per_row: int) -> Any:
    total = sum(map(len, rows))
    if isinstance(values[0], np.ndarray):
        joined = np.empty((total, *values[0].shape[1:]), values[0].dtype)
        for chosen, part in zip(rows, values, strict=True):
            joined[chosen] = part
        return joined
    listed: list[Any] = [None] * (total * per_row)
    for chosen, part in zip(rows, values, strict=True):
        for place, value in enumerate(part):
            listed[chosen[place // per_row] * per_row + place % per_row] = value
    return listed
