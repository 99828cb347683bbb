"""The facts about listed images, and what their columns mean once the facts about all images are known.

    facts = facts_of_some + facts_of_the_others          # of any pieces of the input, in any order
    meaning = resolve(config, facts)                     # once
    listing = meaning.make_listing(images)               # for all images, or for some of them

So no process needs to hold all images.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from beam_jobs.inputs.archive import is_compressed_tar
from beam_jobs.inputs.column_types import Column, ColumnFacts
from beam_jobs.inputs.faults import NO_ROWS, Rows, add_faults
from beam_jobs.plan.image_ref import NO_IMAGE, SINGLE, UNKNOWN_NUMBER
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import NOTHING_MISSING, Listing, Missing
from tfpipe.errors import DataError


@dataclass(frozen=True)
class Facts:
    """The facts about some images of an input. Those of two pieces can be added.

    Attributes:
        num_images: The number of images.
        labels: The number of images by their `label`: a class, or the folder that the image lies in.
        examples: The first path of each `label` by the alphabet, for inputs in which it is a folder.
        splits: The number of images by the split that the input names.
        first_unsplit: The first path without a split, for inputs that are listed as a whole.
        unsplit: The rows of a table without a split.
        unlabeled: The rows of a table without a label.
        box_names: The names of the classes of boxes, if a table gives names.
        faults: The rows of a table that cannot be used, by the kind of their fault.
        skipped: The number of files that were passed over, by reason.
        unpack: The compressed tar files that hold images.
        columns: The facts about each further column of a table.
        details: The columns of the image table that some images need: boxes, their labels, and
            masks.
        is_embedded: Whether the images lie in a table itself.
        class_names: The names of classes in the metadata of each file of a table that has some.
        nums_images: The numbers of images of a record, as `ImageRef.num_images`: the least ones, two of them known.
        tensors: The columns of tensors of each file of a table.
        missing: The files that a table names and that do not exist.
        whole: The listing of an input that is listed as a whole, without its images.
    """

    num_images: int = 0
    labels: Counter[str | None] = field(default_factory=Counter)
    examples: Mapping[str, str] = field(default_factory=dict)
    splits: Counter[str] = field(default_factory=Counter)
    first_unsplit: str = ""
    unsplit: Rows = NO_ROWS
    unlabeled: Rows = NO_ROWS
    box_names: tuple[str, ...] = ()
    faults: Mapping[str, Rows] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    unpack: frozenset[str] = frozenset()
    columns: tuple[ColumnFacts, ...] = ()
    details: frozenset[str] = frozenset()
    is_embedded: bool = False
    class_names: frozenset[tuple[str, ...]] = frozenset()
    nums_images: frozenset[int] = frozenset()
    tensors: frozenset[tuple[str, ...]] = frozenset()
    missing: Missing = NOTHING_MISSING
    whole: Listing | None = None

    @classmethod
    def read_listing(cls, listing: Listing) -> "Facts":
        """Returns the facts about a whole input."""
        images = listing.images
        splits = Counter({str(split): count for split, count in images.count_values("split").items()})
        return cls(
            num_images=len(images),
            splits=splits,
            first_unsplit=next((ref.path for ref in images if not ref.split), "") if splits[""] else "",
            details=images.details,
            missing=listing.missing,
            whole=replace(listing, images=ImageTable.make_empty(images.details)),
        )

    @classmethod
    def read_tree(cls, images: ImageTable, skipped: Counter[str]) -> "Facts":
        """Returns the facts about images in folders and archives."""
        examples: dict[str, str] = {}
        for path in images.iterate_paths():
            folder = path.rpartition("/")[0]
            if path < examples.get(folder, "\U0010ffff"):
                examples[folder] = path
        files = images.count_values("file")
        return cls(
            num_images=len(images),
            labels=Counter(images.count_values("label")),
            examples=examples,
            skipped=skipped,
            unpack=frozenset(file for file in files if file and is_compressed_tar(file)),
            details=images.details,
        )

    @classmethod
    def read_table(
        cls, images: ImageTable, columns: Sequence[ColumnFacts], file_number: int, rows: NDArray[np.int64]
    ) -> "Facts":
        """Returns the facts about rows of a table.

        Args:
            images: The images of the rows.
            columns: The facts about their further columns.
            file_number: The number of the file.
            rows: The row of each image in it.
        """
        splits = Counter({str(split): count for split, count in images.count_values("split").items()})
        return cls(
            num_images=len(images),
            labels=Counter(images.count_values("label")),
            splits=splits,
            unsplit=Rows.of(file_number, _choose_rows(images, "split", rows)),
            unlabeled=Rows.of(file_number, _choose_rows(images, "label", rows)),
            columns=tuple(columns),
            details=images.details,
            is_embedded=bool(images.in_row_groups.any()),
            nums_images=find_nums_images(images),
        )

    def __add__(self, other: "Facts") -> "Facts":
        examples = dict(self.examples)
        for folder, path in other.examples.items():
            examples[folder] = min(path, examples.get(folder, path))
        if self.columns and other.columns:
            columns = tuple(mine + theirs for mine, theirs in zip(self.columns, other.columns, strict=True))
        else:
            columns = self.columns or other.columns
        return Facts(
            num_images=self.num_images + other.num_images,
            labels=self.labels + other.labels,
            examples=examples,
            splits=self.splits + other.splits,
            first_unsplit=min(filter(None, (self.first_unsplit, other.first_unsplit)), default=""),
            unsplit=self.unsplit + other.unsplit,
            unlabeled=self.unlabeled + other.unlabeled,
            box_names=self.box_names or other.box_names,
            faults=add_faults(self.faults, other.faults),
            skipped=self.skipped + other.skipped,
            unpack=self.unpack | other.unpack,
            columns=columns,
            details=self.details | other.details,
            is_embedded=self.is_embedded or other.is_embedded,
            class_names=self.class_names | other.class_names,
            nums_images=_keep_least(self.nums_images | other.nums_images),
            tensors=self.tensors | other.tensors,
            missing=self.missing + other.missing,
            whole=self.whole or other.whole,
        )

    @property
    def keeps_order(self) -> bool:
        """Whether unshuffled images stay in the order of the listing."""
        return self.whole is not None and self.whole.keeps_order

    def check_images(self, source: str) -> bool:
        """Returns whether the records have images.

        Raises:
            DataError: Some have, and some have not.
        """
        if self.nums_images > {NO_IMAGE}:
            raise DataError(f"Every file of {source} must hold images, or none may.")
        return NO_IMAGE not in self.nums_images

    def infer_images_shape(self, source: str) -> tuple[int, ...] | None:
        """Returns the images of a record as `image_schema` takes them. Records without an image are not counted.

        Raises:
            DataError: Some records have one image, and some a list.
        """
        if self.nums_images <= {SINGLE, NO_IMAGE}:
            return ()
        if SINGLE in self.nums_images:
            raise DataError(f"Every row of {source} must hold one image, or every row a list of images.")
        known = self.nums_images - {0, UNKNOWN_NUMBER}
        return tuple(known) if len(known) == 1 and UNKNOWN_NUMBER not in self.nums_images else None


def _choose_rows(images: ImageTable, column: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the rows of the images that have no `split` or no `label`."""
    codes, texts = images.get_codes(column)
    chosen: NDArray[np.int64] = rows[np.array([not text for text in texts], bool)[codes]]
    return chosen


_NUMS_KEPT = 6  # SINGLE, UNKNOWN_NUMBER, NO_IMAGE, 0, and two numbers that differ


def find_nums_images(images: ImageTable) -> frozenset[int]:
    """Returns the numbers of images of the records in a table, as `Facts` keeps them."""
    return _keep_least(np.unique(images.nums_images).tolist())


def _keep_least(numbers: Iterable[int]) -> frozenset[int]:
    return frozenset(sorted(numbers)[:_NUMS_KEPT])


@dataclass(frozen=True)
class Meaning:
    """The meaning of the columns of all images.

    Attributes:
        listing: The listing, without its images.
        labels: The class of each `label` that the input has; a label that is not among them is its own class.
        splits: The split of each `label` that is a folder; None if the images bring their splits.
        columns: The further columns of a table, whose values are converted.
    """

    listing: Listing
    labels: Mapping[str | None, str | None] = field(default_factory=dict)
    splits: Mapping[str | None, str] | None = None
    columns: tuple[Column, ...] = ()

    def make_listing(self, images: ImageTable, *, values: bool = True) -> Listing:
        """Returns the listing of all images or of some: with classes, splits and values as they are stored.

        Args:
            images: The images, as they were listed.
            values: Whether the values of further columns are converted too.
        """
        codes, texts = images.get_codes("label")
        if self.splits is not None:
            images = images.replace_texts("split", codes, [self.splits.get(text, "") for text in texts])
        classes = [self.labels.get(text, text) for text in texts]
        if classes != texts:
            images = images.replace_texts("label", codes, classes)
        if values and self.columns and len(images):
            images = images.convert_extras([column.convert for column in self.columns])
        return replace(self.listing, images=images)
