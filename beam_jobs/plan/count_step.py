"""The step of the planner that counts images by split and hash. The sums say where each shard begins and ends."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.copy_steps import LeftOut, gather_dropped
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.list_step import Planning, Resolved
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.scratch import get_leading_bits
from beam_jobs.plan.split_and_shard import (
    ShardRange,
    check_no_split_empty,
    check_shards,
    check_splits_remain,
    count_shards,
    cut_evenly,
    cut_parts,
)

BIN_BITS = 14
"""The number of leading bits of a hash by which images are counted. A billion images make bins of 61,000."""


@dataclass(frozen=True)
class Counted:
    """The counts of some runs. Those of others can be added.

    Attributes:
        images: The number of images by split and leading bits of the hash: [splits, bins].
        bytes: The bytes of the images by split.
        listed: The number of images by split, with the copies that are left out.
        classes: The number of images by split and class.
        details: The columns of the image table that some remaining image needs.
    """

    images: NDArray[np.int64]
    bytes: NDArray[np.int64]
    listed: NDArray[np.int64]
    classes: Counter[tuple[int, str | None]] = field(default_factory=Counter)
    details: frozenset[str] = frozenset()

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(
            self.images + other.images,
            self.bytes + other.bytes,
            self.listed + other.listed,
            self.classes + other.classes,
            self.details | other.details,
        )


@dataclass(frozen=True)
class Cuts:
    """The shards, before their images are sorted.

    Attributes:
        ends: The number of images of each split before each bin, and at the end of all: [splits, bins + 1].
        shards: The shards.
        first: The position in the plan at which each split begins.
        parts: The first shard of each part of the plan, and the one after its last.
        class_counts: The number of images of each class, by split.
        listing: The listing, without its images.
    """

    ends: NDArray[np.int64]
    shards: tuple[ShardRange, ...]
    first: Sequence[int]
    parts: tuple[tuple[int, int], ...]
    class_counts: dict[str, list[int]]
    listing: Listing


def count_run(planning: Planning, number: int) -> Counted:
    """Counts the images of a run."""
    resolved: Resolved = planning.scratch.load("listed")
    part = planning.scratch.read_run(resolved.runs[number])
    images, hashes = resolved.give_meaning(part.images, planning.config, values=False), part.hashes
    num_splits = len(resolved.splits)
    listed = np.bincount(_get_split_codes(images.get_codes("split"), resolved.splits), minlength=num_splits)
    if planning.config.drop_duplicates:
        kept = np.flatnonzero(~gather_dropped(planning, resolved, number))
        images, hashes = images.take(kept), hashes[kept]
    splits = _get_split_codes(images.get_codes("split"), resolved.splits)
    bins = get_leading_bits(hashes, BIN_BITS)
    counts = np.bincount((splits << BIN_BITS) | bins, minlength=num_splits << BIN_BITS)
    sums = np.zeros(num_splits, np.int64)
    np.add.at(sums, splits, images.sizes)
    codes, labels = images.get_codes("label")
    pairs, pair_counts = np.unique(splits * (len(labels) + 1) + codes, return_counts=True)
    classes = Counter(
        {
            (pair // (len(labels) + 1), labels[pair % (len(labels) + 1)]): count
            for pair, count in zip(pairs.tolist(), pair_counts.tolist(), strict=True)
        }
    )
    return Counted(counts.reshape(num_splits, -1), sums, listed, classes, images.details)


def _get_split_codes(
    codes_and_names: tuple[NDArray[np.int32], list[str | None]], splits: Sequence[str]
) -> NDArray[np.int64]:
    codes, names = codes_and_names
    positions = {split: k for k, split in enumerate(splits)}
    # A name that no image has may stand in the table, too.
    return np.array([positions.get(str(name), 0) for name in names], np.int64)[codes]


def cut(planning: Planning, counted: Counted) -> None:
    """Decides where each shard begins and ends.

    Raises:
        ConfigError: There would be more shards, or more records in a shard, than the format allows.
        DataError: A split has no image.
    """
    config = planning.config
    resolved: Resolved = planning.scratch.load("listed")
    names = resolved.splits
    if not resolved.has_splits:
        check_no_split_empty(dict(zip(names, counted.listed.tolist(), strict=True)), config)
    num_images = counted.images.sum(axis=1).tolist()
    remaining = {split for split, count in zip(names, num_images, strict=True) if count}
    check_splits_remain(set(names), remaining, config.known_images)
    shards: list[ShardRange] = []
    first, position = [], 0
    for split, count, num_bytes in zip(names, num_images, counted.bytes.tolist(), strict=True):
        first.append(position)
        num_shards = count_shards(count, num_bytes, config)
        for k, (begin, end) in enumerate(cut_evenly(count, num_shards)):
            shards.append(ShardRange(split, k, num_shards, position + begin, position + end))
        position += count
    sizes = [shard.end - shard.begin for shard in shards]
    check_shards(sizes)
    left_out: LeftOut = planning.scratch.load("left_out") if config.drop_duplicates else Counter()
    listing = resolved.meaning.make_listing(ImageTable.make_empty(counted.details))
    cuts = Cuts(
        ends=np.pad(np.cumsum(counted.images, axis=1), ((0, 0), (1, 0))),
        shards=tuple(shards),
        first=first,
        parts=tuple((part.start, part.stop) for part in cut_parts(sizes)),
        class_counts={
            split: listing.count_classes(
                split,
                {label: count for (number, label), count in counted.classes.items() if number == k},
                {label: count for (name, label), count in left_out.items() if name == split},
            )
            for k, split in enumerate(names)
        },
        listing=replace(listing, dropped=int(counted.listed.sum()) - position),
    )
    planning.scratch.save("counted", cuts)
