"""Makes one record of the rows that have boxes of one image, and fractions of boxes in pixels."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, cast

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.boxes import order_names
from beam_jobs.inputs.column_types import ColumnFacts
from beam_jobs.inputs.facts import Facts
from beam_jobs.inputs.table import LABEL, SIZE_COLUMNS
from beam_jobs.plan.image_ref import Box, ImageRef
from beam_jobs.plan.image_table import ImageTable
from tfpipe.errors import DataError


def join_box_rows(
    images: ImageTable, facts: Facts, columns: Sequence[str], config: ShardConfig, *, from_text: bool
) -> tuple[ImageTable, Facts]:
    """Returns the images with all their boxes, as fractions and with class numbers, and the facts about them.

    A further column with different values in the rows of an image becomes a list, with a value for each row.
    """
    if facts.faults or "boxes" not in images.details:
        return images, facts
    names, in_pixels, rows = set[object](), False, defaultdict[str, list[ImageRef]](list)
    for ref in images:
        rows[ref.path].append(ref)
        names.update(ref.box_labels)
        in_pixels = in_pixels or any(side > 1 for box in ref.boxes for side in box)
    texts = {name for name in names if isinstance(name, str)}
    if len(rows) == len(images) and not texts and not in_pixels:
        return images, facts
    if texts and len(texts) < len(names):
        raise DataError(f"{config.input}: the classes of boxes must be all names or all numbers, got {min(texts)!r}.")
    ordered = tuple(order_names(config, sorted(texts))) if texts else ()
    sizes = [columns.index(name) for name in SIZE_COLUMNS] if in_pixels else []
    listed = [
        place
        for place, name in enumerate(columns)
        if name != LABEL and any(ref.extra[place] != some[0].extra[place] for some in rows.values() for ref in some)
    ]
    numbers = {name: number for number, name in enumerate(ordered)}
    joined = ImageTable.from_refs(_join(some, sizes, listed, numbers, config.input) for some in rows.values())
    column_facts = list(facts.columns)
    for place in listed:
        column_facts[place] = ColumnFacts.read(joined.get_extras(place), 0, count(1), from_text=from_text)
    own = facts if LABEL in columns else replace(facts, labels=Counter(joined.count_values("label")))
    return joined, replace(own, num_images=len(joined), columns=tuple(column_facts), box_names=ordered)


def _join(
    rows: Sequence[ImageRef], sizes: Sequence[int], listed: Sequence[int], numbers: Mapping[str, int], source: str
) -> ImageRef:
    """Returns the image of some rows."""
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
    for place in listed:
        values = [ref.extra[place] for ref in rows]
        if None in values and any(value is not None for value in values):
            raise DataError(
                f"{source}: every row of {first.path} must have a value in the same columns, or none may, got {values}."
            )
        extra[place] = None if None in values else values
    frame = frames[0] if frames else ()
    return first._replace(boxes=tuple(boxes), box_labels=tuple(labels), extra=tuple(extra), frame=frame)


def _check_same(first: ImageRef, ref: ImageRef, source: str) -> None:
    for name in (LABEL, "split", "group", "mask"):
        one, other = getattr(first, name), getattr(ref, name)
        if one != other:
            advice = " If it is the class of each box, name its column by `box_label_column`." if name == LABEL else ""
            raise DataError(
                f"{source}: the rows of {first.path} have a box each, so they must have the same {name!r}, got {one!r} "
                f"and {other!r}.{advice}"
            )


def _read_size(ref: ImageRef, sizes: Sequence[int], source: str) -> tuple[float, float]:
    try:
        width, height = (float(cast(str, ref.extra[place])) for place in sizes)
    except (TypeError, ValueError):
        width = height = 0
    if not (width > 0 and height > 0):
        raise DataError(f"{source}: boxes in pixels need the width and height of {ref.path}.")
    return width, height


def _scale(box: Box, ref: ImageRef, frame: tuple[float, float], source: str) -> Box:
    """Returns a box in pixels as fractions."""
    if max(box) <= 1 and any(side % 1 for side in box):
        raise DataError(f"{source}: boxes must be all in pixels or all fractions, got {list(box)} of {ref.path}.")
    return box[0] / frame[0], box[1] / frame[1], box[2] / frame[0], box[3] / frame[1]
