"""The end of a large job by tasks that know nothing of each other: equal images are found, and classes are counted.

```
OUTPUT/.tfpipe/search/
  rows                      the written shards, for the end of the job
  digests/NAME              the digests of a shard's records, in buckets by their first bytes
  labels/NAME               how many images of each class a shard has
  groups/3                  the groups of equal digests of bucket 3
  classes/3                 how many images of each class the shards of task 3 have, by split
```

Equal digests fall into one bucket, so a task finds whole groups. It takes about 70 bytes of memory for each of its
records. The end of the job joins the groups, which are only the duplicates.

Each shard counts the images of each class, and a hundred thousand shards with a thousand classes would take 10 GB. So a
task adds up the counts of its share of the shards, and the shards themselves travel without them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from beam_jobs.engine.scratch import Scratch
from beam_jobs.shards.gather_rows import GatheredShards
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


def save_shard(work: WorkDir, shard: WrittenShard, tasks: int) -> WrittenShard:
    """Saves what the tasks need of a written shard, and returns it without its counts of classes."""
    get_scratch(work).save(f"labels/{shard.file}", shard.stats.labels)
    _save_buckets(work, shard.file, tasks)
    return replace(shard, stats=replace(shard.stats, labels=Counter()))


def _save_buckets(work: WorkDir, file: str, tasks: int) -> None:
    """Writes the digests of a written shard in buckets, one for each task."""
    path = work.digests_path(file)
    if not filesystem.exists(path):  # a shard of a complete dataset, of which nothing is searched
        return
    table = np.frombuffer(filesystem.read_bytes(path), np.uint8).reshape(-1, _DIGEST_BYTES)
    buckets = np.ascontiguousarray(table[:, :4]).view("<u4").ravel() % tasks
    rows = [np.flatnonzero(buckets == bucket) for bucket in range(tasks)]
    get_scratch(work).write_buckets(f"digests/{file}", [(numbers, table[numbers]) for numbers in rows])


def search_bucket(work: WorkDir, header: PlanHeader, bucket: int, tasks: int) -> None:
    """Finds the groups of equal digests of a bucket, and counts the classes of a share of the shards; saves both."""
    if work.find_manifest(header) is not None:
        return
    scratch = get_scratch(work)
    _count_classes(scratch, header, bucket, tasks)
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


def _count_classes(scratch: Scratch, header: PlanHeader, task: int, tasks: int) -> None:
    """Adds up the images of each class in a task's share of the shards, by split, and saves the sums."""
    counts: dict[str, Counter[int]] = {}
    for shard in header.shards[task::tasks]:
        counts.setdefault(shard.split, Counter()).update(scratch.load(f"labels/{shard.file}"))
    scratch.save(f"classes/{task}", counts)


def gather_classes(
    work: WorkDir, header: PlanHeader, shards: Iterable[WrittenShard], search_tasks: int
) -> list[WrittenShard]:
    """Joins the counts of the tasks, and returns the shards with them: the first of a split has those of the split.

    The arguments are those of `gather_duplicates`, with the shards in any order.
    """
    gathered = GatheredShards(list(shards))
    if work.find_manifest(header) is None:  # of a complete dataset nothing was counted
        for task in range(search_tasks):
            gathered.merge(GatheredShards(labels=get_scratch(work).load(f"classes/{task}")))
    return gathered.list_shards()


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
