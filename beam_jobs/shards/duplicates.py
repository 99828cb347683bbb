"""Images whose source bytes are equal: found after writing by their digests, or before it to leave copies out."""

import contextlib
import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from beam_jobs.inputs.archive import is_compressed_tar, open_unpacked
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import ImageRef
from beam_jobs.plan.image_table import ImageTable
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.merge_manifests import Source
from beam_jobs.plan.split_and_shard import DEFAULT_SPLIT
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.dataset_records import identify
from beam_jobs.shards.record_source import open_source
from beam_jobs.shards.work_dir import PlanHeader, WorkDir, WrittenShard
from beam_jobs.storage import filesystem
from tfpipe.errors import DataError
from tfpipe.format.digest_groups import equal_rows, list_duplicates
from tfpipe.format.manifest import Duplicates
from tfpipe.images.errors import BadImage

_DIGEST_BYTES = 32
_HASHED_AT_ONCE = 64

_Identity = tuple[int, bytes, int]  # an image, its digest, and its label where that is known only now, or -1


def find_duplicates(work: WorkDir, header: PlanHeader, rows: Sequence[WrittenShard]) -> tuple[Duplicates, bytes]:
    """Compares the digests of all records: about 70 bytes of memory for each, and the path of each duplicate.

    Returns:
        As `list_duplicates`.
    """
    digests = bytearray()
    for row in rows:
        digests += filesystem.read_bytes(work.digests_path(row.file))
    table = np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES)

    source = open_source(header)

    def list_paths(shard: int, records: Sequence[int]) -> list[str]:
        names = source.list_names(work, header.shards[shard], rows[shard])
        return [names[record] for record in records]

    shards = [(slot.split, row.records) for slot, row in zip(header.shards, rows, strict=True)]
    return list_duplicates(table, shards, list_paths, header.dropped)


def drop_duplicates(listing: Listing, workers: int) -> Listing:
    """Leaves out all but one of the images with equal bytes.

    The copy that stays is one outside of `train` where there is one, so that no training image is an evaluation
    image; then the first by path, or by the order of finished datasets. Only files of equal size are read, which costs
    their reading once more; of finished datasets every record, since it tells the digest.

    Raises:
        DataError: A split is left without an image.
    """
    table, united = listing.images, listing.united
    images, digests, labels = array("q"), bytearray(), array("q")
    hashed = (
        _hash_all(listing, _find_equal_sizes(table), workers) if united is None else _identify_all(listing, workers)
    )
    for i, digest, label in hashed:
        images.append(i)
        digests += digest
        labels.append(label)
    dropped: set[int] = set()
    left_out: list[tuple[str, int]] = []
    for group in equal_rows(np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES)):
        indices = [images[at] for at in group]
        # Least of all: the copy that stays.
        ranked = [
            (ref.split == DEFAULT_SPLIT, "" if united else ref.path, i, ref.split, labels[at])
            for at, i, ref in zip(group, indices, table.iterate(np.array(indices, np.int64)), strict=True)
        ]
        for _, _, i, split, label in sorted(ranked)[1:]:
            dropped.add(i)
            left_out.append((split, label))
    remaining = table.take(np.setdiff1d(np.arange(len(table)), list(dropped)))
    for split in sorted(set(map(str, table.count_values("split"))) - set(map(str, remaining.count_values("split")))):
        raise DataError(f"Split {split!r} holds nothing but copies of images in other splits.")
    if united is not None:
        united = united.without(left_out)
    return replace(listing, images=remaining, dropped=len(dropped), united=united)


def _find_equal_sizes(images: ImageTable) -> NDArray[np.int64]:
    """Returns the indices of the images whose size another image has too."""
    _, which, counts = np.unique(images.sizes, return_inverse=True, return_counts=True)
    return np.flatnonzero(counts[which] > 1)


def _hash_all(listing: Listing, candidates: NDArray[np.int64], workers: int) -> Iterator[_Identity]:
    """SHA-256 of each candidate that can be read."""
    direct = array("q")
    # By archive, then by place in it: one pass over each, and a link in a tar shares the place of its target.
    streamed: dict[str, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, ref in zip(candidates.tolist(), listing.images.iterate(candidates), strict=True):
        if is_compressed_tar(ref.location.file):
            streamed[ref.location.file][ref.location.offset, ref.size].append(i)
        else:
            direct.append(i)
    for location, places in streamed.items():
        with open_unpacked(filesystem.join(listing.root, location)) as tar:
            for (offset, size), same in sorted(places.items()):
                tar.seek(offset)
                digest = hashlib.sha256(tar.read(size)).digest()
                yield from ((i, digest, -1) for i in same)
    set_up = partial(filesystem.configure, filesystem.configured())
    for hashed in map_unordered(_hash_batch, _batches(listing, direct), workers, shared=(listing.root,), set_up=set_up):
        yield from hashed


def _identify_all(listing: Listing, workers: int) -> Iterator[_Identity]:
    """Of each record that can be read, in the order of the files."""
    assert listing.united is not None
    shared, set_up = (listing.united.records.sources,), partial(filesystem.configure, filesystem.configured())
    batches = _batches(listing, range(len(listing.images)))
    for found in map_unordered(_identify_batch, batches, workers, shared=shared, set_up=set_up):
        yield from found


def _batches(listing: Listing, images: Sequence[int]) -> Iterator[list[tuple[int, ImageRef]]]:
    for at in range(0, len(images), _HASHED_AT_ONCE):
        batch = images[at : at + _HASHED_AT_ONCE]
        yield list(zip(batch, listing.images.iterate(np.array(batch, np.int64)), strict=True))


def _hash_batch(root: str, batch: Sequence[tuple[int, ImageRef]]) -> list[_Identity]:
    hashed = []
    for i, ref in batch:
        with contextlib.suppress(UnreadableError):  # it will be quarantined, with the reason
            hashed.append((i, hashlib.sha256(read_image(root, ref)).digest(), -1))
    return hashed


def _identify_batch(sources: Mapping[str, Source], batch: Sequence[tuple[int, ImageRef]]) -> list[_Identity]:
    found = []
    for i, ref in batch:
        with contextlib.suppress(UnreadableError, BadImage):
            found.append((i, *identify(sources, ref)))
    return found
