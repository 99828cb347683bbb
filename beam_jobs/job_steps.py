"""The steps of the job as functions without Beam: open the plan, write shards in a pool of processes, finish.

The graph in `transforms` calls them wherever Beam runs it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from beam_jobs.engine.list_files import finish_lists
from beam_jobs.engine.search_steps import EndOfJob, load_shards, save_rows
from beam_jobs.process_pool import map_unordered
from beam_jobs.shards.finish_dataset import WriteLists, check_bad, check_present, finish_dataset, write_lists
from beam_jobs.shards.gather_rows import GatheredShards
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from beam_jobs.shards.worker_check import WorkerCheck
from beam_jobs.shards.write_shard import write_shard
from beam_jobs.storage import filesystem
from tfpipe.writer.written_shard import WrittenShard


@dataclass(frozen=True)
class JobConfig:
    """The settings that all steps share. Beam pickles them and sends them to the workers.

    Attributes:
        output: The dataset directory under construction: a path or URL that every worker reaches.
        max_bad: The number of bad images beyond which the job stops.
        workers: The number of processes that each Beam worker starts. 0: the Beam worker writes shards itself.
        file_options: The Beam arguments that the file systems need.
        progress: The folder for the workers' progress, as in `WorkDir`.
        worker_check: The versions and the plan that a worker must have. None: this process works alone.
        search_tasks: The number of tasks that search for duplicates, count classes and write lists. 0: the process that
            finishes does it.
    """

    output: str
    max_bad: int
    workers: int = 0
    file_options: tuple[str, ...] = ()
    progress: str | None = None
    worker_check: WorkerCheck | None = None
    search_tasks: int = 0

    def open_plan(self) -> tuple[WorkDir, PlanHeader]:
        """Opens the dataset directory and its plan, and first configures the file systems of this process.

        Raises:
            DataError: This worker may not take part, see `WorkerCheck`.
        """
        self.configure()
        work = WorkDir(self.output, self.progress)
        return work, self.worker_check.open_plan(work) if self.worker_check else work.read_header()

    def configure(self) -> None:
        """Configures the file systems of this process."""
        if self.file_options and filesystem.get_options() != self.file_options:
            filesystem.configure(self.file_options)

    def open(self) -> EndOfJob:
        """Returns what the tasks at the end of the job share.

        Raises:
            DataError: This worker may not take part.
        """
        return EndOfJob(*self.open_plan(), self.search_tasks)


def write_in_pool(
    work: WorkDir, header: PlanHeader, shard_numbers: Sequence[int], settings: JobConfig
) -> Iterator[WrittenShard]:
    """Writes shards in a pool of `settings.workers` processes, and yields each when it is done.

    Args:
        work: The dataset directory under construction.
        header: The header of its plan.
        shard_numbers: The positions of the shards in `header.shards`.
        settings: The settings of the job.

    Raises:
        DataError: A file cannot be written, a worker died, or more of these images are bad than allowed in all.
    """
    options = settings.file_options
    set_up = partial(filesystem.configure, options) if options else None
    workers = min(settings.workers, len(shard_numbers))
    bad_shards: list[WrittenShard] = []
    for shard in map_unordered(write_shard, shard_numbers, workers, shared=(work, header), set_up=set_up):
        if shard.num_left_out:
            bad_shards.append(shard.strip())
            check_bad(work, header, bad_shards, settings.max_bad)
        yield shard


def begin_end(gathered: GatheredShards, settings: JobConfig) -> None:
    """Checks the written shards and saves them for the tasks at the end of the job.

    Raises:
        DataError: A shard is missing, or more images are bad than allowed.
    """
    end, shards = settings.open(), gathered.list_shards()
    check_present(end.work, end.header.files, shards)  # now, since a task would miss the digests
    check_bad(end.work, end.header, shards, settings.max_bad)
    save_rows(end, shards)


def finish_end(settings: JobConfig) -> str:
    """Finishes a dataset whose lists tasks have written, as `finish` does."""
    end = settings.open()
    return _finish(end.work, end.header, load_shards(end), settings.max_bad, lambda *_: finish_lists(end))


def finish(written_shards: Iterable[WrittenShard], settings: JobConfig) -> str:
    """Writes the files beside the shards, the manifest last, and returns the dataset's fingerprint.

    Raises:
        DataError: A shard is missing, more images are bad than allowed, or this process may not take part.
    """
    work, header = settings.open_plan()
    return _finish(work, header, list(written_shards), settings.max_bad, write_lists)


def _finish(work: WorkDir, header: PlanHeader, shards: Sequence[WrittenShard], max_bad: int, write: WriteLists) -> str:
    check_present(work, header.files, shards)
    work.save_kept(shard.info.file for shard in shards if shard.kept)
    return finish_dataset(work, header, shards, max_bad, write).fingerprint
