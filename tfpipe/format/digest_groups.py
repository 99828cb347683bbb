"""Finds records whose digests are equal, counts them, and writes the file that lists them."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.manifest import Duplicates


def list_duplicates(
    table: NDArray[np.uint8],
    shards: Sequence[tuple[str, int]],
    paths: Callable[[int, Sequence[int]], Sequence[str]],
    dropped: int,
) -> tuple[Duplicates, bytes]:
    """Finds the images that occur more than once.

    Args:
        table: The SHA-256 of each source image, in the order of the shards: uint8 [records, 32].
        shards: The split and the number of records of each shard. The shards of one split stand together.
        paths: A function that returns the paths of some images of a shard, given the shard's position and the
            images' positions in it, in order. It is called once for each shard that has duplicates, so memory grows
            with the duplicates and not with the images.
        dropped: The number of images that were left out before.

    Returns:
        The counts, and one JSON line for each image that occurs more than once: `sha256` and its `records`, each with
        `split`, `index` in the split and `path`.
    """
    groups = equal_rows(table)
    return list_groups([(table[group[0]].tobytes(), group) for group in groups], shards, paths, dropped)


def list_groups(
    groups: Sequence[tuple[bytes, Sequence[int]]],
    shards: Sequence[tuple[str, int]],
    paths: Callable[[int, Sequence[int]], Sequence[str]],
    dropped: int,
) -> tuple[Duplicates, bytes]:
    """Describes groups of equal images as `list_duplicates` does, whose other arguments and result it has.

    Args:
        groups: The SHA-256 of each group and the numbers of its images, counted from the first shard on, in rising
            order. The groups are sorted by their first image.
        shards: The split and the number of records of each shard.
        paths: A function that returns the paths of some images of a shard.
        dropped: The number of images that were left out before.
    """
    starts = np.cumsum([0, *(records for _, records in shards)])[:-1]
    first_of_split: dict[str, int] = {}
    for (split, _), start in zip(shards, starts, strict=True):
        first_of_split.setdefault(split, int(start))
    within: Counter[str] = Counter()
    across, lines = 0, []
    path = _read_paths([group for _, group in groups], starts, paths)
    for digest, group in groups:
        records = []
        for at in group:
            shard = int(np.searchsorted(starts, at, side="right")) - 1  # the last shard that begins at or before it
            split = shards[shard][0]
            records.append({"split": split, "index": at - first_of_split[split], "path": path[at]})
        in_split = Counter(str(record["split"]) for record in records)
        within.update({split: count - 1 for split, count in in_split.items() if count > 1})
        across += len(in_split) > 1
        lines.append(json.dumps({"sha256": digest.hex(), "records": records}) + "\n")
    return Duplicates(within=dict(sorted(within.items())), across=across, dropped=dropped), "".join(lines).encode()


def _read_paths(
    groups: Sequence[Sequence[int]], starts: NDArray[np.int64], paths: Callable[[int, Sequence[int]], Sequence[str]]
) -> dict[int, str]:
    """Returns the path of every member of the groups, by its row in the table."""
    members = np.sort(np.array([at for group in groups for at in group], np.int64))
    shards = np.searchsorted(starts, members, side="right") - 1
    path_by_row: dict[int, str] = {}
    for shard_rows in np.split(members, np.flatnonzero(np.diff(shards)) + 1) if len(members) else ():
        shard = int(np.searchsorted(starts, shard_rows[0], side="right")) - 1
        shard_paths = paths(shard, (shard_rows - starts[shard]).tolist())
        path_by_row.update(zip(shard_rows.tolist(), shard_paths, strict=True))
    return path_by_row


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
