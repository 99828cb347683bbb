"""Images whose source bytes are equal: found after writing by their digests, or before it to leave copies out."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from beam_jobs import files
from beam_jobs.archives import is_compressed_tar, open_unpacked
from beam_jobs.fetch import UnreadableError, fetch
from beam_jobs.plan import DEFAULT_SPLIT, Listing
from beam_jobs.pool import map_unordered
from beam_jobs.refs import ImageRef
from beam_jobs.work import PlanHeader, Row, ShardSlot, Work
from tfpipe.errors import DataError
from tfpipe.format.manifest import Duplicates

_DIGEST_BYTES = 32
_HASHED_AT_ONCE = 64


def find_duplicates(work: Work, header: PlanHeader, rows: Sequence[Row]) -> tuple[Duplicates, bytes]:
    """Compares the digests of all records: about 50 bytes of memory for each.

    Returns:
        The counts, and one JSON line per image that occurs more than once: `sha256` and its `records`, each with
        `split`, `index` in the split and `path`.
    """
    digests = bytearray()
    for row in rows:
        digests += files.read_bytes(work.digests_path(row.file))
    table = np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES)
    starts = np.cumsum([0, *(row.records for row in rows)])[:-1]
    first_of_split: dict[str, int] = {}
    for slot, start in zip(header.shards, starts, strict=True):
        first_of_split.setdefault(slot.split, int(start))

    @cache
    def paths(shard: int) -> list[str]:
        return _written_paths(work, header.shards[shard], rows[shard])

    within: Counter[str] = Counter()
    across, lines = 0, []
    for group in _equal_rows(table):
        records = []
        for at in group:
            shard = int(np.searchsorted(starts, at, side="right")) - 1  # the last to begin at or before it
            split = header.shards[shard].split
            path = paths(shard)[at - int(starts[shard])]
            records.append({"split": split, "index": at - first_of_split[split], "path": path})
        in_split = Counter(str(record["split"]) for record in records)
        within.update({split: count - 1 for split, count in in_split.items() if count > 1})
        across += len(in_split) > 1
        lines.append(json.dumps({"sha256": table[group[0]].tobytes().hex(), "records": records}) + "\n")
    found = Duplicates(within=dict(sorted(within.items())), across=across, dropped=header.dropped)
    return found, "".join(lines).encode()


def _equal_rows(table: NDArray[np.uint8]) -> list[list[int]]:
    """Groups of equal rows, by their first member; sorted by 8 bytes of each, then compared whole."""
    if not len(table):
        return []
    prefix = np.ascontiguousarray(table[:, :8]).view(np.uint64).ravel()
    order = np.argsort(prefix, kind="stable")
    same = prefix[order][1:] == prefix[order][:-1]
    groups: dict[bytes, list[int]] = defaultdict(list)
    for at in order[np.append(False, same) | np.append(same, False)]:
        groups[table[at].tobytes()].append(int(at))
    return sorted(group for group in groups.values() if len(group) > 1)


def _written_paths(work: Work, slot: ShardSlot, row: Row) -> list[str]:
    """The paths of a shard's records: those planned, less those quarantined, which come in the same order."""
    bad = iter([*(line["path"] for line in row.quarantined), None])
    paths, skipped = [], next(bad)
    for image in work.images(slot):
        if image.path == skipped:
            skipped = next(bad)
        else:
            paths.append(image.path)
    return paths


def drop_duplicates(listing: Listing, workers: int) -> Listing:
    """Leaves out all but one of the images with equal bytes.

    The copy that stays is one outside of `train` where there is one, so that no training image is an evaluation
    image; then the first by path. Only files of equal size are read, which costs their reading once more.

    Raises:
        DataError: A split is left without an image.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    for i, ref in enumerate(listing.refs):
        by_size[ref.size].append(i)
    candidates = [i for same in by_size.values() if len(same) > 1 for i in same]
    by_digest: dict[bytes, list[int]] = defaultdict(list)
    for i, digest in _hash_all(listing, candidates, workers):
        by_digest[digest].append(i)
    refs = listing.refs
    dropped: set[int] = set()
    for same in by_digest.values():
        kept = min(same, key=lambda i: (refs[i].split == DEFAULT_SPLIT, refs[i].path, i))
        dropped.update(i for i in same if i != kept)
    left = [ref for i, ref in enumerate(refs) if i not in dropped]
    for split in sorted({ref.split for ref in refs} - {ref.split for ref in left}):
        raise DataError(f"Split {split!r} holds nothing but copies of images in other splits.")
    return replace(listing, refs=left, dropped=len(dropped))


def _hash_all(listing: Listing, candidates: Sequence[int], workers: int) -> Iterator[tuple[int, bytes]]:
    """SHA-256 of each candidate that can be read."""
    direct = [i for i in candidates if not is_compressed_tar(listing.refs[i].location)]
    # By archive, then by place in it: one pass over each, and a link in a tar shares the place of its target.
    streamed: dict[str, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for i in sorted(set(candidates).difference(direct)):
        ref = listing.refs[i]
        streamed[ref.location][ref.offset, ref.size].append(i)
    for location, places in streamed.items():
        with open_unpacked(files.join(listing.root, location)) as tar:
            for (offset, size), same in sorted(places.items()):
                tar.seek(offset)
                digest = hashlib.sha256(tar.read(size)).digest()
                yield from ((i, digest) for i in same)
    batches = [
        [(i, listing.refs[i]) for i in direct[at : at + _HASHED_AT_ONCE]]
        for at in range(0, len(direct), _HASHED_AT_ONCE)
    ]
    for hashed in map_unordered(_hash_batch, batches, workers, shared=(listing.root,)):
        yield from hashed


def _hash_batch(root: str, batch: Sequence[tuple[int, ImageRef]]) -> list[tuple[int, bytes]]:
    hashed = []
    for i, ref in batch:
        try:
            hashed.append((i, hashlib.sha256(fetch(root, ref)).digest()))
        except UnreadableError:  # it will be quarantined, with the reason
            continue
    return hashed
