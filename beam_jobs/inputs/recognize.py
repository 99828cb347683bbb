"""Recognizes what an input is. The input is looked at once; what it is decides how it is listed and read.

    source = recognize(config)
    source.estimate()                              # about how many images it has, from the sizes of its files
    for images, facts in source.list(): ...        # all images, in one process
    for piece in source.cut(): source.list(piece)  # or piece by piece, in any processes
    source.resolve(facts)                          # what classes and columns mean, from the facts of all images

A table is listed row by row, a folder or an archive as one tree of files. All other kinds are listed as a whole: what
their images are is known only once all are read.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.annotations.coco import is_coco, list_coco
from beam_jobs.inputs.annotations.voc import is_voc, list_voc
from beam_jobs.inputs.archive import is_archive
from beam_jobs.inputs.box_rows import join_box_rows
from beam_jobs.inputs.class_folders import resolve_tree
from beam_jobs.inputs.dataset import list_datasets
from beam_jobs.inputs.facts import Facts, Meaning
from beam_jobs.inputs.folder import WHOLE, TreeEntry, list_begin, list_entries, list_tree
from beam_jobs.inputs.pairs import is_pairs, list_pairs
from beam_jobs.inputs.table import (
    RUN_IMAGES,
    check_no_table,
    explain_no_labels,
    is_table_input,
    list_rows,
    list_table_files,
    read_columns,
    read_sizes,
    resolve_table,
)
from beam_jobs.inputs.table_files import TablePart, count_rows, get_root, is_text_table, list_parts
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.listing import Listing
from tfpipe.errors import ConfigError
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer

Listed = Iterator[tuple[ImageTable, Facts]]
"""Images, some after others, each time with the facts about them."""

_Part = TypeVar("_Part", TablePart, TreeEntry)

_ARCHIVED_IMAGE_BYTES = 100_000  # an image of ImageNet has 110,000
_COUNTED_FILES = 8
_MANY_PIECES = 1000
_MIN_TABLE_BYTES, _MIN_ARCHIVE_BYTES = 1 << 24, 1 << 30


@dataclass(frozen=True)
class Input(ABC):
    """An input that was recognized.

    Attributes:
        config: The configuration that names the input.
        obstacle: The reason why the input cannot be listed in pieces, as a part of a sentence; empty if it can.
        no_classes: The reason why images without a class have none, and the way to give them one; None if they have
            boxes or captions.
    """

    config: ShardConfig
    obstacle: str = field(default="", kw_only=True)
    no_classes: str | None = field(default=None, kw_only=True)

    @abstractmethod
    def estimate(self) -> tuple[int | None, str]:
        """Returns roughly how many images there are, None if only listing them says it, and the same in words.

        Raises:
            DataError: The input is missing or cannot be read.
        """

    @abstractmethod
    def cut(self) -> tuple[Any, ...]:
        """Returns the pieces of the input. It opens no image and lists none.

        Raises:
            ConfigError: An option does not go with the input.
            DataError: The input is missing or empty.
        """

    @abstractmethod
    def list(self, piece: Any = None, observer: Observer | None = None) -> Listed:
        """Yields the images of a piece, or of the whole input.

        Args:
            piece: A piece of `cut`; None for the whole input.
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

    def estimate(self) -> tuple[int | None, str]:
        """Returns the rows of the table, judged from some of its files."""
        files = [part for part in self.parts if part.part == 0]
        counts = [count_rows(part) for part in files[:: -(-len(files) // _COUNTED_FILES)]]
        counted_bytes = sum(num_bytes for _, num_bytes in counts)
        num_bytes = sum(part.size * part.num_parts for part in files)
        count = round(sum(rows for rows, _ in counts) * num_bytes / max(1, counted_bytes))
        return count, f"the table has about {count:,} rows"

    def cut(self) -> tuple[Sequence[TablePart], ...]:
        """Returns some parts of the table as a piece."""
        _ = self.columns  # which all pieces need
        return tuple(_group(self.parts, [part.size for part in self.parts], _MIN_TABLE_BYTES))

    def list(self, piece: Sequence[TablePart] | None = None, observer: Observer | None = None) -> Listed:
        """Yields the rows, at most `RUN_IMAGES` at a time."""
        root = get_root(self.config.input)
        rows = self._list_rows(self.parts if piece is None else piece, observer)
        if self.header[1]:
            images, facts = next(join(rows))
            from_text = is_text_table(self.config.input)
            rows = iter([join_box_rows(images, facts, self.columns, self.config, from_text=from_text)])
        # A folder of a store is listed for the sizes of its images: once for all rows, if they fit into the memory.
        for images, facts in join(rows) if piece is None and file_io.is_url(root) else rows:
            sized, missing = read_sizes(images, root)
            yield sized, facts + Facts(missing=missing)

    def _list_rows(self, parts: Sequence[TablePart], observer: Observer | None) -> Listed:
        num_images = 0
        for part in parts:
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
    """A folder or an archive whose folders are classes.

    Attributes:
        names: The names of the first entries of the folder.
    """

    names: tuple[str, ...]

    def estimate(self) -> tuple[int | None, str]:
        """Returns the images in archives, judged from the bytes of these."""
        source = self.config.input
        archives = [file_io.join(source, name) for name in self.names if is_archive(name)]
        if is_archive(source):
            archives = [source]
        if not archives:
            return None, "the images of a folder are counted only by listing them"
        num_bytes = sum(max(0, size) for size in file_io.get_sizes(archives))
        count = num_bytes // _ARCHIVED_IMAGE_BYTES
        return count, f"archives of {num_bytes:,} bytes hold about {count:,} images"

    def cut(self) -> tuple[Sequence[TreeEntry], ...]:
        """Returns a folder, or some archives, as a piece."""
        with file_io.explain_os_errors(f"read {self.config.input}"):
            entries = list_entries(self.config.input)
        archives = [entry for entry in entries if entry.kind == "archive"]
        others = [entry for entry in entries if entry.kind != "archive"]
        return (
            *_group(archives, [entry.size for entry in archives], _MIN_ARCHIVE_BYTES),
            *_group(others, [1] * len(others), 1),
        )

    def list(self, piece: Sequence[TreeEntry] | None = None, observer: Observer | None = None) -> Listed:
        """Yields the images of whole folders and archives."""
        workers = self.config.workers if piece is None else 1
        builder, facts = ImageTableBuilder(), Facts()
        for entry in (WHOLE,) if piece is None else piece:
            tree = list_tree(self.config.input, workers, observer, entry)
            builder.extend(tree.images)
            facts += Facts.read_tree(tree.images, tree.skipped)
            if len(builder) >= RUN_IMAGES:
                yield builder.finish(), facts
                facts = Facts()
        yield builder.finish(), facts

    def resolve(self, facts: Facts) -> Meaning:
        """Returns what the folders mean."""
        return resolve_tree(self.config, facts)


@dataclass(frozen=True)
class WholeInput(Input):
    """An input that one process lists.

    Attributes:
        list_all: The function that lists it.
    """

    list_all: Callable[[ShardConfig, Observer | None], Listing]

    def estimate(self) -> tuple[int | None, str]:
        """Returns nothing but the reason why it does not matter."""
        return None, self.obstacle

    def cut(self) -> tuple[None]:
        """Returns the whole as the only piece."""
        return (None,)

    def list(self, piece: None = None, observer: Observer | None = None) -> Listed:
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
        by_index = "the records of finished datasets are planned by their indexes"
        return WholeInput(config, list_datasets, obstacle=by_index)
    look = functools.cache(list_begin)  # in a store each look is a request
    boxes_are_late = "boxes are known once all annotations are read"
    if is_coco(config, look):
        _check_no_column(config, names_files=True)
        return WholeInput(config, list_coco, obstacle=boxes_are_late)
    if config.segmentation_masks:
        raise ConfigError("`segmentation_masks` needs a folder in COCO's layout, or `annotations` in COCO's form.")
    if is_table_input(config, look):
        table = TableInput(config)
        obstacle = "the rows of an image may lie anywhere in a table of boxes"
        return replace(table, obstacle=obstacle) if table.header[1] else table
    if is_voc(config, look):
        _check_no_column(config, names_files=True)
        return WholeInput(config, list_voc, obstacle=boxes_are_late)
    if is_pairs(config, look):
        check_no_table(config)
        return WholeInput(
            config,
            list_pairs,
            obstacle="the columns of pairs are known once all are read",
            no_classes="no pair has a .cls file or a `label` in its .json; write the class into KEY.cls beside KEY.jpg",
        )
    _check_no_column(config)
    return TreeInput(
        config,
        () if is_archive(config.input) else tuple(look(config.input)),
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


def _group(parts: Sequence[_Part], sizes: Sequence[int], min_size: int) -> Iterator[tuple[_Part, ...]]:
    """Yields consecutive parts together: about a thousand groups, but none of them small."""
    target = max(min_size, sum(sizes) // _MANY_PIECES)
    group: list[_Part] = []
    group_size = 0
    for part, size in zip(parts, sizes, strict=True):
        if group and group_size + size > target:
            yield tuple(group)
            group, group_size = [], 0
        group.append(part)
        group_size += size
    if group:
        yield tuple(group)
