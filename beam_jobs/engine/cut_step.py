"""The last step of the engine: each task sorts the images of some shards and writes their lines of the plan."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from beam_jobs.engine.copy_steps import is_dropped
from beam_jobs.engine.count_step import BIN_BITS, Cuts
from beam_jobs.engine.list_step import EngineConfig, Resolved
from beam_jobs.engine.scratch import HASH_BITS
from beam_jobs.inputs.folder import explain_equal_paths
from beam_jobs.plan.image_ref import encode_line
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.split_and_shard import ShardPlan, sort_by_hash
from beam_jobs.shards.plan_file import join_digests
from beam_jobs.shards.plan_on_disk import PlanOnDisk
from beam_jobs.shards.work_dir import PlannedShard, get_part_path
from beam_jobs.storage import filesystem
from tfpipe.errors import DataError

_Written = tuple[PlannedShard, int, bytes]
"""The place of a shard's lines, the bytes of its sources, and the SHA-256 of its lines."""


@dataclass(frozen=True)
class CutParts:
    """The parts of the plan that some tasks wrote. Those of others can be added.

    Attributes:
        parts: The number of each part, with its shards.
    """

    parts: tuple[tuple[int, tuple[_Written, ...]], ...] = ()

    def __add__(self, other: "CutParts") -> "CutParts":
        return CutParts(self.parts + other.parts)


def cut_part(engine: EngineConfig, number: int) -> CutParts:
    """Writes the lines of the shards in one part of the plan.

    Raises:
        DataError: Two images of one path lie in different places.
    """
    resolved: Resolved = engine.scratch.load("listed")
    cuts: Cuts = engine.scratch.load("counted")
    begin, end = cuts.parts[number]
    shards = cuts.shards[begin:end]
    written: list[_Written] = []
    place = 0
    with filesystem.create(get_part_path(engine.scratch.base, number)) as out:
        for split in dict.fromkeys(shard.split for shard in shards):
            split_shards = [shard for shard in shards if shard.split == split]
            images, position = _read_sorted(engine, resolved, cuts, split_shards)
            for shard in split_shards:
                rows = np.asarray(shard.images) - position
                digest, line_begin = hashlib.sha256(), place
                for line in map(encode_line, images.iterate_planned(rows, resolved.meaning.label_names)):
                    digest.update(line)
                    place += out.write(line)
                planned = PlannedShard(split, shard.shard_index, shard.num_shards, len(rows), number, line_begin, place)
                written.append((planned, int(images.sizes[rows].sum()), digest.digest()))
    return CutParts(((number, tuple(written)),))


def _read_sorted(
    engine: EngineConfig, resolved: Resolved, cuts: Cuts, shards: list[ShardPlan]
) -> tuple[ImageTable, int]:
    """Returns the images of consecutive shards of one split in their order, and some around them.

    Returns:
        The images, and the position of the first of them in the plan.
    """
    split = resolved.splits.index(shards[0].split)
    ends, first = cuts.ends[split], cuts.first[split]
    first_bin = int(np.searchsorted(ends, shards[0].images[0] - first, side="right")) - 1
    last_bin = int(np.searchsorted(ends, shards[-1].images[-1] + 1 - first, side="left"))
    first_hash, last_hash = (bin_number << (HASH_BITS - BIN_BITS) for bin_number in (first_bin, last_bin))
    builder, hashes = ImageTableBuilder(), [np.zeros(0, np.uint64)]
    for run, part in zip(resolved.runs, engine.scratch.read_runs(resolved.runs, first_hash, last_hash), strict=True):
        dropped = is_dropped(engine, run)[part.first : part.first + len(part.hashes)]
        rows = np.flatnonzero(
            (part.hashes >= np.uint64(first_hash)) & (part.hashes <= np.uint64(last_hash - 1)) & ~dropped
        )
        images = resolved.give_meaning(part.images.take(rows), engine.config)
        codes, names = images.get_codes("split")
        chosen = np.flatnonzero(np.array([name == shards[0].split for name in names], bool)[codes])
        builder.extend(images.take(chosen))
        hashes.append(part.hashes[rows[chosen]])
    images, all_hashes = builder.finish(), np.concatenate(hashes)
    order = sort_by_hash(images, all_hashes, np.arange(len(images)))
    images = images.take(order)
    if resolved.meaning.splits is not None:  # the paths of a tree; a table may name an image twice
        _check_equal_paths(images, all_hashes[order], engine.config.input)
    return images, first + int(ends[first_bin])


def _check_equal_paths(images: ImageTable, hashes: NDArray[np.uint64], source: str) -> None:
    """Checks that no path names two images. Two of one archive were made one when it was listed.

    Raises:
        DataError: Two images of one path lie in different places.
    """
    for row in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        first, second = images.iterate(np.array([row, row + 1]))
        if first.path == second.path:
            raise DataError(explain_equal_paths(source, first.path, [first.location.file, second.location.file]))


def finish_plan(engine: EngineConfig, cut_parts: CutParts) -> None:
    """Saves the whole plan but its lines."""
    resolved: Resolved = engine.scratch.load("listed")
    cuts: Cuts = engine.scratch.load("counted")
    written = [shard for _, shards in sorted(cut_parts.parts) for shard in shards]
    listing = resolved.meaning.make_listing(ImageTable.make_empty(cuts.details))
    plan = PlanOnDisk(
        listing=replace(listing, dropped=cuts.dropped),
        shards=tuple(
            replace(shard, bytes=num_bytes) for shard, (_, num_bytes, _) in zip(cuts.shards, written, strict=True)
        ),
        class_counts=cuts.class_counts,
        base=engine.scratch.base,
        planned=tuple(planned for planned, _, _ in written),
        digest=join_digests(digest for _, _, digest in written),
    )
    engine.scratch.save("cut", plan)
