"""Finds records whose digests are equal, counts them, and writes the file that lists them."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.manifest import Duplicates

DIGEST_BYTES = 32  # of SHA-256


def list_duplicates(
    table: NDArray[np.uint8],
    shards: Sequence[tuple[str, int]],
    read_path: Callable[[int, int], str],
    dropped: int,
) -> tuple[Duplicates, list[bytes]]:
    """Finds the images that occur more than once.

    Args:
        table: The SHA-256 of each source image, in the order of the shards: uint8 [records, 32].
        shards: The split and the number of records of each shard. The shards of one split stand together.
        read_path: A function that returns the path of an image, given the shard's position and the image's position
            in it. It is called once for each duplicate, so memory grows with these and not with the images.
        dropped: The number of images that were left out before.

    Returns:
        The counts, and the line of `encode_group` for each image that occurs more than once, sorted by its first
        record.
    """
    starts = np.cumsum([0, *(records for _, records in shards)])[:-1]
    first_of_split: dict[str, int] = {}
    for (split, _), start in zip(shards, starts, strict=True):
        first_of_split.setdefault(split, int(start))
    lines, counts = [], GroupCounts()
    for group in equal_rows(table):
        records = []
        for at in group:
            shard = int(np.searchsorted(starts, at, side="right")) - 1  # the last shard that begins at or before it
            split = shards[shard][0]
            records.append((split, at - first_of_split[split], read_path(shard, at - int(starts[shard]))))
        counts.add(split for split, _, _ in records)
        lines.append(encode_group(table[group[0]].tobytes(), records))
    return counts.describe(dropped), lines


@dataclass
class GroupCounts:
    """The counts of groups of equal images.

    Attributes:
        within: The number of images of each split that have a copy before them in it.
        across: The number of groups in more than one split.
    """

    within: Counter[str] = field(default_factory=Counter)
    across: int = 0

    def add(self, splits: Iterable[str]) -> None:
        """Counts a group, of which the split of each image is given."""
        in_split = Counter(splits)
        self.within.update({split: count - 1 for split, count in in_split.items() if count > 1})
        self.across += len(in_split) > 1

    def __add__(self, other: "GroupCounts") -> "GroupCounts":
        return GroupCounts(self.within + other.within, self.across + other.across)

    def describe(self, dropped: int) -> Duplicates:
        """Returns the counts for the manifest, with the number of images that were left out before."""
        return Duplicates(within=dict(sorted(self.within.items())), across=self.across, dropped=dropped)


def encode_group(sha256: bytes, records: Iterable[tuple[str, int, str]]) -> bytes:
    """Returns the line about a group of equal images: a JSON object with `sha256` and `records`.

    Args:
        sha256: The SHA-256 of the images.
        records: The split, the index in the split and the path of each image, in the order of the dataset.
    """
    objects = [{"split": split, "index": index, "path": path} for split, index, path in records]
    return json.dumps({"sha256": sha256.hex(), "records": objects}).encode() + b"\n"


def equal_rows(table: NDArray[np.uint8]) -> list[list[int]]:
    """Returns the groups of equal rows, sorted by their first member. A row has at least 8 bytes.

    Rows are sorted by their first 8 bytes and then compared as a whole. This takes 16 bytes of memory a row, and a
    second for 5 million rows.
    """
    if not len(table):
        return []
    prefix = np.ascontiguousarray(table[:, :8]).view(np.uint64).ravel()
    order = np.argsort(prefix, kind="stable")
    same = prefix[order][1:] == prefix[order][:-1]
    groups: dict[bytes, list[int]] = defaultdict(list)
    for at in order[np.append(False, same) | np.append(same, False)]:
        groups[table[at].tobytes()].append(int(at))
    return sorted(group for group in groups.values() if len(group) > 1)
