"""The search for images with equal bytes by tasks that know nothing of each other, each with a part of all digests.

```
OUTPUT/.tfpipe/search/
  rows                      the written shards, for the end of the job
  digests/NAME              the digests of a shard's records, in buckets by their first bytes
  groups/3                  the groups of equal digests of bucket 3
```

Equal digests fall into one bucket, so a task finds whole groups. It takes about 70 bytes of memory for each of its
records. The end of the job joins the groups, which are only the duplicates.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from beam_jobs.engine.scratch import Scratch
from beam_jobs.shards.record_source import open_source
from beam_jobs.shards.work_dir import PlanHeader, WorkDir, WrittenShard
from beam_jobs.storage import filesystem
from tfpipe.format.digest_groups import equal_rows, list_groups
from tfpipe.format.manifest import Duplicates

_DIGEST_BYTES = 32
_RECORDS_PER_TASK = 2_000_000

Group = tuple[bytes, list[tuple[int, int]]]
"""A digest, and the shard and the number in it of each record that has it, in order."""


def count_search_tasks(num_images: int) -> int:
    """Returns the number of tasks that search for duplicates; 0 if one process does it as well."""
    tasks = math.ceil(num_images / _RECORDS_PER_TASK)
    return tasks if tasks > 1 else 0


def get_scratch(work: WorkDir) -> Scratch:
    """Returns the folder of the search."""
    return Scratch(work.path("search"))


def save_buckets(work: WorkDir, file: str, tasks: int) -> None:
    """Writes the digests of a written shard in buckets, one for each task."""
    path = work.digests_path(file)
    if not filesystem.exists(path):  # a shard of a complete dataset, of which nothing is searched
        return
    table = np.frombuffer(filesystem.read_bytes(path), np.uint8).reshape(-1, _DIGEST_BYTES)
    buckets = np.ascontiguousarray(table[:, :4]).view("<u4").ravel() % tasks
    rows = [np.flatnonzero(buckets == bucket) for bucket in range(tasks)]
    get_scratch(work).write_buckets(f"digests/{file}", [(numbers, table[numbers]) for numbers in rows])


def search_bucket(work: WorkDir, header: PlanHeader, bucket: int, tasks: int) -> None:
    """Finds the groups of equal digests of a bucket, and saves them."""
    if work.find_manifest(header) is not None:
        return
    scratch = get_scratch(work)
    shards: list[NDArray[np.int64]] = []
    numbers: list[NDArray[np.int64]] = []
    tables = [np.zeros((0, _DIGEST_BYTES), np.uint8)]
    for position, shard in enumerate(header.shards):
        own_numbers, table = scratch.read_bucket(f"digests/{shard.file}", bucket, tasks)
        shards.append(np.full(len(own_numbers), position))
        numbers.append(own_numbers)
        tables.append(table)
    table, shard_of, number_of = np.concatenate(tables), np.concatenate(shards), np.concatenate(numbers)
    groups: list[Group] = [
        (table[rows[0]].tobytes(), [(int(shard_of[row]), int(number_of[row])) for row in rows])
        for rows in equal_rows(table)
    ]
    scratch.save(f"groups/{bucket}", groups)


def gather_duplicates(
    work: WorkDir, header: PlanHeader, shards: Sequence[WrittenShard], search_tasks: int
) -> tuple[Duplicates, bytes]:
    """Joins what the tasks have found; the result is that of `find_duplicates`.

    Args:
        work: The dataset directory under construction.
        header: The header of its plan.
        shards: All shards, in the order of the plan.
        search_tasks: The number of tasks.
    """
    starts = np.cumsum([0, *(shard.records for shard in shards)]).tolist()
    scratch, groups = get_scratch(work), []
    for bucket in range(search_tasks):
        for digest, members in scratch.load(f"groups/{bucket}"):
            groups.append((digest, [starts[shard] + number for shard, number in members]))
    groups.sort(key=lambda group: group[1][0])
    source = open_source(header)

    def list_paths(shard_index: int, records: Sequence[int]) -> list[str]:
        names = source.list_names(work, header.shards[shard_index], shards[shard_index])
        return [names[record] for record in records]

    split_sizes = [(planned.split, shard.records) for planned, shard in zip(header.shards, shards, strict=True)]
    return list_groups(groups, split_sizes, list_paths, header.dropped)
