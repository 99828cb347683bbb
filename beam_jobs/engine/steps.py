"""The steps of work that tasks do on the runner. The engine makes a plan in these:

```
list pieces -> [hash images -> choose copies] -> count images -> cut parts
```

A step has tasks that know nothing of each other. The sum of their results decides what the next step needs to know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from beam_jobs.config import ShardConfig
from beam_jobs.engine.copy_steps import choose_copies, hash_run
from beam_jobs.engine.count_step import count_run, cut
from beam_jobs.engine.cut_step import cut_part, finish_plan
from beam_jobs.engine.list_step import EngineConfig, list_piece, resolve

Shared = TypeVar("Shared")


@dataclass(frozen=True)
class Step(Generic[Shared]):
    """A step. Its functions get what all tasks share, such as an `EngineConfig`.

    Attributes:
        name: The name.
        count_tasks: A function that returns the number of tasks.
        run: A function that does the task of a number, and returns a result that can be added to another, or None.
        finish: A function that gets the sum of all results.
    """

    name: str
    count_tasks: Callable[[Shared], int]
    run: Callable[[Shared, int], Any]
    finish: Callable[[Shared, Any], None]


class StepSettings(Protocol):
    """The settings of steps. Beam pickles them and sends them to the workers."""

    @property
    def workers(self) -> int:
        """The number of processes that each Beam worker starts. 0: the Beam worker does the tasks itself."""

    def configure(self) -> None:
        """Prepares this process for tasks."""

    def open(self) -> Any:
        """Prepares this process, and returns what all tasks share."""


def list_steps(config: ShardConfig) -> list[Step[EngineConfig]]:
    """Returns the steps that make a plan, in their order."""
    copies = [
        Step("Hash images", _count_runs, hash_run, do_nothing),
        Step("Choose copies", _count_buckets, choose_copies, do_nothing),
    ]
    return [
        Step("List pieces", _count_pieces, list_piece, resolve),
        *(copies if config.drop_duplicates else ()),
        Step("Count images", _count_runs, count_run, cut),
        Step("Cut parts", _count_parts, cut_part, finish_plan),
    ]


def add_results(first: Any, second: Any) -> Any:
    """Returns the sum of two results; None counts as nothing."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _count_pieces(engine: EngineConfig) -> int:
    return len(engine.scratch.load("pieces").pieces)


def _count_runs(engine: EngineConfig) -> int:
    return len(engine.scratch.load("listed").runs)


def _count_buckets(engine: EngineConfig) -> int:
    count: int = engine.scratch.load("listed").num_buckets
    return count


def _count_parts(engine: EngineConfig) -> int:
    return len(engine.scratch.load("counted").parts)


def do_nothing(shared: Any, result: None) -> None:
    """Ends a step whose tasks have no result."""
