"""Decides which image goes to which shard, in which order: pure functions of names and sizes, with a seed.

Nothing here reads a file. Order and split come from a keyed BLAKE2b hash of each path, not from a random generator.
So the result does not depend on the order in which a folder was listed, or on a library's version. Images that are
added later never move the others from one split to another.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.plan.image_table import ImageTable
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.file_names import MAX_SHARDS
from tfpipe.format.record_index import MAX_RECORDS

DEFAULT_SPLIT = "train"

PART_IMAGES = 250_000
"""The number of images after which a new part of the plan's lines begins. One process sorts one part in memory."""


class ShardRange(NamedTuple):
    """A shard before its images are sorted.

    Attributes:
        split: The name of the split.
        shard_index: The number of the shard in its split, from 0.
        num_shards: The number of shards of the split.
        begin: The position in the plan of its first image.
        end: The position after its last image.
    """

    split: str
    shard_index: int
    num_shards: int
    begin: int
    end: int


def are_splits_named(
    counts: Mapping[str | None, int],
    find_unsplit: Callable[[], str],
    skipped: Mapping[str, int] | None,
    config: ShardConfig,
) -> bool:
    """Returns whether the input names the splits of its images.

    Args:
        counts: The number of images by the split that the input names, or by none.
        find_unsplit: A function that returns the path of an image without a split.
        skipped: The number of files that were passed over, by reason.
        config: The configuration of the job.

    Raises:
        ConfigError: The configuration names splits, and so does the input.
        DataError: There are no images, or only some have a split.
    """
    num_images = sum(counts.values())
    if not num_images:
        raise DataError(f"No images were found in {config.input}.{_explain_skipped(skipped)}")
    num_without = counts.get("", 0)
    if not num_without:
        if config.split or config.splits:
            raise ConfigError("The input names its own splits; leave `split` and `splits` out.")
        return True
    if num_without < num_images:
        raise DataError(
            f"Every image must have a split or none may, but {num_without} of {num_images} have none, such as "
            f"{find_unsplit()}."
        )
    return False


def give_splits(images: ImageTable, config: ShardConfig) -> ImageTable:
    """Returns images with splits, for an input that names none."""
    if config.splits:
        return images.replace_texts("split", choose_splits(images, config), list(config.splits))
    first_only = np.zeros(len(images), np.int64)
    return images.replace_texts("split", first_only, [config.split or DEFAULT_SPLIT])


def check_no_split_empty(counts: Mapping[str | None, int], config: ShardConfig) -> None:
    """Checks that every split of the configuration gets an image."""
    for name in config.splits:
        if not counts.get(name):
            raise DataError(
                f"Split {name!r} would get none of the {sum(counts.values())} images; give it a larger share."
            )


def check_splits_remain(splits: Set[str], remaining_splits: Set[str], known: str) -> None:
    """Checks that every split has an image once copies are left out."""
    for split in sorted(splits - remaining_splits):
        where = f"{known} and in other splits" if known else "other splits"
        raise DataError(f"Split {split!r} holds nothing but copies of images in {where}.")


def hash_for_order(table: ImageTable, config: ShardConfig) -> NDArray[np.uint64]:
    """Returns the hash of the seed and the path of each image, by which a split is sorted."""
    return table.hash_texts("path", str(config.seed).encode())


def choose_splits(table: ImageTable, config: ShardConfig) -> NDArray[np.int64]:
    """Returns the position in `config.splits` of each image's split. It depends on the image's group or path alone."""
    # The last bound is infinite, so that rounding in the sum leaves no gap below 1.
    bounds = [*list(accumulate(config.splits.values()))[:-1], float("inf")]
    codes: NDArray[np.int64] = np.searchsorted(bounds, table.hash_for_splits().astype(np.float64) / 2**64, side="right")
    return codes


def list_splits(config: ShardConfig, found: Iterable[str | None]) -> list[str]:
    """Returns the splits in their order: as they were requested, or else sorted by name."""
    return list(config.splits) or sorted(map(str, found))


def sort_by_hash(table: ImageTable, hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns rows of a table in the order of their hashes.

    Rows of one path (two rows of a manifest for one image) keep the order of the table. Two paths of one hash, which
    occur once in billions of images, come in the order of the paths.
    """
    rows = rows[np.argsort(hashes[rows], kind="stable")]
    keys = hashes[rows]
    equals_next = keys[1:] == keys[:-1]
    if equals_next.any():
        tied = np.flatnonzero(np.append(False, equals_next) | np.append(equals_next, False))
        names = list(zip(keys[tied].tolist(), table.get_paths(rows[tied]), strict=True))
        rows[tied] = rows[tied][sorted(range(len(tied)), key=names.__getitem__)]
    return rows


def count_shards(num_images: int, num_bytes: int, config: ShardConfig) -> int:
    """Returns the number of shards of a split. None of them is empty."""
    num_by_size = -(-num_bytes // config.shard_size_bytes)
    return max(1, min(config.num_shards or num_by_size, num_images))


def cut_evenly(num_images: int, num_shards: int) -> Iterator[tuple[int, int]]:
    """Yields the first position of each shard in its sorted split, and the one after its last.

    The sizes of the shards differ by at most one image.
    """
    return pairwise(num_images * k // num_shards for k in range(num_shards + 1))


def check_shards(sizes: Sequence[int]) -> None:
    """Checks that the format allows the shards."""
    if len(sizes) > MAX_SHARDS:
        raise ConfigError(
            f"A dataset must have at most {MAX_SHARDS:,} shards, got {len(sizes):,}. Ask for fewer or larger ones "
            "with `num_shards` or `shard_size_bytes`."
        )
    largest = max(sizes, default=0)
    if largest > MAX_RECORDS:
        raise ConfigError(
            f"A shard must have at most {MAX_RECORDS:,} records for its index to be read, got {largest:,}. Ask for "
            "more or smaller ones with `num_shards` or `shard_size_bytes`."
        )


def cut_parts(sizes: Sequence[int]) -> Iterator[range]:
    """Yields consecutive shards whose lines make one part of the plan: at most `PART_IMAGES` images, or one shard."""
    begin = num_images = 0
    for k, size in enumerate(sizes):
        if k > begin and num_images + size > PART_IMAGES:
            yield range(begin, k)
            begin, num_images = k, 0
        num_images += size
    yield range(begin, len(sizes))


def _explain_skipped(skipped: Mapping[str, int] | None) -> str:
    if not skipped:
        return ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
    advice = (
        " Parquet files without images need lists of numbers, and no other files beside them."
        if "*.parquet" in skipped
        else ""
    )
    return f" Skipped by name: {reasons}.{advice}"
