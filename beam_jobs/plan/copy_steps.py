"""The two steps of the planner that find images with equal bytes, so that one of each is kept.

The first reads the images whose size occurs twice, run by run, or all where a dataset may have copies. The second
compares the digests, bucket by bucket.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.list_step import Planning, Resolved
from beam_jobs.plan.scratch import Run
from beam_jobs.plan.split_and_shard import DEFAULT_SPLIT
from beam_jobs.shards.identify import identify_images
from tfpipe.format.digest_groups import DIGEST_BYTES, equal_rows

LeftOut = Counter[tuple[str | None, int]]
"""The number of copies that are left out by split and label, for images whose label is known once they are read."""


def hash_run(planning: Planning, number: int) -> None:
    """Reads the images of a run that may have a copy, and writes their digests in buckets."""
    resolved: Resolved = planning.scratch.load("listed")
    run = resolved.runs[number]
    part = planning.scratch.read_run(run)
    listing = resolved.meaning.make_listing(part.images)
    images = resolved.give_meaning(part.images, planning.config, values=False)
    # The records of finished datasets have the digests.
    reads_all = listing.datasets is not None or bool(planning.config.known_images)
    candidates = np.flatnonzero(resolved.may_have_copy(images) | reads_all)
    identities = sorted(identify_images(listing, candidates, planning.readers))
    rows = np.array([identity.image for identity in identities], np.int64)
    labels = np.array([identity.label for identity in identities], np.int64)
    digests = np.frombuffer(b"".join(identity.sha256 for identity in identities), np.uint8).reshape(-1, DIGEST_BYTES)
    buckets = _choose_buckets(digests, resolved)
    ranks = images.get_paths(rows)
    if listing.keeps_order:
        ranks = planning.scratch.load(f"positions/{run.name}")[rows].tolist()
    codes, splits = images.get_codes("split")
    values = []
    for bucket in range(resolved.num_buckets):
        chosen = np.flatnonzero(buckets == bucket)
        of_chosen = [splits[code] for code in codes[rows[chosen]].tolist()]
        values.append((digests[chosen], rows[chosen], labels[chosen], of_chosen, [ranks[k] for k in chosen.tolist()]))
    planning.scratch.write_buckets(f"digests/{run.name}", values)


def choose_copies(planning: Planning, bucket: int) -> LeftOut:
    """Writes which images of a bucket are left out, by their runs.

    A copy outside of `train` stays if there is one, so that no training image is an evaluation image. Of several such
    copies the first one stays, by path or by the order of finished datasets. None stays of what `known_images` has.
    """
    resolved: Resolved = planning.scratch.load("listed")
    known: NDArray[np.uint8] = planning.scratch.load("known")
    digests = [known[_choose_buckets(known, resolved) == bucket]]
    members: list[tuple[int, str | int, int, int, str | None, int]] = [(-1, "", -1, -1, None, -1)] * len(digests[0])
    for number, run in enumerate(resolved.runs):
        run_digests, rows, labels, splits, ranks = planning.scratch.read_bucket(
            f"digests/{run.name}", bucket, resolved.num_buckets
        )
        digests.append(run_digests)
        for row, label, split, rank in zip(rows.tolist(), labels.tolist(), splits, ranks, strict=True):
            members.append((split == DEFAULT_SPLIT, rank, number, row, split, label))
    dropped: list[list[int]] = [[] for _ in resolved.runs]
    left_out: LeftOut = Counter()
    for group in equal_rows(np.concatenate(digests)):
        for _, _, number, row, split, label in sorted(members[k] for k in group)[1:]:
            dropped[number].append(row)
            left_out[split, label] += 1
    planning.scratch.write_buckets(f"copies/{bucket}", [np.array(rows, np.int64) for rows in dropped])
    return left_out


def _choose_buckets(digests: NDArray[np.uint8], resolved: Resolved) -> NDArray[np.uint32]:
    buckets: NDArray[np.uint32] = np.ascontiguousarray(digests[:, :4]).view("<u4").ravel() % resolved.num_buckets
    return buckets


def save_left_out(planning: Planning, left_out: LeftOut) -> None:
    """Saves how many copies are left out, for the counts of classes."""
    planning.scratch.save("left_out", left_out)


def gather_dropped(planning: Planning, resolved: Resolved, number: int) -> NDArray[np.bool_]:
    """Returns which images of a run are left out, and saves this for `is_dropped`."""
    run = resolved.runs[number]
    dropped = np.zeros(run.num_images, bool)
    for bucket in range(resolved.num_buckets):
        dropped[planning.scratch.read_bucket(f"copies/{bucket}", number, len(resolved.runs))] = True
    planning.scratch.save(f"dropped/{run.name}", np.packbits(dropped))
    return dropped


def is_dropped(planning: Planning, run: Run) -> NDArray[np.bool_]:
    """Returns which images of a run are left out."""
    if not planning.config.drop_duplicates:
        return np.zeros(run.num_images, bool)
    return np.unpackbits(planning.scratch.load(f"dropped/{run.name}"), count=run.num_images).astype(bool)
