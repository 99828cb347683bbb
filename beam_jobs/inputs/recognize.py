"""Recognizes what an input is. The input is looked at once; what it is decides how it is listed and read.

    source = recognize(config)
    for images, facts in source.list(): ...
    source.resolve(facts)   # what classes and columns mean, from the facts of all images

A table is listed row by row, and all other kinds as a whole.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.coco import is_coco, list_coco
from beam_jobs.inputs.annotations.voc import is_voc, list_voc
from beam_jobs.inputs.box_rows import join_box_rows
from beam_jobs.inputs.class_folders import resolve_tree
from beam_jobs.inputs.dataset import list_datasets
from beam_jobs.inputs.facts import Facts, Meaning
from beam_jobs.inputs.folder import list_begin, list_tree
from beam_jobs.inputs.pairs import is_pairs, list_pairs
from beam_jobs.inputs.table import (
    check_no_table,
    explain_no_labels,
    find_root,
    is_table_input,
    list_rows,
    list_table_files,
    read_columns,
    read_sizes,
    resolve_table,
)
from beam_jobs.inputs.table_files import TablePart, is_text_table, list_parts
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing
from tfpipe.errors import ConfigError
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer

Listed = Iterator[tuple[ImageTable, Facts]]
"""Images, some after others, each time with the facts about them."""


@dataclass(frozen=True)
class Input(ABC):
    """An input that was recognized.

    Attributes:
        config: The configuration that names the input.
        no_classes: The reason why images without a class have none, and the way to give them one; None if they have
            boxes or captions.
    """

    config: ShardConfig
    no_classes: str | None = field(default=None, kw_only=True)

    @abstractmethod
    def list(self, observer: Observer | None = None) -> Listed:
        """Yields all images.

        Args:
            observer: The observer of the listing, which gets the number of listed images now and then.

        Raises:
            ConfigError: An option does not go with the input.
            DataError: The input is missing, damaged or of an unknown kind, its folders loop, it holds names that point
                outside, or its layout is ambiguous.
        """

    @abstractmethod
    def resolve(self, facts: Facts) -> Meaning:
        """Returns what classes, folders and columns mean.

        Args:
            facts: The facts about all images.

        Raises:
            DataError: The images do not go together.
        """

    @property
    def files(self) -> Sequence[str]:
        """The files of a table, in which `Rows` are."""
        return ()

    def explain_no_classes(self) -> str | None:
        """Returns why the images have no class, as `no_classes`."""
        return self.no_classes


@dataclass(frozen=True)
class TableInput(Input):
    """A table with one row for each image."""

    @functools.cached_property
    def parts(self) -> list[TablePart]:
        """The parts of the table, in their order."""
        return list_parts(self.config.input, self.config.columns)

    @property
    def files(self) -> Sequence[str]:
        """The files of the table."""
        return list_table_files(self.parts)

    @functools.cached_property
    def header(self) -> tuple[tuple[str, ...], bool]:
        """The further columns, and whether there are columns of boxes."""
        return read_columns(self.parts, self.config)

    @property
    def columns(self) -> tuple[str, ...]:
        """The further columns."""
        return self.header[0]

    def list(self, observer: Observer | None = None) -> Listed:
        """Yields the rows, at most `RUN_IMAGES` at a time."""
        root, rows = find_root(self.config), self._list_rows(observer)
        if self.header[1]:
            images, facts = next(join(rows))
            from_text = is_text_table(self.config.input)
            rows = iter([join_box_rows(images, facts, self.columns, self.config, from_text=from_text)])
        # A folder of a store is listed for the sizes of its images: once for all rows.
        for images, facts in join(rows) if file_io.is_url(root) else rows:
            sized, missing = read_sizes(images, root)
            yield sized, facts + Facts(missing=missing)

    def _list_rows(self, observer: Observer | None) -> Listed:
        num_images = 0
        for part in self.parts:
            for images, facts in list_rows(part, self.columns, self.config, observer, num_images):
                num_images += len(images)
                yield images, facts

    def resolve(self, facts: Facts) -> Meaning:
        """Returns what classes and columns mean."""
        return resolve_table(self.config, facts, self.columns, self.parts)

    def explain_no_classes(self) -> str | None:
        """Returns which option names a column of classes."""
        return explain_no_labels(self.config)


@dataclass(frozen=True)
class TreeInput(Input):
    """A folder or an archive whose folders are classes."""

    def list(self, observer: Observer | None = None) -> Listed:
        """Yields all images at once."""
        tree = list_tree(self.config.input, self.config.workers, observer)
        yield tree.images, Facts.read_tree(tree.images, tree.skipped)

    def resolve(self, facts: Facts) -> Meaning:
        """Returns what the folders mean."""
        return resolve_tree(self.config, facts)

    def explain_no_classes(self) -> str | None:
        """Returns how to read the table of Hugging Face's `imagefolder` beside the images, or the usual reason."""
        paths = (file_io.join(self.config.input, f"metadata.{ending}") for ending in ("jsonl", "csv", "parquet"))
        table = next(filter(file_io.exists, paths), None)
        if table is not None:
            return f"the images lie in no class folders; shard the table {table} with --image-column file_name"
        return self.no_classes


@dataclass(frozen=True)
class WholeInput(Input):
    """An input that one process lists.

    Attributes:
        list_all: The function that lists it.
    """

    list_all: Callable[[ShardConfig, Observer | None], Listing]

    def list(self, observer: Observer | None = None) -> Listed:
        """Yields all images at once."""
        with file_io.explain_os_errors(f"read {self.config.input}"):
            listing = self.list_all(self.config, observer)
        yield listing.images, Facts.read_listing(listing)

    def resolve(self, facts: Facts) -> Meaning:
        """Returns what was known once all were listed."""
        assert facts.whole is not None
        return Meaning(facts.whole)


def recognize(config: ShardConfig) -> Input:
    """Returns what the input is.

    Raises:
        ConfigError: An option does not go with the input.
        DataError: The input is missing, damaged, or in a store that cannot be reached.
    """
    if config.datasets:
        return WholeInput(config, list_datasets)
    look = functools.cache(list_begin)  # in a store each look is a request
    if is_coco(config, look):
        _check_no_column(config, names_files=True)
        return WholeInput(config, list_coco)
    if config.segmentation_masks:
        raise ConfigError("`segmentation_masks` needs a folder in COCO's layout, or `annotations` in COCO's form.")
    if is_table_input(config, look):
        return TableInput(config)
    if is_voc(config, look):
        _check_no_column(config, names_files=True)
        return WholeInput(config, list_voc)
    if is_pairs(config, look):
        check_no_table(config)
        return WholeInput(
            config,
            list_pairs,
            no_classes="no pair has a .cls file or a `label` in its .json; write the class into KEY.cls beside KEY.jpg",
        )
    _check_no_column(config)
    return TreeInput(
        config,
        no_classes="the images lie in no class folders; put those of each class into a folder of its name, such as "
        "cat/1.jpg and dog/2.jpg",
    )


def _check_no_column(config: ShardConfig, *, names_files: bool = False) -> None:
    """Checks that no option names a column, for an input without columns."""
    check_no_table(config, names_files=names_files)
    if config.group_by:
        raise ConfigError(
            "`group_by` names a column; it needs a CSV, JSONL or Parquet manifest, or tars of pairs, as input."
        )


def join(listed: Iterable[tuple[ImageTable, Facts]]) -> Listed:
    """Yields all images at once."""
    builder, total = ImageTableBuilder(), Facts()
    for images, facts in listed:
        builder.extend(images)
        total += facts
    yield builder.finish(), total
