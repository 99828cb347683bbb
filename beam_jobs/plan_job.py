"""Makes the plan of a job: in this process, or by tasks that Beam runs where the shards will be written.

Loads Beam only for a plan of the engine.
"""

import contextlib
from collections.abc import Iterator, Sequence

from beam_jobs.config import ShardConfig
from beam_jobs.engine.choose import choose_planner
from beam_jobs.engine.list_step import EngineConfig, make_pieces
from beam_jobs.engine.scratch import Scratch
from beam_jobs.engine.settings import PlanSettings
from beam_jobs.engine.steps import list_steps
from beam_jobs.list_and_plan import check_places, plan_in_process
from beam_jobs.plan.split_and_shard import Plan
from beam_jobs.runners.base import Job, ShardObserver
from beam_jobs.runners.choose import make_runner
from beam_jobs.shards.output_dir import open_planning
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.worker_check import get_planner_versions
from beam_jobs.storage import filesystem


@contextlib.contextmanager
def make_plan(
    config: ShardConfig, beam_args: Sequence[str] = (), observer: ShardObserver | None = None
) -> Iterator[Plan]:
    """Yields the plan, by the planner that the configuration or the size of the input asks for.

    A plan of the engine is valid inside the block, and the output is locked there.

    Args:
        config: The options of the job.
        beam_args: Arguments for Beam.
        observer: The observer of the job's progress. It gets the choice of the planner.

    Raises:
        ConfigError: An option does not fit the input, the output or the runner.
        DataError: The input cannot be used, or a worker died.
    """
    observer = observer or ShardObserver()
    check_places(config, beam_args)
    choice = choose_planner(config)
    observer.planner(choice)
    if not choice.is_engine:
        yield plan_in_process(config, observer)
        return
    with open_planning(config) as base:
        yield _plan_by_engine(EngineConfig(config, Scratch(base)), beam_args, observer)


def _plan_by_engine(engine: EngineConfig, beam_args: Sequence[str], observer: ShardObserver) -> Plan:
    """Makes a plan by the steps of the engine, on the runner of the job.

    Args:
        engine: The configuration of the job, and a new folder for the files of the tasks.
        beam_args: Arguments for Beam.
        observer: The observer of the job's progress.
    """
    from beam_jobs.step_graph import run_steps

    config, scratch = engine.config, engine.scratch
    with filesystem.explain_os_errors(f"read {config.input}"):
        pieces = make_pieces(config)
    scratch.save("pieces", pieces)
    work = WorkDir(filesystem.resolve_links(config.output))
    settings = PlanSettings(
        engine,
        make_runner(beam_args).get_pool_workers(config.workers),
        filesystem.get_options(),
        tuple(get_planner_versions().items()),
    )
    job = Job(config, work, f"plan-{config.input.rpartition('/')[2]}", len(pieces.pieces))
    run_steps(job, list_steps(config), settings, beam_args, observer)
    plan: Plan = scratch.load("cut")
    return plan
