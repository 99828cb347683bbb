"""The Beam graph in which the engine makes a plan: a line of steps.

An element is the number of a task; what the tasks read and write are files. The sum of a step's results is one element,
from which the tasks of the next step are counted:

```
0 -> numbers -> spread -> task -> sum -> finish -> numbers -> spread -> ...
```
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.engine.list_step import EngineConfig, make_pieces
from beam_jobs.engine.settings import PlanSettings
from beam_jobs.engine.steps import Step, add_results, list_steps
from beam_jobs.plan.split_and_shard import Plan
from beam_jobs.process_pool import map_unordered
from beam_jobs.runners.base import Job, ShardObserver
from beam_jobs.runners.beam_errors import unwrap_errors
from beam_jobs.runners.choose import make_runner
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.shards.worker_check import get_planner_versions
from beam_jobs.storage import filesystem


def plan_by_engine(engine: EngineConfig, beam_args: Sequence[str], observer: ShardObserver) -> Plan:
    """Makes a plan by the steps of the engine, on the runner of the job.

    Args:
        engine: The configuration of the job, and a new folder for the files of the tasks.
        beam_args: Arguments for Beam.
        observer: The observer of the job's progress.

    Raises:
        ConfigError: An option does not fit the input.
        DataError: The input cannot be used, or a worker died.
    """
    config, scratch = engine.config, engine.scratch
    with filesystem.explain_os_errors(f"read {config.input}"):
        pieces = make_pieces(config)
    scratch.save("pieces", pieces)
    steps = list_steps(config)
    runner = make_runner(beam_args)
    if runner.runs_whole_graph:
        _run_graph(engine, steps, None, beam_args, observer)
    else:
        for step in steps:
            results = _run_graph(engine, [step], step.count_tasks(engine), beam_args, observer)
            step.finish(engine, reduce(add_results, results, None))
    plan: Plan = scratch.load("cut")
    return plan


def _run_graph(
    engine: EngineConfig,
    steps: Sequence[Step],
    num_tasks: int | None,
    beam_args: Sequence[str],
    observer: ShardObserver,
) -> list[Any]:
    """Runs steps as one graph.

    Args:
        engine: The settings of the tasks.
        steps: The steps.
        num_tasks: The number of tasks of the only step, for a runner that spreads only what it finds in the graph; its
            results come back. None: the workers count the tasks of each step.
        beam_args: Arguments for Beam.
        observer: The observer of the job's progress.
    """
    config = engine.config
    runner = make_runner(beam_args)  # anew for every graph, because preparing a graph changes the options
    work = WorkDir(filesystem.resolve_links(config.output))
    job = Job(config, work, f"plan-{config.input.rpartition('/')[2]}", num_tasks or steps[0].count_tasks(engine))
    settings = PlanSettings(
        engine,
        runner.get_pool_workers(config.workers),
        filesystem.get_options(),
        tuple(get_planner_versions().items()),
    )
    with unwrap_errors(), runner.prepare(job):
        pipeline = beam.Pipeline(runner=runner.make_beam_runner(job), options=runner.options)
        build_plan_graph(pipeline, steps, settings, num_tasks)
        runner.submit(pipeline, observer)
        return runner.wait()


def build_plan_graph(
    pipeline: beam.Pipeline, steps: Sequence[Step], settings: PlanSettings, num_tasks: int | None = None
) -> None:
    """Adds the steps to a pipeline.

    Args:
        pipeline: An empty pipeline.
        steps: The steps.
        settings: The settings of the steps.
        num_tasks: The number of tasks of the only step, whose results are the output; None: the workers count.
    """
    if num_tasks is not None:
        (step,) = steps
        numbers = pipeline | "Create" >> beam.Create(range(num_tasks), reshuffle=False)
        _ = numbers | step.name >> beam.ParDo(_TaskFn(step, settings))
        return
    count = pipeline | "Create" >> beam.Create([0], reshuffle=False)
    for step in steps:
        numbers = count | f"{step.name}: number" >> beam.FlatMap(partial(_count_up, step, settings))
        results = (
            numbers | f"{step.name}: spread" >> beam.Reshuffle() | step.name >> beam.ParDo(_TaskFn(step, settings))
        )
        total = results | f"{step.name}: sum" >> beam.CombineGlobally(_SumFn())
        count = total | f"{step.name}: finish" >> beam.Map(partial(_finish, step, settings))


def _count_up(step: Step, settings: PlanSettings, _: int) -> Iterator[int]:
    settings.configure()
    yield from range(step.count_tasks(settings.engine))


def _finish(step: Step, settings: PlanSettings, total: Any) -> int:
    settings.configure()
    step.finish(settings.engine, total)
    return 0


class _SumFn(beam.CombineFn):
    """The sum of the results of tasks."""

    def create_accumulator(self) -> Any:
        return None

    def add_input(self, accumulator: Any, result: Any) -> Any:
        return add_results(accumulator, result)

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        return reduce(add_results, accumulators, None)

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator


class _TaskFn(beam.DoFn):
    """The work of a Beam worker: each task in its own process, or all tasks of a bundle in a pool of processes."""

    def __init__(self, step: Step, settings: PlanSettings) -> None:
        super().__init__()
        self._step, self._settings = step, settings

    def setup(self) -> None:
        self._settings.configure()

    def start_bundle(self) -> None:
        self._waiting: list[int] = []

    def process(self, number: int) -> Iterator[Any]:
        if self._settings.workers:
            self._waiting.append(number)
        else:
            yield self._step.run(self._settings.engine, number)

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self._waiting:
            return
        window = GlobalWindow()
        workers = min(self._settings.workers, len(self._waiting))
        shared = (self._settings.engine,)
        total = None  # of the whole bundle: the results of many tasks would take memory
        for result in map_unordered(
            self._step.run, self._waiting, workers, shared=shared, set_up=self._settings.configure
        ):
            total = add_results(total, result)
        yield WindowedValue(total, window.max_timestamp(), (window,))
