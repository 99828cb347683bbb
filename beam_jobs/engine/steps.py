"""The steps in which the engine makes a plan.

```
list pieces -> [hash images -> choose copies] -> count images -> cut parts
```

A step has tasks that know nothing of each other. The sum of their results decides what the next step needs to know.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from beam_jobs.config import ShardConfig
from beam_jobs.engine.copy_steps import choose_copies, hash_run
from beam_jobs.engine.count_step import count_run, cut
from beam_jobs.engine.cut_step import cut_part, finish_plan
from beam_jobs.engine.list_step import EngineConfig, list_piece, resolve


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes:
        name: The name.
        count_tasks: A function that returns the number of tasks.
        run: A function that does the task of a number, and returns a result that can be added to another, or None.
        finish: A function that gets the sum of all results.
    """

    name: str
    count_tasks: Callable[[EngineConfig], int]
    run: Callable[[EngineConfig, int], Any]
    finish: Callable[[EngineConfig, Any], None]


def list_steps(config: ShardConfig) -> list[Step]:
    """Returns the steps in their order."""
    copies = [
        Step("Hash images", _count_runs, hash_run, _do_nothing),
        Step("Choose copies", _count_buckets, choose_copies, _do_nothing),
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


def _do_nothing(engine: EngineConfig, result: None) -> None:
    pass
