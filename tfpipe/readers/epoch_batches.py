"""The batches of a process as an iterable of epochs, which the readers for NumPy and JAX are.

```
batches = EpochBatches(maker, start_step, threads, finish)
for batch in batches: ...       # to the end of the epoch; the next pass goes on
```
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

from tfpipe.engine.ahead import Passes, list_positions, make_ahead
from tfpipe.engine.batch import Batch
from tfpipe.engine.clocks import Clocks
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.mixed_batch import AnyMaker, AnyPlan
from tfpipe.engine.position import Position, Resumable, Split
from tfpipe.readers.open_data import describe_reader, list_splits, locate
from tfpipe.system import notebook
from tfpipe.system.arguments import check_count


class EpochBatches(Resumable):
    """The batches of one process, as an iterable of epochs.

    Args:
        maker: The maker of the batches.
        start_step: The global step of the run with which training begins, in whichever epoch it lies.
        num_threads: The number of threads that decode. None: one for each core, or what `cpu_budget` leaves.
        finish: A function that turns a batch of the engine into one of the trainer, in a thread.

    Attributes:
        config: The options of the pipeline.
    """

    def __init__(
        self, maker: AnyMaker, start_step: int, num_threads: int | None, finish: Callable[[Batch], Any]
    ) -> None:
        self.config: PipelineConfig = maker.plan.config
        self._maker = maker
        start = partial(_make_on_host, maker, num_threads, finish)  # which must not hold this object
        self._passes = Passes(start, len(self), locate(maker, start_step), self.config.training)

    def __len__(self) -> int:
        """Returns the number of batches in a whole epoch."""
        return self._maker.plan.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self._passes)

    def __repr__(self) -> str:
        return describe_reader(self, self._maker.plan, self.position)

    def _repr_html_(self) -> str | None:
        return notebook.show(self)

    @property
    def plan(self) -> AnyPlan:
        """The plan of the batches."""
        return self._maker.plan

    @property
    def clocks(self) -> Clocks:
        """The time that this process spent on batches, by phase."""
        return self._maker.clocks

    @property
    def position(self) -> Position:
        """The position of the batch that comes next."""
        return self._passes.position

    @position.setter
    def position(self, position: Position) -> None:
        self._passes.position = position

    @property
    def _run_data(self) -> list[Split]:
        return list_splits(self._maker.plan)

    @property
    def _run_seed(self) -> int:
        return self.config.seed


def _make_on_host(
    maker: AnyMaker, num_threads: int | None, finish: Callable[[Batch], Any], begin: Position
) -> Generator[Any]:
    """Begins to make batches at a position, without end in training."""
    config = maker.plan.config
    threads = config.max_threads if num_threads is None else num_threads
    check_count("num_threads", threads, 1)
    positions = list_positions(begin, maker.plan.steps_per_epoch, config.training)
    return make_ahead(maker, positions, threads, finish, config.prefetch_batches)
