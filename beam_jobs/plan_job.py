"""Makes the plan of a job: in this process, or by tasks that Beam runs where the shards will be written.

Loads Beam only for a plan of the engine.
"""

import contextlib
from collections.abc import Iterator, Sequence

from beam_jobs.config import ShardConfig
from beam_jobs.engine.choose import choose_planner
from beam_jobs.engine.list_step import EngineConfig
from beam_jobs.engine.scratch import Scratch
from beam_jobs.list_and_plan import check_places, plan_in_process
from beam_jobs.plan.split_and_shard import Plan
from beam_jobs.runners.base import ShardObserver
from beam_jobs.shards.output_dir import open_planning


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
    from beam_jobs.plan_graph import plan_by_engine

    with open_planning(config) as base:
        yield plan_by_engine(EngineConfig(config, Scratch(base)), beam_args, observer)
