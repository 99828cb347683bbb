"""The steps that write the shards of a plan and make the dataset complete, and the settings of these steps:

```
write shards -> [search duplicates -> find paths] -> write manifest
```

Those in brackets are for many images. Of fewer, the process that writes the manifest does their work, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from beam_jobs.plan.scratch import Scratch
from beam_jobs.plan.step import Step, do_nothing
from beam_jobs.shards.finish_dataset import check_bad, check_present, finish_dataset
from beam_jobs.shards.lists import list_end_steps
from beam_jobs.shards.search_steps import GatheredShards, OpenJob, load_shards, save_rows, save_shard
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.worker_check import WorkerCheck
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.storage import job_stores
from tfpipe.writer.written_shard import WrittenShard


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
