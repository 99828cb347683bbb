"""Finds images with equal original files before any is written, so that one of each is kept."""

import contextlib
import hashlib
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig, TableColumns
from beam_jobs.inputs.parquet_images import list_cells, read_cells
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import ImageRef, list_files
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.merge_manifests import InputDatasets
from beam_jobs.plan.plan import DEFAULT_SPLIT, LeftOut
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.dataset_records import identify
from tfpipe.dataset.history import load_history
from tfpipe.format.digest_groups import DIGEST_BYTES, equal_rows
from tfpipe.images.errors import BadImage
from tfpipe.writer.record_info import read_digests

_HASHED_AT_ONCE = 64


_Identity = tuple[int, bytes, int]
"""The index of an image in the listing, the SHA-256 of its original file, and its label, or -1 for a label not read."""


def find_copies(listing: Listing, config: ShardConfig, readers: int) -> tuple[NDArray[np.bool_], LeftOut]:
    """Returns whether each image is left out as a copy, and how many are left out of each split and label.

    Of equal images one stays: one outside of `train` if there is one, so that no training image is an evaluation image,
    and the first of these by path, or by the order of finished datasets. None stays if `known_images` has the image.

    An image file is read only if another image has its size, or if `known_images` is given.
    """
    images = listing.images
    known = np.zeros((0, DIGEST_BYTES), np.uint8)
    if config.known_images:
        known = read_digests(load_history(config.known_images).load(with_columns=False))
    candidates = np.ones(len(images), bool)
    if listing.datasets is None and not config.known_images:  # the records of finished datasets have the digests
        _, inverse, counts = np.unique(images.get_numbers("size"), return_inverse=True, return_counts=True)
        candidates = (counts[inverse] > 1) | images.in_row_groups
    chosen = np.flatnonzero(candidates)
    cuts = np.split(chosen, range(_HASHED_AT_ONCE, len(chosen), _HASHED_AT_ONCE))
    batches = (list(zip(rows.tolist(), images.iterate(rows), strict=True)) for rows in cuts)
    if listing.datasets is None:
        found = map_unordered(_hash_batch, batches, readers, shared=(listing.root, config.columns))
    else:
        found = map_unordered(_identify_batch, batches, readers, shared=(listing.datasets,))
    identities = sorted(chain.from_iterable(found))
    rows = np.array([index for index, _, _ in identities], np.int64)
    digests = np.frombuffer(b"".join(sha256 for _, sha256, _ in identities), np.uint8).reshape(-1, DIGEST_BYTES)
    groups = equal_rows(np.concatenate([known, digests]))
    members = np.array([k - len(known) for group in groups for k in group if k >= len(known)], np.int64)
    paths = dict(zip(members.tolist(), images.get_paths(rows[members]), strict=True))
    codes, splits = images.get_codes("split")
    of_split = [splits[code] for code in codes[rows].tolist()]

    def rank(k: int) -> tuple[bool, str, int]:
        return of_split[k] == DEFAULT_SPLIT, "" if listing.merged is not None else paths[k], k

    copies, left_out = np.zeros(len(images), bool), LeftOut()
    for group in groups:
        ranked = sorted((k - len(known) for k in group if k >= len(known)), key=rank)
        for k in ranked[1:] if len(ranked) == len(group) else ranked:
            copies[rows[k]] = True
            left_out[of_split[k], identities[k][2]] += 1
    return copies, left_out


_Batch = Sequence[tuple[int, ImageRef]]
"""Some images, each with its index."""


def _hash_batch(root: str, columns: TableColumns, batch: _Batch) -> list[_Identity]:
    in_rows = [(index, image) for index, image in batch if image.location.row_group >= 0]
    found = read_cells(root, columns, list_cells([image for _, image in in_rows]))
    identities = [
        (in_rows[k][0], hashlib.sha256(data).digest(), -1) for k, data in found if not isinstance(data, UnreadableError)
    ]
    for index, image in batch:
        if image.location.row_group >= 0:
            continue
        with contextlib.suppress(UnreadableError):  # it will be quarantined, with the reason
            digests = [hashlib.sha256(read_image(root, file)).digest() for file in list_files(image)]
            digest = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
            identities.append((index, digest, -1))
    return identities


def _identify_batch(datasets: InputDatasets, batch: _Batch) -> list[_Identity]:
    identities = []
    for index, record in batch:
        with contextlib.suppress(UnreadableError, BadImage):
            identities.append((index, *identify(datasets, record)))
    return identities
