"""Finds images with equal bytes, so that one of each is kept."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.listing import Listing
from beam_jobs.plan.split_and_shard import DEFAULT_SPLIT, LeftOut
from beam_jobs.shards.identify import identify_images
from tfpipe.dataset.history import load_history
from tfpipe.format.digest_groups import DIGEST_BYTES, equal_rows
from tfpipe.writer.record_facts import read_digests


def find_copies(listing: Listing, known_images: str, readers: int) -> tuple[NDArray[np.bool_], LeftOut]:
    """Returns which images are left out, and how many of each split and label.

    A copy outside of `train` stays if there is one, so that no training image is an evaluation image. Of several such
    copies the first one stays, by path or by the order of finished datasets. None stays of what `known_images` has.

    Only images that may have a copy are read: one of their size, or one in the dataset `known_images`.
    """
    images = listing.images
    known = np.zeros((0, DIGEST_BYTES), np.uint8)
    if known_images:
        known = read_digests(load_history(known_images).load(with_columns=False))
    candidates = np.ones(len(images), bool)
    if listing.datasets is None and not known_images:  # the records of finished datasets have the digests
        _, inverse, counts = np.unique(images.sizes, return_inverse=True, return_counts=True)
        candidates = (counts[inverse] > 1) | images.in_row_groups
    identities = sorted(identify_images(listing, np.flatnonzero(candidates), readers))
    rows = np.array([identity.image for identity in identities], np.int64)
    digests = np.frombuffer(b"".join(identity.sha256 for identity in identities), np.uint8).reshape(-1, DIGEST_BYTES)
    groups = equal_rows(np.concatenate([known, digests]))
    members = np.array([k - len(known) for group in groups for k in group if k >= len(known)], np.int64)
    paths = dict(zip(members.tolist(), images.get_paths(rows[members]), strict=True))
    codes, splits = images.get_codes("split")
    of_split = [splits[code] for code in codes[rows].tolist()]

    def rank(k: int) -> tuple[bool, str, int]:
        return of_split[k] == DEFAULT_SPLIT, "" if listing.keeps_order else paths[k], k

    copies, left_out = np.zeros(len(images), bool), Counter[tuple[str | None, int]]()
    for group in groups:
        found = sorted((k - len(known) for k in group if k >= len(known)), key=rank)
        for k in found[1:] if len(found) == len(group) else found:
            copies[rows[k]] = True
            left_out[of_split[k], identities[k].label] += 1
    return copies, left_out
