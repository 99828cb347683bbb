"""Draws the mask of an image from the segmentations of COCO's annotations, as `pycocotools` does.

A segmentation becomes runs: the pixels at which it begins and ends, numbered down each column, from left to right.
Shapes may overlap: crowds are drawn first, then the others from the largest to the smallest.
"""

import base64
import itertools
import json
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.images.errors import BadImage
from tfpipe.images.masks import encode_mask

Runs = NDArray[np.int64]
"""The pixels at which a shape begins and ends, one after the other: int64 [2 * n], in ascending order."""

_SCALE = 5  # polygons are traced in fifths of a pixel, as by pycocotools
_MAX_BORDER = 1 << 21  # points on the border of a polygon, which take 300 MB
_MAX_SIGNS = 12  # characters of a number in a packed text, with 5 bits each


class Shape(NamedTuple):
    """A segmentation in an image."""

    number: int  # of its annotation in the file, for messages
    mask_class: int
    is_crowd: bool  # whether it covers a group of objects
    text: str  # the segmentation as JSON


def pack_shapes(height: int, width: int, shapes: Sequence[Shape]) -> str:
    """Encodes the size of an image and its shapes as a compressed text in base64."""
    rows = ",".join(f"[{shape.number},{shape.mask_class},{int(shape.is_crowd)},{shape.text}]" for shape in shapes)
    return base64.b64encode(zlib.compress(f"[{height},{width},[{rows}]]".encode(), 1)).decode()


def draw_mask(packed: str, max_pixels: int) -> bytes:
    """Draws the shapes that `pack_shapes` encoded, and returns the mask of their classes as a PNG."""
    height, width, shapes = json.loads(zlib.decompress(base64.b64decode(packed)))
    if height * width > max_pixels:
        raise BadImage(f"{width} x {height} pixels, more than {max_pixels}")
    drawn = []
    for number, mask_class, is_crowd, segmentation in shapes:
        try:
            runs = get_runs(segmentation, height, width)
        except ValueError as error:
            raise BadImage(f"the segmentation of annotation {number} {error}") from error
        area = sum(int((each[1::2] - each[::2]).sum()) for each in runs)
        drawn.append((not is_crowd, -area, mask_class, runs))
    dtype = np.uint8 if all(mask_class < 256 for _, mask_class, *_ in shapes) else np.uint16
    pixels = np.zeros(height * width, dtype)
    for _, _, mask_class, runs in sorted(drawn, key=lambda shape: shape[:2]):
        for begin, end in itertools.chain.from_iterable(each.reshape(-1, 2).tolist() for each in runs):
            pixels[begin:end] = mask_class
    return encode_mask(pixels.reshape(width, height).T)


def get_runs(segmentation: Any, height: int, width: int) -> list[Runs]:
    """Returns the runs of each polygon of a segmentation, or the only runs of one that is given as run lengths."""
    if isinstance(segmentation, list):
        return [_trace_polygon(_read_polygon(polygon, height, width), height, width) for polygon in segmentation]
    if not isinstance(segmentation, dict):
        raise ValueError(f"must be polygons or runs, got {segmentation!r:.100}")
    size, counts = segmentation.get("size"), segmentation.get("counts")
    if size != [height, width]:
        raise ValueError(f"must have the 'size' [{height}, {width}] of its image, got {size!r:.100}")
    num_pixels = height * width
    if isinstance(counts, str):
        lengths = _unpack_counts(counts)
    elif not counts or not isinstance(counts, list) or not all(type(x) is int and 0 <= x <= num_pixels for x in counts):
        raise ValueError(f"must have a text or whole numbers from 0 as 'counts', got {counts!r:.100}")
    else:
        lengths = np.array(counts, np.int64)
    if (lengths < 0).any() or (lengths > num_pixels).any() or lengths.sum() != num_pixels:
        raise ValueError(f"must have 'counts' from 0 that add up to the {num_pixels} pixels of its image")
    return [_make_even(np.cumsum(lengths)[:-1], num_pixels)]


def _make_even(runs: Runs, end: int) -> Runs:
    return np.append(runs, end) if len(runs) % 2 else runs


def _unpack_counts(text: str) -> Runs:
    """Decodes the lengths of runs that COCO packed into a text.

    Each character holds 5 bits of a number, the lowest first; its sixth bit says that more follow. From the fourth on,
    a number is stored as its difference from the number two before it.
    """
    codes = np.array([ord(sign) - 48 for sign in text], np.int64)
    if not len(codes) or (codes < 0).any() or (codes > 63).any() or codes[-1] & 32:
        raise ValueError(f"must have packed runs as 'counts', got {text!r:.100}")
    lasts = np.flatnonzero(codes < 32)
    begins = np.append(0, lasts[:-1] + 1)
    num_signs = lasts - begins + 1
    if (num_signs > _MAX_SIGNS).any():
        raise ValueError(f"must have packed runs as 'counts', got {text!r:.100}")
    shifts = 5 * (np.arange(len(codes)) - np.repeat(begins, num_signs))
    numbers = np.add.reduceat((codes & 31) << shifts, begins)
    numbers -= np.where(codes[lasts] & 16, np.int64(1) << 5 * num_signs, 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def _read_polygon(polygon: Any, height: int, width: int) -> NDArray[np.float64]:
    """Checks a polygon, and returns the x and y of its corners: float64 [n, 2]."""
    is_list = isinstance(polygon, list) and all(type(x) in (int, float) and abs(x) < 1e9 for x in polygon)
    if not is_list or len(polygon) < 6 or len(polygon) % 2:
        raise ValueError(f"must have polygons of 3 or more corners, each an x and a y, got {polygon!r:.100}")
    corners = np.array(polygon, np.float64).reshape(-1, 2)
    sides = np.array([width, height])
    far = np.flatnonzero(((corners < -sides) | (corners > 2 * sides)).any(axis=1))
    if len(far):
        x, y = corners[far[0]].tolist()
        raise ValueError(f"must lie in its image of {width} x {height} pixels, but has a corner at {x:g}, {y:g}")
    return corners


def _trace_polygon(corners: NDArray[np.float64], height: int, width: int) -> Runs:
    """Returns the runs of a polygon.

    The border is followed in fifths of a pixel from corner to corner. Where it passes the middle of a column of pixels,
    the inside begins or ends.
    """
    points = np.trunc(_SCALE * corners + 0.5).astype(np.int64)
    starts, ends = points, np.roll(points, -1, axis=0)
    steps = ends - starts
    lengths = np.abs(steps).max(axis=1) + 1
    if lengths.sum() > _MAX_BORDER:
        raise ValueError(f"must have polygons with less than {_MAX_BORDER // _SCALE:,} pixels of border")
    # Each side has a point for every fifth of a pixel along its longer axis, rounded the same in both directions.
    is_flat = np.abs(steps[:, 0]) >= np.abs(steps[:, 1])
    long_axis = np.where(is_flat, 0, 1)
    rows = np.arange(len(points))
    is_flipped = steps[rows, long_axis] < 0
    lows, highs = np.where(is_flipped[:, None], ends, starts), np.where(is_flipped[:, None], starts, ends)
    long_steps = (highs - lows)[rows, long_axis]
    slopes = (highs - lows)[rows, 1 - long_axis] / np.maximum(long_steps, 1)
    side = np.repeat(rows, lengths)
    step = np.arange(len(side)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    step = np.where(is_flipped[side], long_steps[side] - step, step)
    along = lows[rows, long_axis][side] + step
    across = np.trunc(lows[rows, 1 - long_axis][side] + slopes[side] * step + 0.5).astype(np.int64)
    x, y = np.where(is_flat[side], along, across), np.where(is_flat[side], across, along)
    passes = np.flatnonzero(np.diff(x))
    columns = np.minimum(x[passes], x[passes + 1]) - _SCALE // 2
    is_middle = (columns % _SCALE == 0) & (columns >= 0) & (columns < _SCALE * width)
    lower = np.minimum(y[passes], y[passes + 1])[is_middle]
    tops = np.ceil(np.clip((lower + 0.5) / _SCALE - 0.5, 0, height)).astype(np.int64)
    return _make_even(np.sort(columns[is_middle] // _SCALE * height + tops), height * width)
