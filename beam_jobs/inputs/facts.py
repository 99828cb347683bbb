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
    """The facts about the images of an input.

    Attributes:
        num_images: The number of images.
        labels: The number of images by their `label`: a class, or the folder that the image lies in.
        unsplit: The rows of a table without a split.
        unlabeled: The rows of a table without a label.
        box_names: The names of the classes of boxes, if a table gives names.
        faults: The rows of a table that cannot be used, by the kind of their fault.
        skipped: The number of files that were passed over, by reason.
        columns: The facts about each further column of a table.
        is_embedded: Whether the images lie in a table itself.
        class_names: The names of classes in the metadata of each file of a table that has some.
        nums_images: The numbers of images of a record, as `ImageRef.num_images`: the least ones, two of them known.
        tensors: The columns of tensors of each file of a table.
        missing: The files that a table names and that do not exist.
        whole: The listing of an input whose columns have their meaning from the beginning.
    """

    num_images: int = 0
    labels: Counter[str | None] = field(default_factory=Counter)
    unsplit: Rows = NO_ROWS
    unlabeled: Rows = NO_ROWS
    box_names: tuple[str, ...] = ()
    faults: Mapping[str, Rows] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    columns: tuple[ColumnFacts, ...] = ()
    is_embedded: bool = False
    class_names: frozenset[tuple[str, ...]] = frozenset()
    nums_images: frozenset[int] = frozenset()
    tensors: frozenset[tuple[str, ...]] = frozenset()
    missing: Missing = NOTHING_MISSING
    whole: Listing | None = None

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
