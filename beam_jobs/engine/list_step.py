"""The first step of the engine: each task lists a piece of the input and writes its images as sorted runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.engine.scratch import Run, Scratch
from beam_jobs.inputs.facts import Facts, Meaning
from beam_jobs.inputs.folder import TreeEntry, list_entries, list_entry
from beam_jobs.inputs.list_inputs import check_no_column, check_no_segmentations, resolve_tree
from beam_jobs.inputs.table import RUN_IMAGES, is_table_input, list_rows, read_columns, read_sizes, resolve_table
from beam_jobs.inputs.table_files import TablePart, get_root, list_parts
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.split_and_shard import (
    DEFAULT_SPLIT,
    are_splits_named,
    give_splits,
    hash_for_order,
    list_splits,
)

Part = TypeVar("Part", TablePart, TreeEntry)

_SIZE_BITS = 20
_MANY_PIECES = 1000
_MIN_ARCHIVE_BYTES = 1 << 30
_BUCKET_IMAGES = 100_000


@dataclass(frozen=True)
class EngineConfig:
    """The settings that all tasks share.

    Attributes:
        config: The configuration of the job.
        scratch: The folder for the files of the tasks.
    """

    config: ShardConfig
    scratch: Scratch


@dataclass(frozen=True)
class Pieces:
    """The pieces of the input.

    Attributes:
        pieces: The parts of a table, or some folders and archives, of each piece.
        columns: The further columns of a table.
    """

    pieces: tuple[tuple[TablePart | TreeEntry, ...], ...]
    columns: tuple[str, ...] = ()

    @property
    def parts(self) -> list[TablePart]:
        """All parts of a table, in their order."""
        return [part for piece in self.pieces for part in piece if isinstance(part, TablePart)]


@dataclass(frozen=True)
class Listed:
    """The result of listing some pieces. Those of others can be added.

    Attributes:
        facts: The facts about the images.
        runs: The runs that were written.
        sizes: The number of images by the last bits of their size, up to 2; None if no duplicates are looked for.
    """

    facts: Facts = field(default_factory=Facts)
    runs: tuple[Run, ...] = ()
    sizes: NDArray[np.uint8] | None = None

    def __add__(self, other: "Listed") -> "Listed":
        sizes = self.sizes
        if other.sizes is not None:
            sizes = other.sizes if sizes is None else np.minimum(sizes + other.sizes, 2).astype(np.uint8)
        return Listed(self.facts + other.facts, (*self.runs, *other.runs), sizes)


@dataclass(frozen=True)
class Resolved:
    """The facts that all images have in common, once all are listed.

    Attributes:
        meaning: The meaning of classes, folders and columns.
        runs: All runs, in the order of the input.
        num_images: The number of images.
        splits: The splits, in their order.
        has_splits: Whether the input names them.
        details: The columns of the image table beside the usual ones.
        sizes: The number of images by the last bits of their size, as in `Listed`.
    """

    meaning: Meaning
    runs: tuple[Run, ...]
    num_images: int
    splits: tuple[str, ...]
    has_splits: bool
    details: frozenset[str]
    sizes: NDArray[np.uint8] | None

    @property
    def num_buckets(self) -> int:
        """The number of groups of digests that are compared by one task each."""
        return max(1, -(-self.num_images // _BUCKET_IMAGES))

    def give_meaning(self, images: ImageTable, config: ShardConfig, *, values: bool = True) -> ImageTable:
        """Returns listed images with the classes and splits that they have in the plan.

        Args:
            images: The images.
            config: The configuration of the job.
            values: Whether the values of further columns are converted too.
        """
        meaning = self.meaning if values else replace(self.meaning, columns=())
        images = meaning.make_listing(images).images
        return images if self.has_splits else give_splits(images, config)

    def may_have_copy(self, images: ImageTable) -> NDArray[np.bool_]:
        """Returns for each image whether another one may have the same size."""
        assert self.sizes is not None
        return (self.sizes[_get_last_bits(images)] > 1) | images.in_row_groups


def make_pieces(config: ShardConfig) -> Pieces:
    """Divides the input into pieces that are listed one by one. It opens no image and lists none.

    Raises:
        ConfigError: An option does not go with the input.
        DataError: The input is missing or empty.
    """
    check_no_segmentations(config)
    if is_table_input(config):
        parts = list_parts(config.input, config.columns)
        columns = read_columns(parts, config)
        return Pieces(tuple(_group(parts, [part.size for part in parts], 1 << 24)), columns)
    check_no_column(config)
    entries = list_entries(config.input)
    archives = [entry for entry in entries if entry.kind == "archive"]
    others = [entry for entry in entries if entry.kind != "archive"]
    pieces = [
        *_group(archives, [entry.size for entry in archives], _MIN_ARCHIVE_BYTES),
        *_group(others, [1] * len(others), 1),
    ]
    return Pieces(tuple(pieces))


def _group(parts: Sequence[Part], sizes: Sequence[int], min_size: int) -> Iterator[tuple[Part, ...]]:
    """Yields consecutive parts together: about a thousand groups, but none of them small."""
    target = max(min_size, sum(sizes) // _MANY_PIECES)
    group: list[Part] = []
    group_size = 0
    for part, size in zip(parts, sizes, strict=True):
        if group and group_size + size > target:
            yield tuple(group)
            group, group_size = [], 0
        group.append(part)
        group_size += size
    if group:
        yield tuple(group)


def list_piece(engine: EngineConfig, number: int) -> Listed:
    """Lists a piece of the input and writes its images as runs.

    Raises:
        DataError: The piece cannot be read.
    """
    config, scratch = engine.config, engine.scratch
    pieces: Pieces = scratch.load("pieces")
    runs: list[Run] = []
    facts, sizes = Facts(), np.zeros(1 << _SIZE_BITS, np.uint8) if config.drop_duplicates else None
    for images, run_facts in _list_runs(config, pieces, number):
        facts += run_facts
        if not len(images):
            continue
        runs.append(scratch.write_run(number, len(runs), images, hash_for_order(images, config)))
        if sizes is not None:
            counts = np.bincount(_get_last_bits(images), minlength=len(sizes))
            sizes = np.minimum(sizes + counts, 2).astype(np.uint8)
    return Listed(facts, tuple(runs), sizes)


def _list_runs(config: ShardConfig, pieces: Pieces, number: int) -> Iterator[tuple[ImageTable, Facts]]:
    builder, facts = ImageTableBuilder(), Facts()
    for part in pieces.pieces[number]:
        if isinstance(part, TablePart):
            for images, part_facts in list_rows(part, pieces.columns, config):
                images, missing = read_sizes(images, get_root(config.input))
                yield images, part_facts + Facts(missing=missing)
            continue
        tree = list_entry(config.input, part)
        builder.extend(tree.images)
        facts += Facts.read_tree(tree.images, tree.skipped)
        if len(builder) >= RUN_IMAGES:
            yield builder.finish(), facts
            facts = Facts()
    yield builder.finish(), facts


def _get_last_bits(images: ImageTable) -> NDArray[np.int64]:
    return images.sizes & ((1 << _SIZE_BITS) - 1)


def resolve(engine: EngineConfig, listed: Listed) -> None:
    """Saves what all images have in common.

    Raises:
        ConfigError: The configuration names splits, and so does the input.
        DataError: There are no images, or their classes or splits do not go together.
    """
    config, facts = engine.config, listed.facts
    pieces: Pieces = engine.scratch.load("pieces")
    split_counts: dict[str | None, int] = {}
    if pieces.parts:
        meaning = resolve_table(config, facts, pieces.columns, pieces.parts)
        facts.missing.check(config, facts.num_images)
        split_counts.update(facts.splits)
    else:
        meaning = resolve_tree(config, facts)
        for folder, count in facts.labels.items():
            split = (meaning.splits or {}).get(folder, "")
            split_counts[split] = split_counts.get(split, 0) + count

    def find_unsplit() -> str:
        if facts.first_unsplit:
            return facts.first_unsplit[-1]
        return min(path for folder, path in facts.examples.items() if not (meaning.splits or {})[folder])

    has_splits = are_splits_named(split_counts, find_unsplit, meaning.skipped, config)
    splits = list_splits(config, split_counts if has_splits else [config.split or DEFAULT_SPLIT])
    engine.scratch.save(
        "listed",
        Resolved(
            meaning=meaning,
            runs=tuple(sorted(listed.runs)),
            num_images=facts.num_images,
            splits=tuple(splits),
            has_splits=has_splits,
            details=facts.details,
            sizes=listed.sizes,
        ),
    )
