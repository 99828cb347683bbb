"""Scales boxes from pixels to fractions of their image, for annotations and for tables with one row per box."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.column_types import CellKinds
from beam_jobs.inputs.folder import name_input
from beam_jobs.inputs.label_file import order_names
from beam_jobs.plan.image_ref import Box, ImageRef
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing, read_sizes
from tfpipe.errors import DataError
from tfpipe.format.schema import FeatureSpec

SIZE_COLUMNS = ("width", "height")
"""The columns of a table with the size of an image, for boxes in pixels."""


def scale_boxes(
    sides: NDArray[np.float64], size: tuple[float, float], skipped: Counter[str]
) -> tuple[tuple[Box, ...], NDArray[np.bool_]]:
    """Returns the boxes [n, 4] that have an area, as fractions clipped to the image, and which of them have one.

    With an unknown size, (0, 0), boxes stay in pixels. `skipped` counts the boxes without an area.
    """
    fractions = np.minimum(np.maximum(sides / (*size, *size), 0), 1) if any(size) else np.maximum(sides, 0)
    has_area = (fractions[:, 2] > fractions[:, 0]) & (fractions[:, 3] > fractions[:, 1])
    if not has_area.all():
        skipped["box without an area in its image"] += int((~has_area).sum())
    return tuple(map(tuple, fractions[has_area].tolist())), has_area


def make_listing(
    config: ShardConfig, images: ImageTable, names: Iterable[str], extra: Sequence[FeatureSpec], skipped: Counter[str]
) -> Listing:
    """Returns the listing of annotated images; `names` are the classes of their boxes."""
    images, missing = read_sizes(images, config.input)
    listing = Listing(*name_input(config.input), images, extra=tuple(extra), skipped=+skipped)
    return replace(listing, box_names=tuple(names), missing=missing)


def join_box_rows(
    images: ImageTable, kinds: list[CellKinds], columns: Sequence[str], config: ShardConfig
) -> tuple[ImageTable, tuple[str, ...]]:
    """Joins the rows of each image: returns images with all boxes, in fractions with class numbers, and class names.

    An extra column with different values in the rows of an image becomes a list, with a value for each row.
    """
    if "boxes" not in images.details:
        return images, ()
    names, in_pixels, rows = set[object](), False, defaultdict[str, list[ImageRef]](list)
    for ref in images:
        rows[ref.path].append(ref)
        names.update(ref.box_labels)
        in_pixels = in_pixels or any(side > 1 for box in ref.boxes for side in box)
    texts = {name for name in names if isinstance(name, str)}
    if len(rows) == len(images) and not texts and not in_pixels:
        return images, ()
    if texts and len(texts) < len(names):
        raise DataError(f"{config.input}: the classes of boxes must be all names or all numbers, got {min(texts)!r}.")
    ordered = tuple(order_names(config, sorted(texts))) if texts else ()
    sizes = [columns.index(name) for name in SIZE_COLUMNS] if in_pixels else []
    listed = [
        index
        for index, name in enumerate(columns)
        if name != "label" and any(ref.extra[index] != some[0].extra[index] for some in rows.values() for ref in some)
    ]
    numbers = {name: number for number, name in enumerate(ordered)}
    joined = ImageTable.from_refs(_join(some, sizes, listed, numbers, config.input) for some in rows.values())
    for index in listed:
        kinds[index] = CellKinds(kinds[index].from_text)
        kinds[index].add((row[index] for row in joined.iterate_extras()), ((0, row) for row in count(1)))
    return joined, ordered


def _join(
    rows: Sequence[ImageRef], sizes: Sequence[int], listed: Sequence[int], numbers: Mapping[str, int], source: str
) -> ImageRef:
    """Joins the rows of one image: their boxes with classes, and their values in the columns `listed` as lists."""
    first, boxes, labels = rows[0], list[Box](), list[int]()
    frames = [_read_size(ref, sizes, source) for ref in rows if sizes and ref.boxes]
    if len(set(frames)) > 1:
        raise DataError(
            f"{source}: the rows of {first.path} must have the same width and height, got {sorted(set(frames))}."
        )
    for ref in rows:
        _check_same(first, ref, source)
        boxes += [_scale(box, ref, frames[0], source) for box in ref.boxes] if sizes else ref.boxes
        labels += [numbers.get(cast(str, label), label) for label in ref.box_labels]
    if len(labels) not in (0, len(boxes)):
        raise DataError(f"{source}: every box of {first.path} must have a class or none may.")
    extra: list[Any] = list(first.extra)
    for index in listed:
        values = [ref.extra[index] for ref in rows]
        if None in values and any(value is not None for value in values):
            raise DataError(
                f"{source}: every row of {first.path} must have a value in the same columns, or none may, got {values}."
            )
        extra[index] = None if None in values else values
    frame = frames[0] if frames else ()
    return first._replace(boxes=tuple(boxes), box_labels=tuple(labels), extra=tuple(extra), frame=frame)


def _check_same(first: ImageRef, ref: ImageRef, source: str) -> None:
    for name in ("label", "split", "group", "mask"):
        one, other = getattr(first, name), getattr(ref, name)
        if one != other:
            advice = " If it is the class of each box, name its column by `box_label_column`." * (name == "label")
            raise DataError(
                f"{source}: the rows of {first.path} have a box each, so they must have the same {name!r}, got {one!r} "
                f"and {other!r}.{advice}"
            )


def _read_size(ref: ImageRef, sizes: Sequence[int], source: str) -> tuple[float, float]:
    try:
        width, height = (float(cast(str, ref.extra[index])) for index in sizes)
    except (TypeError, ValueError):
        width = height = 0
    if not (width > 0 and height > 0):
        raise DataError(f"{source}: boxes in pixels need the width and height of {ref.path}.")
    return width, height


def _scale(box: Box, ref: ImageRef, frame: tuple[float, float], source: str) -> Box:
    """Scales a box from pixels to fractions; refuses one that is in fractions already."""
    if max(box) <= 1 and any(side % 1 for side in box):
        raise DataError(f"{source}: boxes must be all in pixels or all fractions, got {list(box)} of {ref.path}.")
    return box[0] / frame[0], box[1] / frame[1], box[2] / frame[0], box[3] / frame[1]
