"""Decodes all images of a batch, and draws their crops, in one call that releases Python's lock.

All arguments with a shape are buffers in C order, such as NumPy's arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.native import library
from tfpipe.native.jpeg import MAX_PIXELS, RATIOS, Request
from tfpipe.native.library import get_memory

OK = 0
"""The result of an image that was decoded."""

_DTYPES = {"uint8": (0, 1), "float32": (1, 4), "bfloat16": (2, 2)}  # the number of each type, and a value's bytes


class _Crops(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_float) for name in ("min_area", "max_area", "min_aspect", "max_aspect")),
        ("stored", ctypes.c_int32 * 2),
    )


def decode(
    inputs: Any,  # int64 [n, 2]: address and number of bytes of each JPEG; the caller keeps them in memory
    boxes: Any,  # int32 [n, 4]: y, x, height and width of each crop in pixels of the stored image
    flips: Any,  # uint8 or bool [n]
    images: Any,  # gets the results: [n, height, width, 3], or more than n with `rows`; bfloat16 has two bytes
    *,
    sizes: Any = None,
    dtype: str = "uint8",
    offset: Sequence[float] = (0.0, 0.0, 0.0),
    factor: Sequence[float] = (1.0, 1.0, 1.0),
    max_ratio: int = 1,
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
    rows: NDArray[np.int64] | None = None,
) -> NDArray[np.int32]:
    """Decodes a crop of each of many JPEGs, resizes it bilinearly, mirrors it and converts its values.

    With `sizes`, int32 [n, 2], `inputs` has pixels instead of JPEGs: uint8 [height, width, 3] of these sides.
    Values of uint8 are rounded to the nearest, halves up; else they are (value - offset) * factor of each channel.
    Returns int32 [n]: `OK` for each image that was decoded; the pixels of others are undefined. Image k is written to
    `images[rows[k]]`, or without `rows` to `images[k]`; no two rows may be equal. `max_ratio` is 1, 2, 4 or 8: the
    largest reduction while decoding, never below the result's size. With one thread the caller decodes.
    """
    count, view = len(memoryview(inputs)), memoryview(images)
    results = np.zeros(count, np.int32)
    total, height, width, _ = (view.shape or ()) if view.ndim == 4 else (len(view), 0, 0, 0)
    if dtype not in _DTYPES or max_ratio not in RATIOS or 0 in (view.shape or ())[1:]:
        must = f"Images must have pixels of {', '.join(_DTYPES)}, and `max_ratio` must be 1, 2, 4 or 8"
        raise ValueError(f"{must}, got {view.shape}, {dtype!r} and {max_ratio}.")
    if len(offset) != 3 or len(factor) != 3:
        raise ValueError(f"`offset` and `factor` must have three numbers, got {len(offset)} and {len(factor)}.")
    if rows is not None and (len(set(rows.tolist())) < count or not all(0 <= row < total for row in rows.tolist())):
        raise ValueError(f"`rows` must be different numbers from 0 to {total - 1}.")
    code, value_bytes = _DTYPES[dtype]
    request = Request(dtype=code, offset=(*offset,), factor=(*factor,), seeks=1, max_pixels=max_pixels)
    request.out_height, request.out_width = height, width
    library.load().tfpipe_decode_batch(
        get_memory(inputs, "inputs", (count, 2), 8),
        None if sizes is None else get_memory(sizes, "sizes", (count, 2), 4),
        get_memory(boxes, "boxes", (count, 4), 4),
        get_memory(flips, "flips", (count,), 1),
        count,
        ctypes.byref(request),
        max_ratio,
        threads,
        None if rows is None else get_memory(rows, "rows", (count,), 8),
        get_memory(images, "images", (count if rows is None else total, height, width, 3), value_bytes),
        get_memory(results, "results", (count,), 4),
    )
    return results


def draw_crops(
    seeds: Any,  # int32 [n, 2]
    sizes: Any,  # [n, 2]: height and width of each original
    stored: tuple[int, int] | None = None,
    *,
    scale: Sequence[float],
    ratio: Sequence[float],
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Draws random resized crops, int32 [n, 4], and whether to mirror each, bool [n], by all images' seeds.

    If `stored` is given, the images were squeezed to this height and width, and crops are in its pixels. `scale` is the
    range of a crop's share of the area, `ratio` of width / height.
    """
    boxes, flips = np.empty((len(seeds), 4), np.int32), np.empty(len(seeds), np.bool_)
    count, tables = len(seeds), [np.array(table, np.int32, order="C") for table in (seeds, sizes)]
    result = library.load().tfpipe_draw_crops(
        get_memory(tables[0], "seeds", (count, 2), 4),
        get_memory(tables[1], "sizes", (count, 2), 4),
        count,
        ctypes.byref(_Crops(*scale, *ratio, stored or (0, 0))),
        get_memory(boxes, "boxes", (count, 4), 4),
        get_memory(flips, "flips", (count,), 1),
    )
    if result != OK:
        raise ValueError("Image height and width must be positive.")
    return boxes, flips
