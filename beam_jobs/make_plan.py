"""Makes the plan of a job: by the same steps in this process, or by tasks where the runner says."""

import contextlib
from collections.abc import Iterator, Sequence

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.recognize import Input, recognize
from beam_jobs.plan.choose import choose_planner
from beam_jobs.plan.list_step import Planning
from beam_jobs.plan.plan import Plan
from beam_jobs.plan.plan_steps import list_plan_steps
from beam_jobs.plan.scratch import LocalScratch, Scratch
from beam_jobs.plan.step import run_here
from beam_jobs.run_steps import make_runner, run_steps
from beam_jobs.runners.base import Job, ShardObserver
from beam_jobs.shards.output_dir import check_dataset_output, open_planning
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.worker_check import get_planner_versions
from beam_jobs.storage import job_stores
from tfpipe.native import library
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer


@contextlib.contextmanager
def make_plan(
    config: ShardConfig, beam_args: Sequence[str] = (), observer: ShardObserver | None = None
) -> Iterator[Plan]:
    """Yields the plan, made where the configuration or the size of the input says.

    A plan that tasks made is valid inside the block, and the output is locked there.

    Args:
        config: The options of the job.
        beam_args: Arguments for Beam.
        observer: The observer of the job's progress. It gets the choice of the planner, and what the listing notes.

    Raises:
        ConfigError: An option does not fit the input, the output or the runner.
        DataError: The input cannot be used, or a worker died.
    """
    observer = observer or ShardObserver()
    check_places(config, beam_args)
    source = recognize(config)
    choice = choose_planner(source)
    observer.planner(choice)
    with open_planning(config) if choice.is_engine else contextlib.nullcontext() as base:
        if base is None:
            plan = _plan_here(source, observer)
        else:
            plan = _plan_by_tasks(source, Scratch(base), beam_args, observer)
        if plan.listing.note:
            observer.note(plan.listing.note)
        yield plan


def plan_shards(config: ShardConfig, beam_args: Sequence[str] = (), observer: Observer | None = None) -> Plan:
    """Returns the plan, made in this process. It writes nothing that stays.

    Raises:
        ConfigError: An option does not fit the input or the output.
        DataError: The input is missing, damaged, ambiguous or empty.
        TfpipeError: As for `check_places`.
    """
    check_places(config, beam_args)
    return _plan_here(recognize(config), observer)


def check_places(config: ShardConfig, beam_args: Sequence[str] = ()) -> None:
    """Checks the stores and the output before anything costs time, and configures the file systems of this process.

    Args:
        config: The configuration of the job.
        beam_args: The arguments for Beam; its file systems read some of them.

    Raises:
        ConfigError: An option does not go with the output.
        MissingDependencyError: A package is not installed that an option needs, or the native library is not there.
        DataError: A store cannot be reached.
    """
    library.load()
    job_stores.configure(beam_args)
    file_io.check_stores((*config.inputs, config.output))
    check_dataset_output(config, config.inputs)


def _plan_here(source: Input, observer: Observer | None) -> Plan:
    config, scratch = source.config, LocalScratch()
    scratch.save("input", source)
    scratch.save("pieces", (None,))
    readers = config.workers or usable_cpus()
    run_here(list_plan_steps(config), Planning(config, scratch, readers=readers, observer=observer))
    plan: Plan = scratch.load("cut")
    return plan


def _plan_by_tasks(source: Input, scratch: Scratch, beam_args: Sequence[str], observer: ShardObserver) -> Plan:
    config, pieces, runner = source.config, source.cut(), make_runner(beam_args)
    scratch.save("pieces", pieces)
    scratch.save("input", source)
    planning = Planning(
        config,
        scratch,
        workers=runner.get_pool_workers(config.workers),
        file_options=job_stores.get_options(),
        versions=tuple(get_planner_versions().items()),
    )
    work = WorkDir(file_io.resolve_links(config.output))
    job = Job(config, work, f"plan-{config.input.rpartition('/')[2]}", len(pieces))
    run_steps(job, list_plan_steps(config), planning, runner, beam_args, observer)
    plan: Plan = scratch.load("cut")
    return plan
