"""The steps that write the shards of a plan and make the dataset complete, and the settings of these steps:

```
write shards -> [search duplicates -> find paths] -> write manifest
```

Those in brackets are for many images. Of fewer, the process that writes the manifest does their work, too.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs.plan.scratch import Scratch
from beam_jobs.plan.step import Step, do_nothing
from beam_jobs.shards.finish_dataset import check_bad, check_present, finish_dataset, list_end_steps
from beam_jobs.shards.search_steps import GatheredShards, OpenJob, load_shards, save_rows, save_shard
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.storage import job_stores
from tfpipe._version import __version__
from tfpipe.errors import DataError
from tfpipe.images.normalize import get_codec_versions
from tfpipe.writer.written_shard import WrittenShard

_SHARE = "All workers must reach images and output by the same names: on a disk they share, or in a bucket."


@dataclass(frozen=True)
class WorkerCheck:
    """The check that the process that planned a job hands to its workers.

    Attributes:
        fingerprint: The fingerprint of the plan. A disk that is not shared may hold another plan under the same path.
        versions: The version of each package that decides the bytes of a shard.
    """

    fingerprint: str
    versions: Mapping[str, str]

    @classmethod
    def make(cls, header: PlanHeader, *, codecs: bool = True) -> "WorkerCheck":
        """Returns the check for a plan that was made in this process.

        Args:
            header: The header of the plan.
            codecs: Whether workers must have the image libraries of this process. This is not needed if all of them
                have the same ones anyway.
        """
        return cls(header.fingerprint, _get_versions() if codecs else _get_planner_versions())

    def open_plan(self, work: WorkDir) -> PlanHeader:
        """Returns the header of the plan, in a worker.

        Raises:
            DataError: The worker has other versions, or does not see this plan.
        """
        _check_versions(self.versions)
        host = socket.gethostname()
        try:
            header = work.read_header()
        except OSError as error:
            raise DataError(
                f"The worker on {host} does not find the plan in {work.base}: {error.strerror or error}. {_SHARE}"
            ) from error
        if header.fingerprint != self.fingerprint:
            raise DataError(f"The worker on {host} finds another job's plan in {work.base}. {_SHARE}")
        return header


@dataclass(frozen=True)
class JobSettings:
    """The settings that all steps share. Beam pickles them and sends them to the workers.

    Attributes:
        output: The dataset directory under construction: a path or URL that every worker reaches.
        max_bad: The number of bad images beyond which the job stops.
        workers: The number of processes that each Beam worker starts. 0: the Beam worker writes shards itself.
        file_options: The Beam arguments that the file systems need.
        progress: The folder for the workers' progress, as in `WorkDir`.
        worker_check: The versions and the plan that a worker must have. None: this process works alone.
        search_tasks: The number of tasks that search for duplicates and count classes. 0: the process that finishes
            does it.
    """

    output: str
    max_bad: int
    workers: int = 0
    file_options: tuple[str, ...] = ()
    progress: str | None = None
    worker_check: WorkerCheck | None = None
    search_tasks: int = 0

    def configure(self) -> None:
        """Configures the file systems of this process."""
        job_stores.adopt(self.file_options)

    def open(self) -> OpenJob:
        """Opens the dataset directory and its plan, and first configures the file systems of this process.

        Raises:
            DataError: This worker may not take part, see `WorkerCheck`.
        """
        self.configure()
        work = WorkDir(self.output, self.progress)
        header = self.worker_check.open_plan(work) if self.worker_check else work.read_header()
        return OpenJob(work, header, self.search_tasks, Scratch(work.path("end")), self.max_bad)


def list_job_steps(search_tasks: int) -> list[Step[OpenJob]]:
    """Returns the steps, in their order.

    Args:
        search_tasks: The number of tasks that search for duplicates, as in `JobSettings`.
    """
    write = Step("Write shards", _count_shards, _write, _end_writing, GatheredShards, _stop_if_bad, writes_shards=True)
    if not search_tasks:
        return [write]
    return [write, *list_end_steps(), Step("Write manifest", _count_none, do_nothing, _finish_searched)]


def _count_shards(job: OpenJob) -> int:
    return len(job.header.shards)


def _count_none(_: OpenJob) -> int:
    return 0


def _write(job: OpenJob, number: int) -> WrittenShard:
    shard = write_shard(job.work, job.header, number, job.meter)
    return save_shard(job, shard) if job.search_tasks else shard


def _stop_if_bad(job: OpenJob, shard: WrittenShard, bad_shards: list[Any]) -> None:
    """Ends the job as soon as the shards of one bundle have more bad images than allowed in all."""
    if shard.num_left_out:
        bad_shards.append(shard.strip())
        check_bad(job.work, job.header, bad_shards, job.max_bad)


def _end_writing(job: OpenJob, gathered: GatheredShards) -> None:
    """Makes the dataset complete, or saves the shards for the tasks that search first.

    Raises:
        DataError: A shard is missing, or more images are bad than allowed.
    """
    shards = gathered.list_shards()
    if not job.search_tasks:
        _finish(job, shards)
        return
    check_present(job.work, job.header.files, shards)  # now, since a task would miss the digests
    check_bad(job.work, job.header, shards, job.max_bad)
    save_rows(job, shards)


def _finish_searched(job: OpenJob, _: None) -> None:
    """Makes a dataset complete in which tasks have searched for duplicates."""
    _finish(job, load_shards(job), searched=job)


def _finish(job: OpenJob, shards: Sequence[WrittenShard], searched: OpenJob | None = None) -> None:
    check_present(job.work, job.header.files, shards)
    job.work.save_kept(shard.info.file for shard in shards if shard.kept)
    finish_dataset(job.work, job.header, shards, job.max_bad, searched)


def _check_versions(versions: Mapping[str, str]) -> None:
    """Checks that this worker has the packages of the process that started the job."""
    worker_versions = _get_versions()
    for name, version in versions.items():
        if worker_versions.get(name) != version:
            raise DataError(
                f"All workers must have {name} {version}, as the process that planned the job has, but the one on "
                f"{socket.gethostname()} has {worker_versions.get(name, 'none')}. Install the same versions there."
            )


def _get_planner_versions() -> dict[str, str]:
    """Returns the version of each package that decides the plan."""
    return {"tfpipe": __version__}


def _get_versions() -> dict[str, str]:
    return {**_get_planner_versions(), **get_codec_versions()}
