"""The job: list, plan, write shards, finish. `run` is what `tfpipe shard`, `reshard` and `merge` call."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.plan.plan import Plan
from beam_jobs.run_steps import make_runner, run_steps
from beam_jobs.runners.base import Job, Runner, ShardObserver
from beam_jobs.shards.job_steps import JobSettings, WorkerCheck, list_job_steps
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.search_steps import count_search_tasks
from beam_jobs.storage import job_stores
from tfpipe.errors import DataError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io


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


def run(
    config: ShardConfig,
    beam_args: Sequence[str] = (),
    observer: ShardObserver | None = None,
    check: Callable[[Plan], None] = lambda plan: None,
) -> ShardResult:
    """Makes the dataset, or the rest of it if an earlier run of the same job was cut off.

    Args:
        config: The options of the job.
        beam_args: Arguments for Beam, such as `--runner=DataflowRunner`.
        observer: The observer of the job's progress.
        check: A function that may refuse the plan before anything is written, by an error.

    Raises:
        ConfigError: An option does not fit the input, the output or the runner.
        DataError: The input cannot be used, the output cannot be written, too many images are bad, or a worker died.
    """
    observer, started = observer or ShardObserver(), time.monotonic()
    runner = make_runner(beam_args)
    runner.check(config)  # a wrong option should be reported before the listing, which may take minutes
    plan = plan_shards(config, beam_args, observer)
    observer.plan(plan)
    check(plan)
    with open_work_dir(config, plan) as work, runner.make_progress_folder(work) as folder:
        finished_before = work.list_written()
        header = work.read_header()
        job = Job(config, replace(work, progress=folder), header.name, len(header.shards), header)
        settings = _make_settings(job, plan, runner)
        run_steps(job, list_job_steps(settings.search_tasks), settings, runner, beam_args, observer)
        try:
            # Beam may try a bundle again, which then finds shards that this very run has finished.
            kept_shards = len(work.read_kept() & finished_before)
            manifest = manifest_json.loads(file_io.read_whole(work.target(file_names.MANIFEST)).decode())
        except FileNotFoundError as error:
            raise DataError(
                f"A job must end with {file_names.MANIFEST}, but Beam's runner ended it without. Run the same "
                "command again with another runner."
            ) from error
    return ShardResult(manifest, kept_shards, time.monotonic() - started)


def _make_settings(job: Job, plan: Plan, runner: Runner) -> JobSettings:
    config, work = job.config, job.work
    assert job.header is not None
    return JobSettings(
        output=work.output,
        max_bad=config.max_bad_images(plan.num_images) + plan.listing.missing.count,
        workers=runner.get_pool_workers(config.workers),
        progress=work.progress,
        file_options=job_stores.get_options(),
        worker_check=WorkerCheck.make(job.header, codecs=runner.has_same_codecs),
        search_tasks=count_search_tasks(plan.num_images),
    )
