"""Decides which image goes to which shard, in which order: a pure function of names and sizes, with a seed.

    listing = assign_splits(list_images(config), config)
    plan = make_plan(listing, config)
    for shard in plan.shards: shard.images      # indices into listing.images, in the order they are written

Nothing here reads a file. Order and split come from a keyed BLAKE2b hash of each path, not from a random generator.
So the result does not depend on the order in which a folder was listed, or on a library's version. Images that are
added later never move the others from one split to another. All work is done in columns: each image takes a hash, a
size, a code for the split and an index, which are 28 bytes besides the listing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.plan.image_ref import PlannedImage
from beam_jobs.plan.listing import Listing
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import MAX_SHARDS, shard_name
from tfpipe.format.record_index import MAX_RECORDS

DEFAULT_SPLIT = "train"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One planned shard.

    Attributes:
        split: The name of the split.
        shard_index: The number of the shard in its split, from 0.
        num_shards: The number of shards of the split.
        images: The images as indices into `Listing.images`, in the order in which they are written.
        bytes: The sum of the sources' sizes.
    """

    split: str
    shard_index: int
    num_shards: int
    images: NDArray[np.int64]
    bytes: int

    @property
    def file(self) -> str:
        """The shard's file name."""
        return shard_name(self.split, self.shard_index, self.num_shards)


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards that a job will write.

    Attributes:
        listing: The images of the input, each with its split.
        shards: The shards, split by split.
        class_counts: The number of images of each class, by split; the position is the label.
    """

    listing: Listing
    shards: tuple[ShardPlan, ...]
    class_counts: dict[str, list[int]]

    @property
    def num_images(self) -> int:
        """The number of images in all splits."""
        return sum(len(shard.images) for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """The bytes of all sources."""
        return sum(shard.bytes for shard in self.shards)

    def lines(self, shard: ShardPlan) -> Iterator[PlannedImage]:
        """Returns the images of a shard as lines of the plan file, in order."""
        return self.listing.images.iterate_planned(shard.images, self.listing.label_names)


def assign_splits(listing: Listing, config: ShardConfig) -> Listing:
    """Gives every image its split, unless the input names the splits.

    Raises:
        ConfigError: The configuration names splits, and so does the input.
        DataError: There are no images, only some have a split, or a split of the configuration gets no image.
    """
    images = listing.images
    if not images:
        raise DataError(f"No images were found in {config.input}.{_explain_skipped(listing)}")
    num_without = images.count_values("split").get("", 0)
    if not num_without:
        if config.split or config.splits:
            raise ConfigError("The input names its own splits; leave `split` and `splits` out.")
        return listing
    if num_without < len(images):
        first = next(image.path for image in images if not image.split)
        raise DataError(
            f"Every image must have a split or none may, but {num_without} of {len(images)} have none, such as {first}."
        )
    if not config.splits:
        first_only = np.zeros(len(images), np.int64)
        images = images.replace_texts("split", first_only, [config.split or DEFAULT_SPLIT])
        return replace(listing, images=images)
    # The last bound is infinite, so that rounding in the sum leaves no gap below 1.
    bounds = [*list(accumulate(config.splits.values()))[:-1], float("inf")]
    codes = np.searchsorted(bounds, images.hash_for_splits().astype(np.float64) / 2**64, side="right")
    images = images.replace_texts("split", codes, list(config.splits))
    for name in config.splits:
        if name not in images.count_values("split"):
            raise DataError(f"Split {name!r} would get none of the {len(images)} images; give it a larger share.")
    return replace(listing, images=images)


def make_plan(listing: Listing, config: ShardConfig) -> Plan:
    """Assigns every image to a shard of its split and to a position in it.

    Raises:
        ConfigError: There would be more shards, or more records in a shard, than the format allows.
    """
    table = listing.images
    codes, splits = table.get_codes("split")
    hashes = table.hash_texts("path", str(config.seed).encode()) if config.shuffle else None
    shards: list[ShardPlan] = []
    class_counts: dict[str, list[int]] = {}
    for split in config.splits or sorted(map(str, table.count_values("split"))):
        images = np.flatnonzero(codes == splits.index(split))
        class_counts[split] = listing.count_classes(split, images)
        if hashes is not None:
            # Equal paths (two manifest rows of one image) keep the manifest's order: the sort is stable.
            images = images[np.argsort(hashes[images], kind="stable")]
        elif not listing.keeps_order:
            paths = table.get_paths(images)
            images = images[sorted(range(len(images)), key=paths.__getitem__)]
        shards += _cut_shards(split, images, table.sizes, config)
    if len(shards) > MAX_SHARDS:
        raise ConfigError(
            f"A dataset must have at most {MAX_SHARDS:,} shards, got {len(shards):,}. Ask for fewer or larger ones "
            "with `num_shards` or `shard_size_bytes`."
        )
    largest = max((len(shard.images) for shard in shards), default=0)
    if largest > MAX_RECORDS:
        raise ConfigError(
            f"A shard must have at most {MAX_RECORDS:,} records for its index to be read, got {largest:,}. Ask for "
            "more or smaller ones with `num_shards` or `shard_size_bytes`."
        )
    return Plan(listing, tuple(shards), class_counts)


def _cut_shards(
    split: str, ordered: NDArray[np.int64], sizes: NDArray[np.int64], config: ShardConfig
) -> Iterator[ShardPlan]:
    """Yields consecutive parts of the images as shards. None is empty, and their sizes differ by at most one image."""
    num_by_size = -(-int(sizes[ordered].sum()) // config.shard_size_bytes)
    num_shards = max(1, min(config.num_shards or num_by_size, len(ordered)))
    begin = 0
    for k in range(num_shards):
        end = len(ordered) * (k + 1) // num_shards
        images = ordered[begin:end]
        yield ShardPlan(split, k, num_shards, images, int(sizes[images].sum()))
        begin = end


def _explain_skipped(listing: Listing) -> str:
    if not listing.skipped:
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(listing.skipped.items()))
    return f" Skipped by name: {reasons}."
