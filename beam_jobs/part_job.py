"""A job in parts that know nothing of each other, such as the tasks of a Slurm array, or the pods of an indexed Job.

All that they share is OUTPUT, where a part creates a file for each shard that it begins; of two that try at once, one
succeeds. Even a shard that two parts write is whole: its bytes depend on the plan alone, and it appears at one moment.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from beam_jobs import job_stores
from beam_jobs.config import ShardConfig
from beam_jobs.inputs.folder import name_input
from beam_jobs.inputs.table_files import make_name
from beam_jobs.plan.plan import Plan
from beam_jobs.process_pool import map_unordered
from beam_jobs.runners.base import ShardObserver
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.job import GatheredShards, Job, finish, stop_if_bad, write_one, write_shards
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.progress import LIST_EVERY_S, read_finished
from beam_jobs.shards.work_dir import PlanHeader, WorkDir
from tfpipe.dataset.dataset_files import load_own_manifest
from tfpipe.errors import ConfigError, DataError
from tfpipe.format import file_names
from tfpipe.native import library
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import poll_progress
from tfpipe.writer.written_shard import WrittenShard

_READS_AT_ONCE = 16


Part = tuple[int, int]
"""A part of a job: its number from 0, modulo the number of parts; and the number of parts."""


@dataclass(frozen=True)
class PartResult:
    """The result of a part."""

    written: int  # shards that it wrote
    finished: int  # shards that are finished now
    num_shards: int
    is_complete: bool
    seconds: float


def plan_parts(config: ShardConfig, observer: ShardObserver | None = None) -> Plan:
    """Writes the plan of a job into the output, where its parts find it, and removes earlier marks of begun shards."""
    if config.overwrite:
        raise ConfigError("`overwrite` replaces a dataset in one run, which parts are not. Choose another OUTPUT.")
    observer = observer or ShardObserver()
    plan = plan_shards(config, (), observer)
    observer.plan(plan)
    with open_work_dir(config, plan, keep=True) as work, file_io.explain_os_errors(f"write to {config.output}"):
        is_complete = work.find_manifest(work.read_header().fingerprint) is not None
        file_io.remove_tree(work.base if is_complete else work.path("begun"))
    return plan


def run_part(config: ShardConfig, part: Part, observer: ShardObserver | None = None) -> PartResult:
    """Writes a part's share of the shards, then others that no part has begun; the last part completes the dataset."""
    library.load()
    job_stores.configure(())
    file_io.check_stores((*config.inputs, config.output))
    started, work = time.monotonic(), WorkDir(file_io.resolve_links(config.output))
    with file_io.explain_os_errors(f"write to {config.output}"):
        header = _read_header(config, work)
        if header is None:
            file_io.remove_tree(work.base)  # a part that was killed while it removed the folder leaves the rest of it
            return PartResult(0, 0, 0, True, time.monotonic() - started)
        workers = config.workers or usable_cpus()
        job = Job(work, header.fingerprint, header.versions, workers, job_stores.get_options())
        job.check_versions()
        vars(job)["header"] = header  # the file goes as soon as another part completes the dataset
        written, bad_shards = 0, list[WrittenShard]()
        with poll_progress(partial(read_finished, work, header), observer or ShardObserver(), LIST_EVERY_S):
            for shard in map_unordered(_write_begun, _iterate_free(job, part), workers, shared=(job, part)):
                if shard is not None:
                    written += 1
                    stop_if_bad(job, shard, bad_shards)
        finished, is_complete = _finish_last(job, part)
    return PartResult(written, finished, len(header.shards), is_complete, time.monotonic() - started)


def _read_header(config: ShardConfig, work: WorkDir) -> PlanHeader | None:
    """Returns the header of the plan; None if the dataset is complete already."""
    try:
        header = work.read_header()
    except FileNotFoundError:
        if file_io.exists(work.result(file_names.MANIFEST)):
            name = load_own_manifest(work.output).name  # all that is left of the input
            if not config.datasets and name not in (name_input(config.input)[0], make_name(config.input)):
                raise ConfigError(
                    f"{config.output} holds a dataset made from another input, {name}, got {config.input}. Choose an "
                    "empty directory."
                ) from None
            return None
        raise DataError(
            f"There is no plan in {config.output}. Write it with --plan-only, and the options of the job, before its "
            "parts begin."
        ) from None
    inputs = tuple(map(file_io.make_absolute, config.inputs))
    if inputs != header.inputs:
        raise ConfigError(
            f"The plan in {config.output} is that of {', '.join(header.inputs)}, got {', '.join(inputs)}. Name the "
            "same input by the same path."
        )
    return header


def order_shards(part: Part, num_shards: int) -> list[int]:
    """Returns all shard numbers in the order in which a part tries them: its own share, then others backward."""
    number, count = part
    begin, end = (num_shards * k // count for k in (number % count, number % count + 1))
    return [*range(begin, end), *reversed(range(begin)), *reversed(range(end, num_shards))]


def _iterate_free(job: Job, part: Part) -> Iterator[int]:
    """Yields the shards that no other part has begun, and looks again after each few, since others go on meanwhile."""
    work, files = job.work, job.header.files
    remaining = order_shards(part, len(files))
    # Shards that this part began before it was killed and started again still belong to it.
    own = {name for name in work.list_begun() - work.list_written() if work.begin(name, part)}
    while True:
        taken = work.list_written() | (work.list_begun() - own)
        if _is_complete(job):  # another part has finished, and removes the working folder
            return
        remaining = [number for number in remaining if files[number] not in taken]
        if not remaining:
            return
        yield from remaining[: job.workers]
        del remaining[: job.workers]


def _write_begun(job: Job, part: Part, number: int) -> WrittenShard | None:
    """Writes a shard after marking it as begun; returns None if another part has begun it or completed the dataset."""
    work = job.work
    try:
        file = job.header.files[number]
    except DataError:
        if _is_complete(job):  # another part has just removed the working folder
            return None
        raise
    if not work.begin(file, part):
        return None
    if _is_complete(job):  # then the mark has made the removed working folder anew
        file_io.remove_tree(work.base)
        return None
    return write_one(job, number)


def _finish_last(job: Job, part: Part) -> tuple[int, bool]:
    """Completes the dataset if all shards are finished; returns how many are, and whether the dataset is complete."""
    work, files = job.work, job.header.files
    finished, is_complete = len(work.list_written().intersection(files)), _is_complete(job)
    if not is_complete and (finished < len(files) or not work.begin(file_names.MANIFEST, part)):
        return finished, False
    # Another part may have completed it just now, and ended before it removed the working folder.
    if not is_complete and not _is_complete(job):
        present, gathered = set(file_io.list_names(work.output)), GatheredShards()
        # A part that was killed at this point may have renamed shards, if some came out empty.
        for _ in write_shards(job, [number for number, file in enumerate(files) if file not in present]):
            pass
        with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
            for file, shard in zip(files, threads.map(work.find_written, files), strict=True):
                if shard is None:
                    raise DataError(f"{work.row_path(file)} cannot be read. Remove it, and start this part again.")
                gathered += shard
        finish(job, gathered)
    file_io.remove_tree(work.base)
    return len(files), True


def _is_complete(job: Job) -> bool:
    return job.work.find_manifest(job.fingerprint) is not None
