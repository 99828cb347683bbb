"""The last step of the planner: each task sorts the images of some shards and writes their lines of the plan."""

from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from beam_jobs.inputs.folder import explain_equal_paths
from beam_jobs.plan.copy_steps import is_dropped
from beam_jobs.plan.count_step import BIN_BITS, Cuts
from beam_jobs.plan.image_ref import encode_line
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder
from beam_jobs.plan.list_step import Planning, Resolved
from beam_jobs.plan.plan import WrittenLines, collect, write_lines
from beam_jobs.plan.scratch import HASH_BITS
from beam_jobs.plan.split_and_shard import ShardRange, sort_by_hash
from beam_jobs.shards.work_dir import get_part_name
from tfpipe.errors import DataError

CutParts = tuple[tuple[int, tuple[WrittenLines, ...]], ...]
"""The number of each part of the plan that some tasks wrote, with the lines of its shards."""


def cut_part(planning: Planning, number: int) -> CutParts:
    """Writes the lines of the shards in one part of the plan.

    Raises:
        DataError: Two images of one path lie in different places.
    """
    resolved: Resolved = planning.scratch.load("listed")
    cuts: Cuts = planning.scratch.load("counted")
    begin, end = cuts.parts[number]
    shards = cuts.shards[begin:end]
    written: list[WrittenLines] = []
    with planning.scratch.create(get_part_name(number)) as out:
        for split in dict.fromkeys(shard.split for shard in shards):
            split_shards = [shard for shard in shards if shard.split == split]
            images, position = _read_sorted(planning, resolved, cuts, split_shards)
            for shard in split_shards:
                rows = np.arange(shard.begin, shard.end) - position
                lines = map(encode_line, images.iterate_planned(rows, resolved.meaning.listing.label_names))
                place = written[-1].shard.end if written else 0
                written.append(write_lines(out, number, place, shard, lines, int(images.sizes[rows].sum())))
    return ((number, tuple(written)),)


def _read_sorted(
    planning: Planning, resolved: Resolved, cuts: Cuts, shards: list[ShardRange]
) -> tuple[ImageTable, int]:
    """Returns the images of consecutive shards of one split in their order, and some around them.

    Returns:
        The images, and the position of the first of them in the plan.
    """
    split = resolved.splits.index(shards[0].split)
    ends, first = cuts.ends[split], cuts.first[split]
    first_bin = int(np.searchsorted(ends, shards[0].begin - first, side="right")) - 1
    last_bin = int(np.searchsorted(ends, shards[-1].end - first, side="left"))
    first_hash, last_hash = (bin_number << (HASH_BITS - BIN_BITS) for bin_number in (first_bin, last_bin))
    builder, hashes = ImageTableBuilder(), [np.zeros(0, np.uint64)]
    for run, part in zip(resolved.runs, planning.scratch.read_runs(resolved.runs, first_hash, last_hash), strict=True):
        dropped = is_dropped(planning, run)[part.first : part.first + len(part.hashes)]
        rows = np.flatnonzero(
            (part.hashes >= np.uint64(first_hash)) & (part.hashes <= np.uint64(last_hash - 1)) & ~dropped
        )
        images = resolved.give_meaning(part.images.take(rows), planning.config)
        codes, names = images.get_codes("split")
        chosen = np.flatnonzero(np.array([name == shards[0].split for name in names], bool)[codes])
        builder.extend(images.take(chosen))
        hashes.append(part.hashes[rows[chosen]])
    images, all_hashes = builder.finish(), np.concatenate(hashes)
    order = sort_by_hash(images, all_hashes, np.arange(len(images)))
    images = images.take(order)
    if resolved.meaning.splits is not None:  # the paths of a tree; a table may name an image twice
        _check_equal_paths(images, all_hashes[order], planning.config.input)
    return images, first + int(ends[first_bin])


def _check_equal_paths(images: ImageTable, hashes: NDArray[np.uint64], source: str) -> None:
    """Checks that no path names two images. Two of one archive were made one when it was listed."""
    for row in np.flatnonzero(hashes[1:] == hashes[:-1]).tolist():
        first, second = images.iterate(np.array([row, row + 1]))
        if first.path == second.path:
            raise DataError(explain_equal_paths(source, first.path, [first.location.file, second.location.file]))


def finish_plan(planning: Planning, cut_parts: CutParts) -> None:
    """Saves the whole plan but its lines."""
    cuts: Cuts = planning.scratch.load("counted")
    written = [lines for _, of_part in sorted(cut_parts, key=itemgetter(0)) for lines in of_part]
    planning.scratch.save("cut", collect(cuts.listing, written, cuts.class_counts, planning.scratch))
