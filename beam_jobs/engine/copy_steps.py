"""The two steps of the engine that find images with equal bytes, so that one of each is kept.

The first reads the images whose size occurs twice, run by run. The second compares the digests, bucket by bucket.
"""

import numpy as np
from numpy.typing import NDArray

from beam_jobs.engine.list_step import EngineConfig, Resolved
from beam_jobs.engine.scratch import Run
from beam_jobs.plan.split_and_shard import DEFAULT_SPLIT
from beam_jobs.shards.duplicates import hash_files
from tfpipe.format.digest_groups import equal_rows

_DIGEST_BYTES = 32


def hash_run(engine: EngineConfig, number: int) -> None:
    """Reads the images of a run that may have a copy, and writes their digests in buckets."""
    resolved: Resolved = engine.scratch.load("listed")
    run = resolved.runs[number]
    images = engine.scratch.read_run(run).images
    listing = resolved.meaning.make_listing(images)
    images = resolved.give_meaning(images, engine.config, values=False)
    candidates = np.flatnonzero(resolved.may_have_copy(images))
    identities = sorted((identity.image, identity.sha256) for identity in hash_files(listing, candidates, workers=0))
    rows = np.array([row for row, _ in identities], np.int64)
    digests = np.frombuffer(b"".join(sha256 for _, sha256 in identities), np.uint8).reshape(-1, _DIGEST_BYTES)
    buckets = np.ascontiguousarray(digests[:, :4]).view("<u4").ravel() % resolved.num_buckets
    codes, splits = images.get_codes("split")
    is_train = np.array([split == DEFAULT_SPLIT for split in splits], bool)[codes[rows]]
    values = []
    for bucket in range(resolved.num_buckets):
        chosen = np.flatnonzero(buckets == bucket)
        values.append((digests[chosen], rows[chosen], is_train[chosen], images.get_paths(rows[chosen])))
    engine.scratch.write_buckets(f"digests/{run.name}", values)


def choose_copies(engine: EngineConfig, bucket: int) -> None:
    """Writes which images of a bucket are left out, by their runs. See `drop_duplicates` for the choice."""
    resolved: Resolved = engine.scratch.load("listed")
    digests = [np.zeros((0, _DIGEST_BYTES), np.uint8)]
    members: list[tuple[bool, str, int, int]] = []
    for number, run in enumerate(resolved.runs):
        run_digests, rows, is_train, paths = engine.scratch.read_bucket(
            f"digests/{run.name}", bucket, resolved.num_buckets
        )
        digests.append(run_digests)
        members += zip(is_train.tolist(), paths, [number] * len(paths), rows.tolist(), strict=True)
    dropped: list[list[int]] = [[] for _ in resolved.runs]
    for group in equal_rows(np.concatenate(digests)):
        for _, _, number, row in sorted(members[k] for k in group)[1:]:
            dropped[number].append(row)
    engine.scratch.write_buckets(f"copies/{bucket}", [np.array(rows, np.int64) for rows in dropped])


def gather_dropped(engine: EngineConfig, resolved: Resolved, number: int) -> NDArray[np.bool_]:
    """Returns which images of a run are left out, and saves this for `is_dropped`."""
    run = resolved.runs[number]
    dropped = np.zeros(run.num_images, bool)
    for bucket in range(resolved.num_buckets):
        dropped[engine.scratch.read_bucket(f"copies/{bucket}", number, len(resolved.runs))] = True
    engine.scratch.save(f"dropped/{run.name}", np.packbits(dropped))
    return dropped


def is_dropped(engine: EngineConfig, run: Run) -> NDArray[np.bool_]:
    """Returns which images of a run are left out."""
    if not engine.config.drop_duplicates:
        return np.zeros(run.num_images, bool)
    return np.unpackbits(engine.scratch.load(f"dropped/{run.name}"), count=run.num_images).astype(bool)
