"""The first step of the planner: it lists the input and writes its images as sorted runs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.facts import Facts, Meaning
from beam_jobs.inputs.faults import Faults
from beam_jobs.inputs.recognize import Input, join
from beam_jobs.inputs.table import RUN_IMAGES
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.scratch import HASH_BITS, Run, Scratch
from beam_jobs.plan.split_and_shard import (
    DEFAULT_SPLIT,
    are_splits_named,
    give_splits,
    hash_for_order,
    list_splits,
)
from beam_jobs.shards.output_dir import check_dataset_output
from tfpipe.dataset.history import load_history
from tfpipe.errors import DataError
from tfpipe.format.digest_groups import DIGEST_BYTES
from tfpipe.format.json_reader import MAX_PARTS
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_count
from tfpipe.writer.record_facts import read_digests

_SIZE_BITS = 20
_BUCKET_IMAGES = 100_000


@dataclass(frozen=True)
class Planning:
    """The settings that all steps share.

    Attributes:
        config: The configuration of the job.
        scratch: The files of the steps.
        readers: The number of processes that read images. 0: this one reads them itself.
        observer: The observer of the listing.
    """

    config: ShardConfig
    scratch: Scratch
    readers: int = 0
    observer: Observer | None = None


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
        sizes: The number of images by the last bits of their size, as in `Listed`.
    """

    meaning: Meaning
    runs: tuple[Run, ...]
    num_images: int
    splits: tuple[str, ...]
    has_splits: bool
    sizes: NDArray[np.uint8] | None

    @property
    def num_buckets(self) -> int:
        """The number of groups of digests that are compared by one task each."""
        return max(1, -(-self.num_images // _BUCKET_IMAGES))

    def give_meaning(self, images: ImageTable, config: ShardConfig, *, values: bool = True) -> ImageTable:
        """Returns listed images with the classes and splits that they have in the plan."""
        images = self.meaning.make_listing(images, values=values).images
        return images if self.has_splits else give_splits(images, config)

    def may_have_copy(self, images: ImageTable) -> NDArray[np.bool_]:
        """Returns for each image whether another one may have the same size."""
        assert self.sizes is not None
        return (self.sizes[_get_last_bits(images)] > 1) | images.in_row_groups


def list_input(planning: Planning, number: int) -> Listed:
    """Lists the input and writes its images as runs.

    Raises:
        ConfigError: An option does not go with the input.
        DataError: The input cannot be read.
    """
    config, scratch = planning.config, planning.scratch
    source: Input = scratch.load("input")
    listed = source.list(planning.observer)
    runs: list[Run] = []
    facts, sizes = Facts(), np.zeros(1 << _SIZE_BITS, np.uint8) if config.drop_duplicates else None
    for all_images, some_facts in listed if config.shuffle else join(listed):
        facts += some_facts
        keys = _make_keys(all_images, some_facts, config)
        for begin, images in _cut_table(all_images):
            run_keys = keys[begin : begin + len(images)]
            runs.append(scratch.write_run(number, len(runs), images, run_keys))
            if some_facts.keeps_order:
                scratch.save(f"positions/{runs[-1].name}", begin + np.argsort(run_keys, kind="stable"))
            if sizes is not None:
                counts = np.bincount(_get_last_bits(images), minlength=len(sizes))
                sizes = np.minimum(sizes + counts, 2).astype(np.uint8)
    return Listed(facts, tuple(runs), sizes)


def _check_classes(listing: Listing, num_splits: int) -> None:
    """Checks that a manifest can hold the names of the classes, and the counts of each split."""
    count = len(listing.label_names) + sum(len(spec.names) for spec in listing.extra)
    most = MAX_PARTS // 2 // (1 + num_splits)
    if count > most:
        raise DataError(
            f"A dataset with {human_count(num_splits, 'split')} must have at most {most:,} classes, got {count:,}. "
            "Labels that say something else of each image can be a column of another name."
        )


def _make_keys(images: ImageTable, facts: Facts, config: ShardConfig) -> NDArray[np.uint64]:
    """Returns the numbers by which the images of a split are sorted: hashes, or the positions of images in order.

    Positions are in the leading bits, as those of hashes are.
    """
    if config.shuffle:
        return hash_for_order(images, config)
    ranks, count = np.arange(len(images), dtype=np.uint64), len(images)
    if not facts.keeps_order:
        paths = list(images.iterate_paths())
        ranks[sorted(range(count), key=paths.__getitem__)] = np.arange(count, dtype=np.uint64)
    keys: NDArray[np.uint64] = ranks << np.uint64(HASH_BITS - max(1, count.bit_length()))
    return keys


def _cut_table(images: ImageTable) -> Iterator[tuple[int, ImageTable]]:
    """Yields the images in pieces that can be sorted with little memory, and the position of each piece."""
    if len(images) <= RUN_IMAGES:
        if len(images):
            yield 0, images
        return
    for begin in range(0, len(images), RUN_IMAGES):
        yield begin, images.take(np.arange(begin, min(begin + RUN_IMAGES, len(images))))


def _get_last_bits(images: ImageTable) -> NDArray[np.int64]:
    return images.sizes & ((1 << _SIZE_BITS) - 1)


def resolve(planning: Planning, listed: Listed) -> None:
    """Saves what all images have in common.

    Raises:
        ConfigError: The configuration names splits, and so does the input; or the output lies in the input.
        DataError: There are no images, some are missing, or their classes or splits do not go together.
    """
    config, facts = planning.config, listed.facts
    source: Input = planning.scratch.load("input")
    faults, has_splits = Faults(config.input), False
    meaning: Meaning | None = None
    with faults:
        meaning = source.resolve(facts)
    with faults:
        facts.missing.check(config, facts.num_images)
    folder_splits = (meaning and meaning.splits) or {}
    split_counts = Counter[str | None](facts.splits)
    for folder, count in facts.labels.items() if meaning is not None and meaning.splits is not None else ():
        split = folder_splits.get(folder, "")
        split_counts[split] += count

    def find_unsplit() -> str:
        if facts.unsplit.count:
            return facts.unsplit.show(source.files)
        return facts.first_unsplit or min(path for folder, path in facts.examples.items() if not folder_splits[folder])

    with faults:
        if split_counts or meaning is not None:
            has_splits = are_splits_named(
                split_counts, find_unsplit, meaning.listing.skipped if meaning else facts.skipped, config
            )
    faults.check()
    assert meaning is not None
    splits = list_splits(config, split_counts if has_splits else [config.split or DEFAULT_SPLIT])
    _check_classes(meaning.listing, len(splits))
    if facts.whole is not None and facts.whole.datasets is not None:
        # The shards of foreign data may lie away from its manifest.
        check_dataset_output(config, [origin.directory for origin in facts.whole.datasets.sources.values()])
    if config.drop_duplicates:
        known = config.known_images and load_history(config.known_images).load(with_columns=False)
        planning.scratch.save("known", read_digests(known) if known else np.zeros((0, DIGEST_BYTES), np.uint8))
    planning.scratch.save(
        "listed",
        Resolved(
            meaning=meaning,
            runs=tuple(sorted(listed.runs)),
            num_images=facts.num_images,
            splits=tuple(splits),
            has_splits=has_splits,
            sizes=listed.sizes,
        ),
    )
