"""The plan of a job: which shards there will be, and the lines that say which images go into each, in their order."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from beam_jobs import process_pool
from beam_jobs.config import ShardConfig
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.shards.work_dir import PlannedShard
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import MAX_SHARDS
from tfpipe.format.record_index import MAX_RECORDS
from tfpipe.system.units import human_count

_ROWS_AT_ONCE = 1 << 13
_PARALLEL_FORMATS = (".jpg", ".jpeg", ".png")

_Cuts = list[tuple[str, int, int, int]]
"""Shards as the first fields of a `PlannedShard`."""


@dataclass
class Plan:
    """The shards that a job will write."""

    listing: Listing  # without its images
    images: ImageTable
    order: NDArray[np.int64]  # indices of `images`, shard after shard: [images]
    shards: tuple[PlannedShard, ...]
    shard_bytes: tuple[int, ...]
    class_counts: dict[str, list[int]]  # by split
    digest: str  # the SHA-256 of the SHA-256 of each shard's lines

    @classmethod
    def make(
        cls, listing: Listing, images: ImageTable, order: NDArray[np.int64], cuts: _Cuts, classes: dict[str, list[int]]
    ) -> "Plan":
        """Returns the plan with these shards; `classes` are the class counts, and the others are as in `Plan`."""
        counts = [count for *_, count in cuts]
        num_bytes = np.add.reduceat(images.get_numbers("size")[order], [0, *accumulate(counts)][:-1])
        planned: list[PlannedShard] = []
        digests, end = hashlib.sha256(), 0
        lines = _encode(images, order, counts, listing.label_names)
        for cut, (_, pieces) in zip(cuts, groupby(lines, itemgetter(0)), strict=True):
            begin, digest = end, hashlib.sha256()
            for _, piece in pieces:
                digest.update(piece)
                end += len(piece)
            digests.update(digest.digest())
            planned.append(PlannedShard(*cut, begin, end))
        sizes = tuple(num_bytes.tolist())
        return cls(listing, images, order, tuple(planned), sizes, classes, digests.hexdigest())

    def fits_threads(self, config: ShardConfig, beam_args: Sequence[str]) -> bool:
        """Returns whether threads of this process write the shards: if images are few, and decoders run in parallel."""
        is_small = not beam_args and not config.workers and process_pool.is_small(self.num_images, self.num_bytes)
        return is_small and all(path.lower().endswith(_PARALLEL_FORMATS) for path in self.images.iterate_paths())

    @property
    def num_images(self) -> int:
        """The number of images in all splits."""
        return sum(shard.images for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """The bytes of all sources."""
        return sum(self.shard_bytes)

    def encode(self) -> Iterator[memoryview]:
        """Yields the lines of all images, shard after shard, in pieces of many lines."""
        counts = [shard.images for shard in self.shards]
        return map(itemgetter(1), _encode(self.images, self.order, counts, self.listing.label_names))

    def forget_images(self) -> None:
        """Drops the images, which take memory, once their lines are written."""
        self.images, self.order = ImageTable.make_empty(), np.zeros(0, np.int64)


def _encode(
    images: ImageTable, order: NDArray[np.int64], counts: Sequence[int], label_names: Sequence[str]
) -> Iterator[tuple[int, memoryview]]:
    """Yields pieces of the plan's lines, each with its shard's number. Shards with few images are encoded together."""
    ends = list(accumulate(counts))
    labels, number = images.number_labels(label_names), 0
    for first in range(0, len(order), _ROWS_AT_ONCE):
        lines, offsets = images.encode_lines(order[first : first + _ROWS_AT_ONCE], labels)
        begin, after = first, first + len(offsets) - 1
        while begin < after:
            end = min(ends[number], after)
            yield number, lines[int(offsets[begin - first]) : int(offsets[end - first])]
            begin = end
            number += begin == ends[number]


DEFAULT_SPLIT = "train"

LeftOut = Counter[tuple[str | None, int]]
"""The number of copies left out, by split and label; the label is -1 if the search for copies did not read it."""


def shard_images(
    listing: Listing, splits: Sequence[str], config: ShardConfig, copies: NDArray[np.bool_], left_out: LeftOut
) -> Plan:
    """Returns the plan of all images but the copies that are left out."""
    images = listing.images.take(np.flatnonzero(~copies)) if copies.any() else listing.images
    order, shards, class_counts = _cut_shards(images, listing, splits, config, left_out)
    if len(shards) > MAX_SHARDS:
        raise ConfigError(
            f"A dataset must have at most {MAX_SHARDS:,} shards, got {len(shards):,}. Ask for fewer or larger ones "
            "with `num_shards` or `shard_size_bytes`."
        )
    if (largest := max(count for *_, count in shards)) > MAX_RECORDS:
        raise ConfigError(
            f"A shard must have at most {MAX_RECORDS:,} records for its index to be read, got {largest:,}. Ask for "
            "more or smaller ones with `num_shards` or `shard_size_bytes`."
        )
    bare = replace(listing, images=ImageTable.make_empty(images.details), dropped=len(listing.images) - len(images))
    return Plan.make(bare, images, order, shards, class_counts)


def _cut_shards(
    images: ImageTable, listing: Listing, splits: Sequence[str], config: ShardConfig, left_out: LeftOut
) -> tuple[NDArray[np.int64], _Cuts, dict[str, list[int]]]:
    """Returns the rows of all images shard after shard, the first fields of each `PlannedShard`, and class counts."""
    codes, names = images.get_codes("split")
    numbers = {split: number for number, split in enumerate(splits)}
    # The table may have names that no image uses.
    of_split = np.array([numbers.get(str(name), 0) for name in names], np.int32)[codes]
    counts = np.bincount(of_split, minlength=len(splits)).tolist()
    if config.known_images and not len(images):
        what = f"All {human_count(len(listing.images), 'image')} of {config.input}"
        raise DataError(f"{what} are in {config.known_images} already, so there is none to append.")
    for split, count in sorted(zip(splits, counts, strict=True)):
        if not count and not config.known_images:
            raise DataError(f"Split {split!r} holds nothing but copies of images in other splits.")
    if config.shuffle:
        order = sort_by_hash(images, images.hash_texts("path", str(config.seed).encode()))
    else:
        order = images.sort_by_path() if listing.merged is None else np.arange(len(images))
    if len(splits) > 1:
        order = order[np.argsort(of_split[order], kind="stable")]
    shards: _Cuts = []
    class_counts: dict[str, list[int]] = {}
    label_codes, labels = images.get_codes("label")
    for split, (begin, end) in zip(splits, pairwise([0, *accumulate(counts)]), strict=True):
        rows = order[begin:end]
        if not len(rows):
            continue  # all its images are in the dataset that this appends to
        num_by_size = -(-int(images.get_numbers("size")[rows].sum()) // config.shard_size_bytes)
        num_shards = max(1, min(config.num_shards or num_by_size, len(rows)))  # so that none is empty
        ends = [len(rows) * k // num_shards for k in range(num_shards + 1)]
        shards += [(split, k, num_shards, end - begin) for k, (begin, end) in enumerate(pairwise(ends))]
        by_label = dict(zip(labels, np.bincount(label_codes[rows], minlength=len(labels)).tolist(), strict=True))
        class_counts[split] = [by_label.get(name, 0) for name in listing.label_names]
        if listing.merged is not None:
            given = listing.merged.class_counts[split]
            class_counts[split] = [count - left_out[split, label] for label, count in enumerate(given)]
    return order, shards, class_counts


def give_splits(listing: Listing, config: ShardConfig) -> tuple[Listing, list[str]]:
    """Returns a listing whose images have splits, and these: the input names those of all images or of none."""
    images = listing.images
    if not len(images):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(listing.skipped.items()))
        skipped = f" Skipped by name: {reasons}." if reasons else ""
        advice = " Parquet files without images need lists of numbers, and no other files beside them."
        raise DataError(f"No images were found in {config.input}.{skipped}{advice * ('*.parquet' in listing.skipped)}")
    without = images.find_empty("split")
    if 0 < len(without) < len(images):
        which = f"{len(without)} of {len(images)} have none, such as {min(images.get_paths(without))}"
        raise DataError(f"Every image must have a split or none may, but {which}.")
    if not len(without):
        if config.split or config.splits:
            raise ConfigError("The input names its own splits; leave `split` and `splits` out.")
        return listing, sorted(map(str, images.count_values("split")))
    names, codes = list(config.splits) or [config.split or DEFAULT_SPLIT], np.zeros(len(images), np.int64)
    if config.splits:  # an image's group or path alone decides its split
        # The last bound is infinite, so that rounding in the sum leaves no gap below 1.
        bounds = [*list(accumulate(config.splits.values()))[:-1], float("inf")]
        codes = np.searchsorted(bounds, images.hash_for_splits().astype(np.float64) / 2**64, side="right")
    for name, count in zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
        if not count:
            raise DataError(f"Split {name!r} would get none of the {len(images)} images; give it a larger share.")
    return replace(listing, images=images.replace_texts("split", codes, names)), names


def sort_by_hash(table: ImageTable, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the rows of a table in the order of their hashes, and sorts `hashes` in place.

    Rows of one path (two rows of a manifest for one image) keep the order of the table. Two paths of one hash, which
    occur once in billions of images, are sorted by path.
    """
    rows = np.argsort(hashes, kind="stable")
    hashes.sort()
    equals_next = hashes[1:] == hashes[:-1]
    if equals_next.any():
        tied = np.flatnonzero(np.append(False, equals_next) | np.append(equals_next, False))
        names = list(zip(hashes[tied].tolist(), table.get_paths(rows[tied]), strict=True))
        rows[tied] = rows[tied][sorted(range(len(tied)), key=names.__getitem__)]
    return rows
