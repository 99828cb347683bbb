"""Finds records whose digests are equal, counts them, and writes the file that lists them."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tfpipe.format.manifest import Duplicates

DIGEST_BYTES = 32  # of SHA-256


def list_duplicates(
    table: NDArray[np.uint8],
    shards: Sequence[tuple[str, int]],
    read_paths: Callable[[int, list[int]], Iterable[str]],
    dropped: int,
) -> tuple[Duplicates, Iterator[bytes]]:
    """Counts images that occur more than once, and returns a line of JSON for each, ordered by first record.

    `table` is uint8 [records, 32], a SHA-256 per record; each shard is a split and a number of records. `read_paths`
    takes a shard and rows in it, and is called only for shards with duplicates: memory grows with duplicates alone.
    """
    starts = np.cumsum([0, *(records for _, records in shards)])[:-1]
    first_of_split: dict[str, int] = {}
    for (split, _), start in zip(shards, starts.tolist(), strict=True):
        first_of_split.setdefault(split, start)
    groups = equal_rows(table)
    members = np.sort(np.array([at for group in groups for at in group], np.int64))
    of_shards = np.searchsorted(starts, members, side="right") - 1  # the last shard that begins at or before each
    records: dict[int, tuple[str, int, str]] = {}
    for begin, end in pairwise(np.flatnonzero(np.diff(of_shards, prepend=-1, append=-1)).tolist()):
        shard, rows = int(of_shards[begin]), members[begin:end].tolist()
        split, start = shards[shard][0], int(starts[shard])
        for at, path in zip(rows, read_paths(shard, [at - start for at in rows]), strict=True):
            records[at] = split, at - first_of_split[split], path
    within, across = Counter[str](), 0
    for group in groups:
        in_split = Counter(records[at][0] for at in group)
        within.update({split: count - 1 for split, count in in_split.items() if count > 1})
        across += len(in_split) > 1
    lines = (encode_group(table[group[0]].tobytes(), [records[at] for at in group]) for group in groups)
    return Duplicates(within=dict(sorted(within.items())), across=across, dropped=dropped), lines


def encode_group(sha256: bytes, records: Iterable[tuple[str, int, str]]) -> bytes:
    """Encodes a group of equal images as a line of JSON, from each one's split, index in the split and path."""
    objects = [{"split": split, "index": index, "path": path} for split, index, path in records]
    return json.dumps({"sha256": sha256.hex(), "records": objects}).encode() + b"\n"


def equal_rows(table: NDArray[np.uint8]) -> list[list[int]]:
    """Returns the row numbers of each group of equal rows, ordered by first row. A row must have 8 bytes or more."""
    if not len(table):
        return []
    prefix = np.ascontiguousarray(table[:, :8]).view(np.uint64).ravel()
    order = np.argsort(prefix, kind="stable")
    same = prefix[order][1:] == prefix[order][:-1]
    groups: dict[bytes, list[int]] = defaultdict(list)
    for at in order[np.append(False, same) | np.append(same, False)]:
        groups[table[at].tobytes()].append(int(at))
    return sorted(group for group in groups.values() if len(group) > 1)
