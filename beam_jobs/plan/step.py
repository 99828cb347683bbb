"""A step of work: tasks that know nothing of each other, and an end that gets the sum of their results.

The tasks exchange files in a folder, see `scratch`. `run_here` does them one after another in this process;
`beam_jobs.graph` runs the same steps wherever Beam does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

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
        """The number of processes that each Beam worker starts. 0: the Beam worker does the tasks itself."""

    def configure(self) -> None:
        """Prepares this process for tasks."""

    def open(self) -> Any:
        """Prepares this process, and returns what all tasks share."""


def run_here(steps: Sequence[Step[Shared]], shared: Shared) -> None:
    """Does all tasks of some steps in this process."""
    for step in steps:
        total = step.start()
        for number in range(step.count_tasks(shared)):
            total = add_results(total, step.run(shared, number))
        step.finish(shared, total)


def add_results(first: Any, second: Any) -> Any:
    """Returns the sum of two results; None counts as nothing. The first may become the sum."""
    if first is None or second is None:
        return second if first is None else first
    first += second
    return first


def do_nothing(shared: Any, result: Any) -> None:
    """Ends a step whose tasks have no result."""
