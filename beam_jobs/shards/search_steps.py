"""The search for duplicates among the written shards, by one task or by many that know nothing of each other.

```
OUTPUT/.tfpipe/end/
  rows                      the written shards, for the end of the job
  sizes                     `ShardSizes`
  digests/NAME              the digests of a shard's records, in buckets by their first bytes
  labels/NAME               how many images of each class a shard has
  classes/3                 how many images of each class the shards of task 3 have, by split
  members/3                 the records of bucket 3 that have a copy, by the task that finds their paths
  paths/3                   the same records of the shards of task 3 with their paths, by the piece of the list
  cuts                      see `lists`
```

Equal digests fall into one bucket, so a task finds whole groups. It takes about 70 bytes of memory for each of its
records. The path of a record stands in the plan or beside its shard, so another task reads those of its shards. A group
goes to the piece of the list in which its first record lies, where its line is written.

Each shard counts the images of each class, and a hundred thousand shards with a thousand classes would take 10 GB. So
many tasks add up the counts of their shares of the shards, and the shards themselves travel without them. One task
does not: it reads the digests where the shards have left them.
"""

import math
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from beam_jobs.plan.scratch import Scratch
from beam_jobs.shards.record_source import open_source
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.write_shard import Meter
from tfpipe.format.digest_groups import GroupCounts, encode_group, equal_rows
from tfpipe.format.file_names import parse_shard_name
from tfpipe.storage import file_io
from tfpipe.writer.written_shard import WrittenShard

_DIGEST_BYTES = 32
_ROWS_AT_ONCE = 1000  # are pickled: it notes every object, which would take 3 KB for each shard
_RECORDS_PER_TASK = 2_000_000
_NUMBER_BITS = 32  # of a place: the number of a record in its shard; the shard stands before it


@dataclass(frozen=True)
class OpenJob:
    """The settings that all tasks of a job share, once its plan is there.

    Attributes:
        work: The dataset directory under construction.
        header: The header of its plan.
        search_tasks: The number of tasks that search for duplicates.
        scratch: The files of the tasks.
        max_bad: The number of bad images beyond which the job stops.
        meter: A function that is called for every image, as for `write_shard`.
    """

    work: WorkDir
    header: PlanHeader
    search_tasks: int
    scratch: Scratch
    max_bad: int = 0
    meter: Meter | None = None


@dataclass(frozen=True)
class ShardSizes:
    """The number of records of each shard, in the order of the plan.

    Attributes:
        records: The number of records: [shards].
        is_complete: Whether a complete dataset is mended, so that its lists stay.
    """

    records: NDArray[np.int64]
    is_complete: bool


@dataclass(frozen=True)
class Found:
    """The duplicates that some tasks have found. Those of others can be added.

    Attributes:
        members: The number of records in groups of equal ones, by the shard of the first: [shards].
        counts: The counts of the groups.
    """

    members: NDArray[np.int64]
    counts: GroupCounts = field(default_factory=GroupCounts)

    def __add__(self, other: "Found") -> "Found":
        return Found(self.members + other.members, self.counts + other.counts)


@dataclass(frozen=True)
class _Members:
    """Some records that have a copy.

    Attributes:
        firsts: The place of the first record of the group of each.
        places: The place of each.
        digests: The digest of each that is the first of its group: [groups, 32].
        paths: The path of each, once it is known.
    """

    firsts: NDArray[np.int64]
    places: NDArray[np.int64]
    digests: NDArray[np.uint8]
    paths: list[str] = field(default_factory=list)

    def choose(self, rows: NDArray[np.int64]) -> "_Members":
        """Returns some of the records, given their numbers in rising order."""
        are_first = self.firsts == self.places
        digests = self.digests[(np.cumsum(are_first) - 1)[rows[are_first[rows]]]]
        return _Members(self.firsts[rows], self.places[rows], digests, [self.paths[row] for row in rows if self.paths])

    @classmethod
    def join(cls, parts: Iterable["_Members"]) -> "_Members":
        """Returns the records of all parts."""
        parts = [cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, _DIGEST_BYTES), np.uint8)), *parts]
        return cls(
            np.concatenate([part.firsts for part in parts]),
            np.concatenate([part.places for part in parts]),
            np.concatenate([part.digests for part in parts]),
            [path for part in parts for path in part.paths],
        )


@dataclass
class GatheredShards:
    """The written shards in any order, without their counts of classes and their lines about bad images.

    Counts of classes are added up while shards are gathered. Sums of whole numbers do not depend on their order.

    Attributes:
        shards: The shards.
        labels: The number of images of each class in all these shards, by split.
    """

    shards: list[WrittenShard] = field(default_factory=list)
    labels: dict[str, Counter[int]] = field(default_factory=dict)

    def __iadd__(self, other: "WrittenShard | GatheredShards") -> "GatheredShards":
        if isinstance(other, WrittenShard):
            split = parse_shard_name(other.info.file)[0]
            other = GatheredShards([other.strip()], {split: other.stats.labels})
        self.shards += other.shards
        for split, counts in other.labels.items():
            self.labels.setdefault(split, Counter()).update(counts)
        return self

    def list_shards(self) -> list[WrittenShard]:
        """Returns the shards. The first one of a split that has records holds the class counts of the whole split."""
        remaining = dict(self.labels)
        shards = []
        for shard in sorted(self.shards, key=lambda shard: shard.info.file):
            split = parse_shard_name(shard.info.file)[0]
            if shard.info.records and split in remaining:
                shard = replace(shard, stats=replace(shard.stats, labels=remaining.pop(split)))
            shards.append(shard)
        return shards


def count_search_tasks(num_images: int) -> int:
    """Returns the number of tasks that search for duplicates; 0 if the process that finishes does it as well."""
    tasks = math.ceil(num_images / _RECORDS_PER_TASK)
    return tasks if tasks > 1 else 0


def save_shard(job: OpenJob, shard: WrittenShard) -> WrittenShard:
    """Saves what the tasks need of a written shard, and returns it without the classes that they count."""
    job.scratch.save(f"labels/{shard.info.file}", shard.stats.labels)
    path = job.work.digests_path(shard.info.file)
    if file_io.exists(path):  # not of a complete dataset, of which nothing is searched
        table = np.frombuffer(file_io.read_whole(path), np.uint8).reshape(-1, _DIGEST_BYTES)
        buckets = np.ascontiguousarray(table[:, :4]).view("<u4").ravel() % job.search_tasks
        rows = [np.flatnonzero(buckets == bucket) for bucket in range(job.search_tasks)]
        job.scratch.write_buckets(f"digests/{shard.info.file}", [(numbers, table[numbers]) for numbers in rows])
    return replace(shard, stats=replace(shard.stats, labels=Counter()))


def save_rows(job: OpenJob, shards: Sequence[WrittenShard]) -> None:
    """Saves the written shards, which come in any order, for the tasks and the end of the job."""
    by_file = {shard.info.file: shard for shard in shards}
    ordered = [by_file[shard.file] for shard in job.header.shards]
    sizes = ShardSizes(
        np.array([shard.info.records for shard in ordered], np.int64),
        job.work.find_manifest(job.header) is not None,
    )
    parts = [ordered[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(ordered), _ROWS_AT_ONCE)]
    job.scratch.save("rows", [pickle.dumps(part, pickle.HIGHEST_PROTOCOL) for part in parts])
    job.scratch.save("sizes", sizes)


def load_rows(job: OpenJob) -> list[WrittenShard]:
    """Returns the shards that `save_rows` saved, in the order of the plan."""
    return [shard for part in job.scratch.load("rows") for shard in pickle.loads(part)]


def load_sizes(job: OpenJob) -> ShardSizes:
    """Returns the sizes that `save_rows` saved."""
    sizes: ShardSizes = job.scratch.load("sizes")
    return sizes


def count_buckets(job: OpenJob) -> int:
    """Returns the number of tasks that search, and of those that find paths; none for a complete dataset."""
    return 0 if load_sizes(job).is_complete else job.search_tasks


def search_bucket(job: OpenJob, bucket: int) -> Found:
    """Finds the groups of equal digests of a bucket, and saves them."""
    header, scratch, tasks = job.header, job.scratch, job.search_tasks
    if tasks > 1:
        _count_classes(job, bucket)
    all_places: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    tables = [np.zeros((0, _DIGEST_BYTES), np.uint8)]
    for position, shard in enumerate(header.shards):
        numbers, table = _read_digests(job, shard.file, bucket)
        all_places.append((position << _NUMBER_BITS) | numbers)
        tables.append(table)
    table, places = np.concatenate(tables), np.concatenate(all_places)
    groups, counts = equal_rows(table), GroupCounts()
    for group in groups:
        counts.add(header.shards[place >> _NUMBER_BITS].split for place in places[group].tolist())
    rows = np.array([row for group in groups for row in group], np.int64)
    heads = np.array([group[0] for group in groups], np.int64)
    firsts = np.repeat(places[heads], [len(group) for group in groups])
    members = _Members(firsts, places[rows], table[heads])
    scratch.write_buckets(
        f"members/{bucket}",
        [members.choose(np.flatnonzero((members.places >> _NUMBER_BITS) % tasks == task)) for task in range(tasks)],
    )
    return Found(np.bincount(firsts >> _NUMBER_BITS, minlength=len(header.shards)), counts)


def _read_digests(job: OpenJob, file: str, bucket: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Returns the numbers and the digests of the records of a shard that are in a bucket."""
    if job.search_tasks > 1:
        numbers, table = job.scratch.read_bucket(f"digests/{file}", bucket, job.search_tasks)
        return numbers, table
    digests = file_io.read_whole(job.work.digests_path(file))
    table = np.frombuffer(digests, np.uint8).reshape(-1, _DIGEST_BYTES)
    return np.arange(len(table)), table


def find_paths(job: OpenJob, task: int, piece_ends: NDArray[np.int64]) -> None:
    """Reads the paths of the duplicates in a share of the shards, and saves them by the piece of the list.

    Args:
        job: The settings of the tasks.
        task: The number of the task.
        piece_ends: The shard after the last one of each piece of the list.
    """
    scratch, tasks, header = job.scratch, job.search_tasks, job.header
    members = _Members.join(scratch.read_bucket(f"members/{bucket}", task, tasks) for bucket in range(tasks))
    source, paths = open_source(header), [""] * len(members.places)
    order = np.argsort(members.places)
    shards = members.places[order] >> _NUMBER_BITS
    for rows in np.split(order, np.flatnonzero(np.diff(shards)) + 1) if len(order) else ():
        names = source.list_names(job.work, header.shards[members.places[rows[0]] >> _NUMBER_BITS])
        for row in rows.tolist():
            paths[row] = names[members.places[row] & ((1 << _NUMBER_BITS) - 1)]
    members.paths.extend(paths)
    pieces = np.searchsorted(piece_ends, members.firsts >> _NUMBER_BITS, side="right")
    chosen = [members.choose(np.flatnonzero(pieces == piece)) for piece in range(len(piece_ends))]
    scratch.write_buckets(f"paths/{task}", chosen)


def encode_piece(job: OpenJob, piece: int, num_pieces: int) -> Iterator[bytes]:
    """Yields the lines of a piece of the list of duplicates."""
    tasks, splits = job.search_tasks, [shard.split for shard in job.header.shards]
    members = _Members.join(job.scratch.read_bucket(f"paths/{task}", piece, num_pieces) for task in range(tasks))
    starts = np.cumsum([0, *load_sizes(job).records])[:-1]
    begin_of_split = {split: int(starts[splits.index(split)]) for split in dict.fromkeys(splits)}
    order = np.lexsort((members.places, members.firsts))
    digests = members.digests[np.argsort(members.firsts[members.firsts == members.places])]
    cuts = np.flatnonzero(np.diff(members.firsts[order], prepend=-1, append=-1)).tolist() if len(order) else [0]
    for digest, (begin, after) in zip(digests, pairwise(cuts), strict=True):
        records = []
        for row in order[begin:after].tolist():
            shard, number = divmod(int(members.places[row]), 1 << _NUMBER_BITS)
            split = splits[shard]
            records.append((split, int(starts[shard]) - begin_of_split[split] + number, members.paths[row]))
        yield encode_group(digest.tobytes(), records)


def _count_classes(job: OpenJob, task: int) -> None:
    """Adds up the images of each class in a task's share of the shards, by split, and saves the sums."""
    counts: dict[str, Counter[int]] = {}
    for shard in job.header.shards[task :: job.search_tasks]:
        counts.setdefault(shard.split, Counter()).update(job.scratch.load(f"labels/{shard.file}"))
    job.scratch.save(f"classes/{task}", counts)


def load_shards(job: OpenJob) -> list[WrittenShard]:
    """Returns the shards that `save_rows` saved, with the classes that the tasks have counted.

    The first shard of a split that has records holds the counts of the whole split.
    """
    gathered = GatheredShards(load_rows(job))
    if not load_sizes(job).is_complete:
        for task in range(job.search_tasks):
            gathered += GatheredShards(labels=job.scratch.load(f"classes/{task}"))
    return gathered.list_shards()
