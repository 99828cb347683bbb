"""A step of work: tasks that know nothing of each other, and an end that gets the sum of their results.

The tasks exchange files in a folder, see `scratch`. `run_here` does them in this process, or in a pool of processes of
this machine; `beam_jobs.graph` runs the same steps wherever Beam does.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from beam_jobs.process_pool import map_unordered

Shared = TypeVar("Shared")


def _return_nothing() -> None:
    """Returns None, the sum of no results."""


def _look_away(shared: Any, result: Any, kept: list[Any]) -> None:
    """Does nothing with a result."""


@dataclass(frozen=True)
class Step(Generic[Shared]):
    """A step. Its functions get what all tasks share, such as a `Planning`.

    Attributes:
        name: The name.
        count_tasks: A function that returns the number of tasks.
        run: A function that does the task of a number, and returns a result that can be added to another, or None.
        finish: A function that gets the sum of all results.
        start: A function that returns the sum of no results.
        watch: A function that gets each result as it comes, and a list in which it may keep some. It may end the job.
        writes_shards: Whether the results are written shards, whose images are counted in metrics.
    """

    name: str
    count_tasks: Callable[[Shared], int]
    run: Callable[[Shared, int], Any]
    finish: Callable[[Shared, Any], None]
    start: Callable[[], Any] = _return_nothing
    watch: Callable[[Shared, Any, list[Any]], None] = _look_away
    writes_shards: bool = False


class StepSettings(Protocol):
    """The settings of steps. Beam pickles them and sends them to the workers."""

    @property
    def workers(self) -> int:
        """The number of processes that do the tasks, for each worker of Beam. 0: the worker itself does them."""

    def configure(self) -> None:
        """Prepares this process for tasks."""

    def open(self) -> Any:
        """Prepares this process, and returns what all tasks share."""


def run_here(steps: Sequence[Step[Shared]], shared: Shared, settings: StepSettings | None = None) -> None:
    """Does all tasks of some steps on this machine.

    Args:
        steps: The steps.
        shared: The object that all tasks share.
        settings: The settings, which say how many processes do the tasks. None: this one does.
    """
    for step in steps:
        total, watched = step.start(), list[Any]()
        for result in run_tasks(step, range(step.count_tasks(shared)), shared, settings):
            step.watch(shared, result, watched)
            total = add_results(total, result)
        step.finish(shared, total)


def run_tasks(
    step: Step[Shared], numbers: Sequence[int], shared: Shared, settings: StepSettings | None
) -> Iterator[Any]:
    """Does tasks of a step and yields their results, in any order; arguments as for `run_here`."""
    workers = min(settings.workers, len(numbers)) if settings else 0
    if settings and workers:
        yield from map_unordered(step.run, numbers, workers, shared=(shared,), set_up=settings.configure)
    else:
        yield from map(partial(step.run, shared), numbers)


def add_results(first: Any, second: Any) -> Any:
    """Returns the sum of two results; None counts as nothing. The first may become the sum."""
    if first is None or second is None:
        return second if first is None else first
    first += second
    return first


def do_nothing(shared: Any, result: Any) -> None:
    """Ends a step whose tasks have no result."""
