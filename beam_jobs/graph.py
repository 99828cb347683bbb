"""The Beam graph of steps: a line, in which a step begins when the one before it has ended.

An element is the number of a task, and then what the task returns. What tasks read and write are files. The sum of a
step's results is one element, from which the tasks of the next step are counted:

```
0 -> numbers -> spread -> task -> sum -> finish -> numbers -> spread -> ...
```

So the graph is as small for a billion images as for ten, and it has one leaf, so that every runner executes all of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.plan.step import Step, StepSettings, add_results, run_tasks
from beam_jobs.runners.base import Job, Runner, ShardObserver
from beam_jobs.runners.beam_errors import unwrap_errors
from beam_jobs.runners.metrics import ShardMetrics


def run_steps(
    job: Job,
    steps: Sequence[Step[Any]],
    settings: StepSettings,
    runner: Runner,
    observer: ShardObserver,
) -> None:
    """Runs steps as a graph of their own.

    Args:
        job: The job.
        steps: The steps.
        settings: The settings of the steps.
        runner: The runner.
        observer: The observer of the job's progress.

    Raises:
        DataError: A task failed, or a worker died.
    """
    with runner.watch(job, observer), unwrap_errors(explains_all=runner.explains_all), runner.prepare(job):
        pipeline = beam.Pipeline(runner=runner.make_beam_runner(job), options=runner.options)
        add_steps(pipeline | "Create" >> beam.Create([0], reshuffle=False), steps, settings)
        runner.submit(pipeline, observer)
        runner.wait()


def add_steps(start: Any, steps: Sequence[Step[Any]], settings: StepSettings) -> Any:
    """Adds steps to a graph, and returns the one element that comes out when the last of them has ended.

    Args:
        start: A collection of one element, whose value is not used.
        steps: The steps.
        settings: The settings of the steps.
    """
    for step in steps:
        numbers = start | f"{step.name}: number" >> beam.FlatMap(partial(_count_up, step, settings))
        results = (
            numbers | f"{step.name}: spread" >> beam.Reshuffle() | step.name >> beam.ParDo(_TaskFn(step, settings))
        )
        total = results | f"{step.name}: sum" >> beam.CombineGlobally(_SumFn(step))
        start = total | f"{step.name}: finish" >> beam.Map(partial(_finish, step, settings))
    return start


def _count_up(step: Step[Any], settings: StepSettings, _: int) -> Iterator[int]:
    yield from range(step.count_tasks(settings.open()))


def _finish(step: Step[Any], settings: StepSettings, total: Any) -> int:
    step.finish(settings.open(), total)
    return 0


class _SumFn(beam.CombineFn):
    """The sum of the results of tasks."""

    def __init__(self, step: Step[Any]) -> None:
        super().__init__()
        self._step = step

    def create_accumulator(self) -> Any:
        return self._step.start()

    def add_input(self, accumulator: Any, result: Any) -> Any:
        return add_results(accumulator, result)

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        return reduce(add_results, accumulators, self._step.start())

    def extract_output(self, accumulator: Any) -> Any:
        return accumulator


class _TaskFn(beam.DoFn):
    """The work of a Beam worker: each task in its own process, or all tasks of a bundle in a pool of processes."""

    def __init__(self, step: Step[Any], settings: StepSettings) -> None:
        super().__init__()
        self._step, self._settings = step, settings
        self._metrics = ShardMetrics() if step.writes_shards else None

    def setup(self) -> None:
        self._shared = self._settings.open()
        if self._metrics is not None and not self._settings.workers:
            self._shared = replace(self._shared, meter=self._metrics.count_image)

    def start_bundle(self) -> None:
        self._waiting: list[int] = []
        self._watched: list[Any] = []

    def process(self, number: int) -> Iterator[Any]:
        if self._settings.workers:
            self._waiting.append(number)
        else:
            result = self._step.run(self._shared, number)
            self._look_at(result, by_image=True)
            yield result

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if not self._waiting:
            return
        window = GlobalWindow()
        total = self._step.start()  # of the whole bundle: the results of many tasks would take memory
        for result in run_tasks(self._step, self._waiting, self._shared, self._settings):
            self._look_at(result, by_image=False)
            total = add_results(total, result)
        yield WindowedValue(total, window.max_timestamp(), (window,))

    def _look_at(self, result: Any, *, by_image: bool) -> None:
        if self._metrics is not None:
            self._metrics.count_shard(result, by_image=by_image)
        self._step.watch(self._shared, result, self._watched)
