"""The facts about listed images beside their table, and what their columns mean once all images are known."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from beam_jobs.inputs.column_types import Column, ColumnFacts
from beam_jobs.inputs.faults import NO_ROWS, Rows
from beam_jobs.plan.image_ref import NO_IMAGE, SINGLE, UNKNOWN_NUMBER
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import NOTHING_MISSING, Listing, Missing
from tfpipe.errors import DataError


@dataclass(frozen=True)
class Facts:
    """The facts about the images of an input."""

    num_images: int = 0
    labels: Counter[str | None] = field(default_factory=Counter)  # a class, or the folder that the image lies in
    unsplit: Rows = NO_ROWS  # rows of a table without a split
    unlabeled: Rows = NO_ROWS
    box_names: tuple[str, ...] = ()
    faults: Mapping[str, Rows] = field(default_factory=dict)  # by the kind of the fault
    skipped: Counter[str] = field(default_factory=Counter)
    columns: tuple[ColumnFacts, ...] = ()
    is_embedded: bool = False  # whether the images lie in a table itself
    class_names: frozenset[tuple[str, ...]] = frozenset()  # of each file of a table with such metadata
    nums_images: frozenset[int] = frozenset()  # of a record: the least ones, two of them known
    tensors: frozenset[tuple[str, ...]] = frozenset()  # the columns of each file of a table
    missing: Missing = NOTHING_MISSING
    whole: Listing | None = None  # the listing of an input whose columns have their meaning from the beginning

    def check_images(self, source: str) -> bool:
        """Returns whether the records have images."""
        if self.nums_images > {NO_IMAGE}:
            raise DataError(f"Every file of {source} must hold images, or none may.")
        return NO_IMAGE not in self.nums_images

    def infer_images_shape(self, source: str) -> tuple[int, ...] | None:
        """Returns the images of a record as `image_schema` takes them. Records without an image are not counted."""
        if self.nums_images <= {SINGLE, NO_IMAGE}:
            return ()
        if SINGLE in self.nums_images:
            raise DataError(f"Every row of {source} must hold one image, or every row a list of images.")
        known = self.nums_images - {0, UNKNOWN_NUMBER}
        return tuple(known) if len(known) == 1 and UNKNOWN_NUMBER not in self.nums_images else None


_NUMS_KEPT = 6  # SINGLE, UNKNOWN_NUMBER, NO_IMAGE, 0, and two numbers that differ


def find_nums_images(images: ImageTable) -> frozenset[int]:
    """Returns the numbers of images of the records in a table, as `Facts` keeps them."""
    return frozenset(sorted(np.unique(images.nums_images).tolist())[:_NUMS_KEPT])


def give_meaning(
    listing: Listing,
    images: ImageTable,
    labels: Mapping[str | None, str | None],
    splits: Mapping[str | None, str] | None = None,
    columns: Sequence[Column] = (),
) -> Listing:
    """Returns the listing of images with classes, splits and values as they are stored.

    A label that is not among `labels` is its own class. `splits` are by the label that is a folder, or None.
    """
    codes, texts = images.get_codes("label")
    if splits is not None:
        images = images.replace_texts("split", codes, [splits.get(text, "") for text in texts])
    classes = [labels.get(text, text) for text in texts]
    if classes != texts:
        images = images.replace_texts("label", codes, classes)
    if columns and len(images):
        images = images.convert_extras([column.convert for column in columns])
    return replace(listing, images=images)
