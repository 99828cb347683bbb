"""Boxes in pixels as fractions of an image, and the listing of images that have such."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.folder import name_input
from beam_jobs.inputs.label_file import rename_labels
from beam_jobs.inputs.table import read_sizes
from beam_jobs.plan.image_ref import ImageRef
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing
from tfpipe.format.schema import FeatureSpec

_NO_AREA = "box without an area in its image"


class BoxScaler:
    """The scaler of boxes, which counts those that are left out."""

    def __init__(self) -> None:
        self.skipped = Counter[str]()

    def scale(
        self, sides: NDArray[np.float64], size: tuple[float, float]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Returns boxes [n, 4] in pixels as fractions, cut at the image's borders, and which have an area there.

        Without a known size, (0, 0), they stay in pixels.
        """
        fractions = np.minimum(np.maximum(sides / (*size, *size), 0), 1) if any(size) else np.maximum(sides, 0)
        has_area = (fractions[:, 2] > fractions[:, 0]) & (fractions[:, 3] > fractions[:, 1])
        if not has_area.all():
            self.skipped[_NO_AREA] += int((~has_area).sum())
        return fractions, has_area


def order_names(config: ShardConfig, class_names: Sequence[str]) -> Sequence[str]:
    """Returns the names of classes in the order of the file of class names, if there is one."""
    if not config.labels:
        return class_names
    return rename_labels(config.labels, {}, class_names, is_numeric=False)[1]


def make_listing(
    config: ShardConfig,
    builder: ImageTableBuilder,
    class_names: Sequence[str],
    extra: Sequence[FeatureSpec],
    skipped: Mapping[str, int],
) -> Listing:
    """Returns the listing of images whose boxes have classes."""
    root = config.input
    images, missing = read_sizes(builder.finish(), root)
    names = order_names(config, class_names)
    if list(names) != list(class_names):
        images = _renumber(images, [list(names).index(name) for name in class_names])
    return Listing(
        name_input(root)[0],
        root,
        images,
        extra=tuple(extra),
        skipped=+Counter(skipped),
        box_names=tuple(names),
        missing=missing,
    )


def _renumber(images: ImageTable, numbers: Sequence[int]) -> ImageTable:
    """Returns images whose boxes have other class numbers."""

    def renumber(ref: ImageRef) -> ImageRef:
        return ref._replace(box_labels=tuple(numbers[label] for label in ref.box_labels))

    return ImageTable.from_refs(map(renumber, images))
