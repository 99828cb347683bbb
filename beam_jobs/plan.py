"""Which image goes to which shard, in which order: a pure function of names and sizes, with a seed.

    listing = assign_splits(list_images(config), config)
    plan = make_plan(listing, config)
    for shard in plan.shards: shard.images      # indices into listing.refs, in the order they are written

Nothing here reads a file. Order and split come from a keyed BLAKE2b hash of each path, not from a random
generator: the result does not depend on how a folder was listed or on a library's version, and images that
are added later never move the others from one split to another.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate

from beam_jobs.config import ShardConfig
from beam_jobs.refs import ImageRef, PlannedImage
from beam_jobs.unite import United
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.index import MAX_RECORDS
from tfpipe.format.naming import MAX_SHARDS, shard_name
from tfpipe.format.schema import FeatureSpec

DEFAULT_SPLIT = "train"


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything found in the input.

    Attributes:
        name: Short name of the input, for the dataset.
        root: Folder that relative locations start from.
        refs: The images, in any order.
        label_names: Class names, the position being the label; empty for unlabelled images.
        extra: The manifest's further columns.
        skipped: How many files were passed over, by reason.
        numeric_labels: The input gives labels as numbers; `label_names` are these numbers as text.
        dropped: How many images were left out because others hold the same bytes.
        unpack: Compressed tar files that must be unpacked before a worker can read from them at an offset.
        united: What finished datasets make together, where they are the input. Their references stand in the order
            to keep where nothing is shuffled, have the place of a record for a path, and know no label.
    """

    name: str
    root: str
    refs: list[ImageRef]
    label_names: tuple[str, ...] = ()
    extra: tuple[FeatureSpec, ...] = ()
    skipped: Counter[str] | None = None
    numeric_labels: bool = False
    dropped: int = 0
    unpack: tuple[str, ...] = ()
    united: United | None = None

    @property
    def has_boxes(self) -> bool:
        """Whether any image has boxes; then every record carries the features, empty or not."""
        return any(ref.boxes for ref in self.refs)

    @property
    def has_box_labels(self) -> bool:
        """Whether any box has a class."""
        return any(ref.box_labels for ref in self.refs)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to be: `images` are indices into `Listing.refs`, `bytes` the sum of the sources' sizes."""

    split: str
    shard_index: int
    num_shards: int
    images: Sequence[int]
    bytes: int

    @property
    def file(self) -> str:
        """The shard's file name."""
        return shard_name(self.split, self.shard_index, self.num_shards)


@dataclass(frozen=True, slots=True)
class Plan:
    """The shards to be, and per split how many images of each class they hold."""

    listing: Listing
    shards: tuple[ShardPlan, ...]
    class_counts: dict[str, list[int]]

    @property
    def num_images(self) -> int:
        """Images in all splits."""
        return sum(len(shard.images) for shard in self.shards)

    @property
    def num_bytes(self) -> int:
        """Bytes of all sources."""
        return sum(shard.bytes for shard in self.shards)

    def lines(self, shard: ShardPlan) -> Iterator[PlannedImage]:
        """The shard's images as lines of the plan file, in order."""
        labels = {name: label for label, name in enumerate(self.listing.label_names)}
        for i in shard.images:
            ref = self.listing.refs[i]
            label = -1 if ref.label is None else labels[ref.label]
            where = ref.location, ref.offset, ref.packed, ref.crc
            yield PlannedImage(ref.path, ref.size, label, *where, ref.boxes, ref.box_labels, ref.extra)


def assign_splits(listing: Listing, config: ShardConfig) -> Listing:
    """Gives every image its split, where the input does not.

    Raises:
        ConfigError: Splits are asked for and the input names its own.
        DataError: There are no images, only some have a split, or a split that was asked for gets none.
    """
    refs = listing.refs
    if not refs:
        raise DataError(f"No images were found in {config.input}.{_skipped_sentence(listing)}")
    named = sum(bool(ref.split) for ref in refs)
    if named == len(refs):
        if config.split or config.splits:
            raise ConfigError("The input names its own splits; leave --split and --splits out.")
        return listing
    if named:
        unnamed = next(ref.path for ref in refs if not ref.split)
        raise DataError(
            f"Every image must have a split or none may, but {len(refs) - named} of {len(refs)} have none, "
            f"such as {unnamed}."
        )
    if not config.splits:
        split = config.split or DEFAULT_SPLIT
        return replace(listing, refs=[ref._replace(split=split) for ref in refs])
    names = list(config.splits)
    # The last bound is infinite, so that rounding in the sum leaves no gap below 1.
    bounds = [*list(accumulate(config.splits.values()))[:-1], float("inf")]
    refs = [
        ref._replace(split=names[bisect_right(bounds, _hash(ref.group or ref.path, b"split") / 2**64)]) for ref in refs
    ]
    for name in set(names) - {ref.split for ref in refs}:
        raise DataError(f"Split {name!r} would get none of the {len(refs)} images; give it a larger share.")
    return replace(listing, refs=refs)


def make_plan(listing: Listing, config: ShardConfig) -> Plan:
    """Assigns every image to a shard of its split and to a place in it."""
    by_split: dict[str, list[int]] = {name: [] for name in config.splits or sorted({ref.split for ref in listing.refs})}
    for i, ref in enumerate(listing.refs):
        by_split[ref.split].append(i)
    shards: list[ShardPlan] = []
    for split, images in by_split.items():
        shards += _cut(split, _order(images, listing.refs, config), listing.refs, config)
    if len(shards) > MAX_SHARDS:
        raise ConfigError(
            f"A dataset must have at most {MAX_SHARDS:,} shards, got {len(shards):,}. Ask for fewer or larger ones "
            "with --num-shards or --shard-size."
        )
    if (most := max((len(shard.images) for shard in shards), default=0)) > MAX_RECORDS:
        raise ConfigError(
            f"A shard must have at most {MAX_RECORDS:,} records for its index to be read, got {most:,}. Ask for more "
            "or smaller ones with --num-shards or --shard-size."
        )
    return Plan(listing, tuple(shards), {split: _class_counts(listing, split, by_split[split]) for split in by_split})


def _order(images: list[int], refs: Sequence[ImageRef], config: ShardConfig) -> list[int]:
    if not config.shuffle:
        return images if config.datasets else sorted(images, key=lambda i: refs[i].path)
    key = str(config.seed).encode()
    # Equal paths (two manifest rows of one image) keep the manifest's order: the sort is stable.
    return sorted(images, key=lambda i: _hash(refs[i].path, key))


def _hash(text: str, key: bytes) -> int:
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little")


def _cut(split: str, ordered: list[int], refs: Sequence[ImageRef], config: ShardConfig) -> Iterator[ShardPlan]:
    """Consecutive cuts whose numbers of images differ by at most one; never an empty one."""
    sizes = [refs[i].size for i in ordered]
    asked = config.num_shards or -(-sum(sizes) // config.shard_size_bytes)
    num_shards = max(1, min(asked, len(ordered)))
    begin = 0
    for k in range(num_shards):
        end = len(ordered) * (k + 1) // num_shards
        yield ShardPlan(split, k, num_shards, ordered[begin:end], sum(sizes[begin:end]))
        begin = end


def _class_counts(listing: Listing, split: str, images: Sequence[int]) -> list[int]:
    if listing.united is not None:
        return listing.united.class_counts[split]
    counts = Counter(listing.refs[i].label for i in images)
    return [counts[name] for name in listing.label_names]


def _skipped_sentence(listing: Listing) -> str:
    if not listing.skipped:
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(listing.skipped.items()))
    return f" Skipped by name: {reasons}."
