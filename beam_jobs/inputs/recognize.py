"""Recognizes what an input is. It is looked at once; what it is decides how it is listed and read."""

import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.coco import is_coco, list_coco
from beam_jobs.inputs.annotations.voc import is_voc, list_voc
from beam_jobs.inputs.box_rows import join_box_rows
from beam_jobs.inputs.class_folders import resolve_tree
from beam_jobs.inputs.dataset import list_datasets
from beam_jobs.inputs.facts import Facts
from beam_jobs.inputs.folder import list_begin, list_tree
from beam_jobs.inputs.pairs import is_pairs, list_pairs
from beam_jobs.inputs.table import (
    check_no_table,
    explain_no_labels,
    find_root,
    is_table_input,
    list_rows,
    read_columns,
    read_sizes,
    resolve_table,
)
from beam_jobs.inputs.table_files import TableFile, is_text_table, list_table_files
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from tfpipe.errors import ConfigError
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer


@dataclass(frozen=True)
class Input(ABC):
    """An input that was recognized."""

    config: ShardConfig
    no_classes: str | None = field(default=None, kw_only=True)  # why; None if they have boxes or captions

    @abstractmethod
    def list(self, observer: Observer | None = None) -> tuple[ImageTable, Facts]:
        """Returns all images with the facts about them."""

    @abstractmethod
    def resolve(self, images: ImageTable, facts: Facts) -> Listing:
        """Returns the images with the splits, classes and values that folders and columns mean."""

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
    def sources(self) -> list[TableFile]:
        """The files of the table, in their order."""
        return list_table_files(self.config.input, self.config.columns)

    @property
    def files(self) -> Sequence[str]:
        """The files of the table."""
        return [source.path for source in self.sources]

    @functools.cached_property
    def header(self) -> tuple[tuple[str, ...], bool]:
        """The further columns, and whether there are columns of boxes."""
        return read_columns(self.sources, self.config)

    @property
    def columns(self) -> tuple[str, ...]:
        """The further columns."""
        return self.header[0]

    def list(self, observer: Observer | None = None) -> tuple[ImageTable, Facts]:
        """Returns the images of all rows."""
        images, facts = list_rows(self.sources, self.columns, self.config, observer)
        if self.header[1]:
            from_text = is_text_table(self.config.input)
            images, facts = join_box_rows(images, facts, self.columns, self.config, from_text=from_text)
        images, missing = read_sizes(images, find_root(self.config))
        return images, replace(facts, missing=missing)

    def resolve(self, images: ImageTable, facts: Facts) -> Listing:
        """Returns the images with their classes and values."""
        return resolve_table(self.config, images, facts, self.columns, self.sources)

    def explain_no_classes(self) -> str | None:
        """Returns which option names a column of classes."""
        return explain_no_labels(self.config)


@dataclass(frozen=True)
class TreeInput(Input):
    """A folder or an archive whose folders are classes."""

    def list(self, observer: Observer | None = None) -> tuple[ImageTable, Facts]:
        """Returns the images of all folders."""
        tree = list_tree(self.config.input, self.config.workers, observer)
        labels = Counter(tree.images.count_values("label"))
        return tree.images, Facts(len(tree.images), labels, skipped=tree.skipped)

    def resolve(self, images: ImageTable, facts: Facts) -> Listing:
        """Returns the images with their splits and classes."""
        return resolve_tree(self.config, images, facts)

    def explain_no_classes(self) -> str | None:
        """Returns how to read the table of Hugging Face's `imagefolder` beside the images, or the usual reason."""
        paths = (file_io.join(self.config.input, f"metadata.{ending}") for ending in ("jsonl", "csv", "parquet"))
        table = next(filter(file_io.exists, paths), None)
        if table is not None:
            return f"the images lie in no class folders; shard the table {table} with --image-column file_name"
        return self.no_classes


@dataclass(frozen=True)
class WholeInput(Input):
    """An input that one process lists."""

    list_all: Callable[[ShardConfig, Observer | None], Listing]

    def list(self, observer: Observer | None = None) -> tuple[ImageTable, Facts]:
        """Returns the images of the listing."""
        with file_io.explain_os_errors(f"read {self.config.input}"):
            listing = self.list_all(self.config, observer)
        return listing.images, Facts(len(listing.images), missing=listing.missing, whole=listing)

    def resolve(self, images: ImageTable, facts: Facts) -> Listing:
        """Returns the listing."""
        assert facts.whole is not None
        return facts.whole


def recognize(config: ShardConfig) -> Input:
    """Returns what the input is."""
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
