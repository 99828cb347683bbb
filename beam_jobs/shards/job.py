"""Writes the shards of a plan: checks that a process may take part, writes, and completes the dataset."""

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from beam_jobs import job_stores
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.finish_dataset import check_bad, check_present, finish_dataset
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.write_shard import Meter, write_shard
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.format.file_names import parse_shard_name
from tfpipe.images.normalize import get_codec_versions
from tfpipe.storage import file_io
from tfpipe.writer.written_shard import WrittenShard

_SHARE = "All workers must reach images and output by the same names: on a disk they share, or in a bucket."


@dataclass(frozen=True)
class Job:
    """A job that writes the shards of a plan. It is pickled without the plan's header, which each worker reads."""

    work: WorkDir
    fingerprint: str  # of the plan; a disk that is not shared may hold another
    versions: Mapping[str, str]  # of packages that workers must have
    workers: int = 0  # processes that each process of the runner starts; 0: none
    file_options: tuple[str, ...] = ()  # Beam's arguments for the file systems
    in_threads: bool = False  # whether threads of this process take the place of other processes

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "header"}

    def check_versions(self) -> None:
        """Checks that this process has the versions of packages that the job needs."""
        versions = get_versions()
        for name, version in self.versions.items():
            if versions.get(name) != version:
                raise DataError(
                    f"All workers must have {name} {version}, as the process that planned the job has, but the one on "
                    f"{socket.gethostname()} has {versions.get(name, 'none')}. Install the same versions there."
                )

    @cached_property
    def header(self) -> PlanHeader:
        """The header of the plan. Reading it checks that this process has the job's versions and sees this plan."""
        job_stores.adopt(self.file_options)
        self.check_versions()
        host = socket.gethostname()
        try:
            header = self.work.read_header()
        except OSError as error:
            raise DataError(
                f"The worker on {host} does not find the plan in {self.work.base}: {error.strerror or error}. {_SHARE}"
            ) from error
        if header.fingerprint != self.fingerprint:
            raise DataError(f"The worker on {host} finds another job's plan in {self.work.base}. {_SHARE}")
        return header


def get_versions() -> dict[str, str]:
    """Returns the version of each package of this process that decides the plan or the bytes of a shard."""
    return {"tfpipe": __version__, **get_codec_versions()}


@dataclass
class GatheredShards:
    """The written shards in any order, without their counts of classes and their lines about bad images.

    A hundred thousand shards with the counts of a thousand classes would take 10 GB, so the counts are added up.
    """

    shards: list[WrittenShard] = field(default_factory=list)
    labels: dict[str, Counter[int]] = field(default_factory=dict)  # images of each class, by split

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


def write_one(job: Job, number: int, meter: Meter | None = None) -> WrittenShard:
    """Writes the shard with a number; errors and `meter` are as in `write_shard`."""
    return write_shard(job.work, job.header, number, meter)


def write_shards(job: Job, numbers: Sequence[int]) -> Iterator[WrittenShard]:
    """Yields the shards of these numbers as each is written. The job ends early if too many images are bad."""
    workers, bad_shards = min(job.workers, len(numbers)), list[WrittenShard]()
    if job.in_threads and workers > 1:
        written = _write_in_threads(job, numbers, workers)
    else:
        written = map_unordered(write_one, numbers, 0 if job.in_threads else workers, shared=(job,))
    for shard in written:
        stop_if_bad(job, shard, bad_shards)
        yield shard


class _Stopped(BaseException):
    """An exception that ends a thread once nobody waits for its shard."""


def _write_in_threads(job: Job, numbers: Sequence[int], workers: int) -> Iterator[WrittenShard]:
    """Yields the shards of these numbers. When the caller stops, each thread ends after its current image."""
    stopped = threading.Event()

    def stop_if_asked(*_: object) -> None:
        if stopped.is_set():
            raise _Stopped

    with ThreadPoolExecutor(workers) as threads:
        try:
            for shard in as_completed([threads.submit(write_one, job, number, stop_if_asked) for number in numbers]):
                yield shard.result()
        finally:
            stopped.set()
            threads.shutdown(wait=False, cancel_futures=True)


def stop_if_bad(job: Job, shard: WrittenShard, bad_shards: list[WrittenShard]) -> None:
    """Adds a shard with bad images to `bad_shards`, and raises an error if these have more than the job allows."""
    if shard.num_left_out:
        bad_shards.append(shard.strip())
        check_bad(job.work, job.header, bad_shards)


def finish(job: Job, gathered: GatheredShards) -> None:
    """Makes the dataset complete once all shards are written."""
    shards = gathered.list_shards()
    check_present(job.work, job.header.files, shards)
    kept = [shard.info.file for shard in shards if shard.kept]
    file_io.write_file(job.work.path("kept.json"), json.dumps(kept).encode(), makes_folders=True)
    finish_dataset(job.work, job.header, shards)
