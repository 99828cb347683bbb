"""The lists beside the shards, `quarantined.jsonl` and `duplicates.jsonl`, in parts if they are large.

Tasks search for duplicates and read their paths, see `search_steps`. The process that finishes the dataset writes the
lines of both lists. Those of the duplicates are put together piece by piece, so that their number takes no memory:

```
OUTPUT/.tfpipe/end/
  cuts                      `Cuts`: which shards' lines each piece has
```
"""

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from beam_jobs.plan.split_and_shard import cut_parts
from beam_jobs.plan.step import Step, do_nothing
from beam_jobs.shards.search_steps import (
    Found,
    OpenJob,
    count_buckets,
    encode_piece,
    find_paths,
    load_rows,
    load_sizes,
    search_bucket,
)
from beam_jobs.shards.work_dir import WorkDir
from tfpipe.format import file_names
from tfpipe.format.digest_groups import GroupCounts
from tfpipe.format.manifest import Duplicates
from tfpipe.storage import file_io
from tfpipe.writer.written_shard import WrittenShard

_READS_AT_ONCE, _SHARDS_AT_ONCE = 16, 256


@dataclass(frozen=True)
class Cuts:
    """The pieces in which the list of duplicates is put together. A line belongs to the shard of its first record.

    Attributes:
        shards: The shards of each piece.
        counts: The counts of the duplicates.
    """

    shards: tuple[range, ...] = ()
    counts: GroupCounts = field(default_factory=GroupCounts)


def list_end_steps() -> list[Step[OpenJob]]:
    """Returns the steps at the end of a job whose shards are written, in their order."""
    return [
        Step("Search duplicates", count_buckets, search_bucket, save_cuts),
        Step("Find paths", count_buckets, _find_paths, do_nothing),
    ]


def save_cuts(job: OpenJob, found: Found | None) -> None:
    """Saves which shards' lines each piece of the list of duplicates has. Of a complete dataset no list is written."""
    cuts = Cuts()
    if found is not None and not load_sizes(job).is_complete:
        cuts = Cuts(tuple(cut_parts(found.members.tolist())), found.counts)
    job.scratch.save("cuts", cuts)


def _find_paths(job: OpenJob, task: int) -> None:
    cuts: Cuts = job.scratch.load("cuts")
    find_paths(job, task, np.array([piece.stop for piece in cuts.shards], np.int64))


def write_lists(job: OpenJob) -> Duplicates:
    """Writes both lists, and returns the counts of the duplicates."""
    cuts: Cuts = job.scratch.load("cuts")
    pieces = (encode_piece(job, number, len(cuts.shards)) for number in range(len(cuts.shards)))
    write_list(job.work, file_names.QUARANTINE, encode_quarantine(job.work, load_rows(job)))
    write_list(job.work, file_names.DUPLICATES, chain.from_iterable(pieces))
    return cuts.counts.describe(job.header.dropped)


def encode_quarantine(work: WorkDir, shards: Iterable[WrittenShard]) -> Iterator[bytes]:
    """Yields the line about each bad image of some shards. Several are read at once, since a store answers late."""
    files = [shard.info.file for shard in shards if shard.num_left_out]
    with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
        for begin in range(0, len(files), _SHARDS_AT_ONCE):
            for lines in threads.map(work.read_left_out, files[begin : begin + _SHARDS_AT_ONCE]):
                yield from (json.dumps(line).encode() + b"\n" for line in lines)


def write_list(work: WorkDir, name: str, lines: Iterable[bytes]) -> None:
    """Writes a list of lines, in parts if it is large, and removes the parts that a longer list of another run left."""
    num_parts = 0
    for part in file_names.cut_list(lines):
        part_name = file_names.list_part_name(name, num_parts)
        with file_io.create(work.target(part_name), work.temporary(part_name), makes_folders=True) as out:
            out.writelines(part)
        num_parts += 1
    folder, _, base = name.rpartition("/")
    for file in file_io.list_names(work.target(folder) if folder else work.output):
        stale = file_names.parse_list_part(base, file)
        if stale is not None and stale >= num_parts:
            file_io.remove(work.target(folder, file) if folder else work.target(file))
