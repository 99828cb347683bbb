"""The job: list, plan, write shards, finish. `run` is what `tfpipe shard`, `reshard` and `merge` call."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import apache_beam as beam

from beam_jobs.config import ShardConfig
from beam_jobs.engine.search_steps import count_search_tasks
from beam_jobs.plan.split_and_shard import Plan
from beam_jobs.plan_job import make_plan
from beam_jobs.runners.base import Job, Runner, ShardObserver
from beam_jobs.runners.beam_errors import unwrap_errors
from beam_jobs.runners.choose import make_runner
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.plan_on_disk import PlanOnDisk
from beam_jobs.shards.worker_check import WorkerCheck
from beam_jobs.storage import filesystem
from beam_jobs.transforms import JobConfig, build_graph, build_search_graph, finish
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest
from tfpipe.system.progress import poll_progress


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The result of a run.

    Attributes:
        manifest: The manifest of the complete dataset.
        kept_shards: The number of shards that an earlier run had finished.
        seconds: The time of this run, start-up and planning included.
    """

    manifest: Manifest
    kept_shards: int
    seconds: float

    @property
    def images_per_second(self) -> float:
        """The rate of the whole run, start-up and planning included."""
        images = sum(split.records for split in self.manifest.splits.values()) + self.manifest.quarantined
        return images / self.seconds


def run(config: ShardConfig, beam_args: Sequence[str] = (), observer: ShardObserver | None = None) -> ShardResult:
    """Makes the dataset, or the rest of it if an earlier run of the same job was cut off.

    Args:
        config: The options of the job.
        beam_args: Arguments for Beam, such as `--runner=DataflowRunner`.
        observer: The observer of the job's progress.

    Raises:
        ConfigError: An option does not fit the input, the output or the runner.
        DataError: The input cannot be used, the output cannot be written, too many images are bad, or a worker died.
    """
    observer, started = observer or ShardObserver(), time.monotonic()
    runner = make_runner(beam_args)
    runner.check(config)  # a wrong option should be reported before the listing, which may take minutes
    with (
        _make_told_plan(config, beam_args, observer) as plan,
        open_work_dir(config, plan) as work,
        runner.make_progress_folder(work) as folder,
    ):
        finished_before = work.list_written()
        header = work.read_header()
        job = Job(config, replace(work, progress=folder), header.name, len(header.shards), header)
        search_tasks = count_search_tasks(plan.num_images) if isinstance(plan, PlanOnDisk) else 0
        settings = _make_settings(job, plan.num_images, runner, search_tasks)
        _write_dataset(job, settings, runner, beam_args, observer)
        # Beam may try a bundle again, which then finds shards that this very run has finished.
        kept_shards = len(work.read_kept() & finished_before)
        manifest = manifest_json.loads(filesystem.read_bytes(work.target(file_names.MANIFEST)).decode())
    return ShardResult(manifest, kept_shards, time.monotonic() - started)


@contextlib.contextmanager
def _make_told_plan(config: ShardConfig, beam_args: Sequence[str], observer: ShardObserver) -> Iterator[Plan]:
    """Yields the plan, once the observer has it."""
    with make_plan(config, beam_args, observer) as plan:
        observer.plan(plan)
        yield plan


def _write_dataset(
    job: Job, settings: JobConfig, runner: Runner, beam_args: Sequence[str], observer: ShardObserver
) -> None:
    """Runs the Beam graph to its end, and makes the dataset complete."""
    read, every_s = runner.get_progress_reader(job)
    with poll_progress(read, observer, every_s), unwrap_errors(), runner.prepare(job):
        pipeline = beam.Pipeline(runner=runner.make_beam_runner(job), options=runner.options)
        build_graph(pipeline, job.num_tasks, settings, whole=runner.runs_whole_graph)
        runner.submit(pipeline, observer)
        written_shards = runner.wait()
    if not runner.runs_whole_graph:
        if settings.search_tasks:
            _search_duplicates(job, settings, beam_args, observer)
        with filesystem.explain_os_errors(f"write to {job.work.output}"):
            finish(written_shards, settings)


def _search_duplicates(job: Job, settings: JobConfig, beam_args: Sequence[str], observer: ShardObserver) -> None:
    """Runs the tasks that search for duplicates, for a runner that spreads only what it finds in the graph."""
    runner = make_runner(beam_args)  # anew for every graph, because preparing a graph changes the options
    with unwrap_errors(), runner.prepare(replace(job, num_tasks=settings.search_tasks)):
        pipeline = beam.Pipeline(runner=runner.make_beam_runner(job), options=runner.options)
        build_search_graph(pipeline, settings)
        runner.submit(pipeline, observer)
        runner.wait()


def _make_settings(job: Job, num_images: int, runner: Runner, search_tasks: int) -> JobConfig:
    config, work = job.config, job.work
    assert job.header is not None
    return JobConfig(
        output=work.output,
        max_bad=config.max_bad_images(num_images),
        workers=runner.get_pool_workers(config.workers),
        progress=work.progress,
        file_options=filesystem.get_options(),
        worker_check=WorkerCheck.make(job.header, codecs=runner.has_same_codecs),
        search_tasks=search_tasks,
    )
