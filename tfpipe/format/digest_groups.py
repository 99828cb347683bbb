"""Records whose digests are equal: which they are, how many, and the file that lists them."""

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
      table: The SHA-256 of each source image, in the order of the shards: uint8 of shape [records, 32].
      shards: Split and number of records of each shard; those of one split stand together.
      paths: Gives the paths of images of one shard, by its position and theirs in there, in order. Called once for a
        shard that has duplicates, with these: what is held grows with the duplicates, not with the images.
      dropped: Images that were left out before.

    Returns:
      The counts, and one JSON line per image that occurs more than once: `sha256` and its `records`, each with
      `split`, `index` in the split and `path`.
    """
    starts = np.cumsum([0, *(records for _, records in shards)])[:-1]
    first_of_split: dict[str, int] = {}
    for (split, _), start in zip(shards, starts, strict=True):
        first_of_split.setdefault(split, int(start))
    within: Counter[str] = Counter()
    across, lines = 0, []
    groups = equal_rows(table)
    path = _paths_of(groups, starts, paths)
    for group in groups:
        records = []
        for at in group:
            shard = int(np.searchsorted(starts, at, side="right")) - 1  # the last to begin at or before it
            split = shards[shard][0]
            one = {"split": split, "index": at - first_of_split[split], "path": path[at]}
            records.append(one)
        in_split = Counter(str(record["split"]) for record in records)
        within.update({split: count - 1 for split, count in in_split.items() if count > 1})
        across += len(in_split) > 1
        lines.append(json.dumps({"sha256": table[group[0]].tobytes().hex(), "records": records}) + "\n")
    found = Duplicates(within=dict(sorted(within.items())), across=across, dropped=dropped)
    return found, "".join(lines).encode()


def _paths_of(
    groups: Sequence[Sequence[int]], starts: NDArray[np.int64], paths: Callable[[int, Sequence[int]], Sequence[str]]
) -> dict[int, str]:
    """The path of every member of the groups."""
    wanted = np.sort(np.array([at for group in groups for at in group], np.int64))
    shards = np.searchsorted(starts, wanted, side="right") - 1
    found: dict[int, str] = {}
    for mine in np.split(wanted, np.flatnonzero(np.diff(shards)) + 1) if len(wanted) else ():
        shard = int(np.searchsorted(starts, mine[0], side="right")) - 1
        found.update(zip(mine.tolist(), paths(shard, (mine - starts[shard]).tolist()), strict=True))
    return found


def equal_rows(table: NDArray[np.uint8]) -> list[list[int]]:
    """Groups of equal rows, at least 8 bytes each, by their first member.

    Sorted by 8 bytes of each, then compared whole: 16 bytes of memory a row, and a second for 5 million.
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
