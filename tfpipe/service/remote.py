"""RemoteMaker: a maker of batches like any other, whose batches workers make, equal to the bit."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfpipe.engine.batch import Batch
from tfpipe.engine.clocks import Clocks
from tfpipe.engine.mixed_batch import AnyMaker, AnyPlan
from tfpipe.service.plans import describe_plan

if TYPE_CHECKING:
    from tfpipe.service.client import WorkerClock, Workers

_REQUESTS, _STORE_REQUESTS = 2, 6
"""The requests that each worker has at once: it makes one batch while it sends another. From an object store it reads
several, because each is waited for."""
_MOST_LOCAL = 8  # steps that this host makes are ahead beside those of workers


def serve_remotely(maker: AnyMaker) -> AnyMaker:
    """Returns a maker whose batches workers make, if the options name a `service`; otherwise the maker itself."""
    return RemoteMaker(maker) if maker.plan.config.service.workers else maker


class RemoteMaker:
    """A maker of any batch of a plan, whose batches workers make. Threads may share it; a pickled one connects anew."""

    def __init__(self, maker: AnyMaker, workers: Workers | None = None) -> None:
        self._local = maker
        self.plan: AnyPlan = maker.plan
        self.clocks: Clocks = maker.clocks
        self._wire_plan = describe_plan(maker.plan)
        self._per_worker = _STORE_REQUESTS if maker.is_remote else _REQUESTS
        self._workers = self._connect() if workers is None else workers
        if workers is None:
            self._workers.check()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_workers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._workers = self._connect()

    def _connect(self) -> Workers:
        from tfpipe.service.client import Workers  # loads Arrow, which other makers do not need

        options = self.plan.config.service
        return Workers(options, self._per_worker if options.share == "auto" else None)

    @property
    def worker_clocks(self) -> list[WorkerClock]:
        """The figures of each worker."""
        return self._workers.clocks

    @property
    def is_remote(self) -> bool:
        """Whether it holds connections: it does."""
        return True

    @property
    def steps_ahead(self) -> int:
        """The steps that are made at once: so many that each worker has its requests."""
        share, remote = self.plan.config.service.share, self._per_worker * len(self.plan.config.service.workers)
        if share == "auto":
            return remote + _REQUESTS
        return min(math.ceil(remote / (1 - share)), remote + _MOST_LOCAL)

    @property
    def steps_asked(self) -> int:
        """The steps for which workers are asked: all of these."""
        return self.steps_ahead

    @property
    def block_steps(self) -> int:
        """The steps that use up a block of records: each worker reads its own."""
        return 1

    def list_numbers(self, epoch: int, step: int) -> Any:
        """Lists nothing, because workers list the records."""
        return None

    def announce(self, numbers: Any, soon: Sequence[Any] = ()) -> None:
        """Does nothing, because workers read the records."""

    def for_rows(self, first: int, end: int) -> RemoteMaker:
        """Returns a maker of some of the rows of this host's batches, by the same connections."""
        return RemoteMaker(self._local.for_rows(first, end), self._workers)

    def make(self, epoch: int, step: int, threads: int = 1) -> Batch:
        """Makes one batch; arguments, result and errors are those of `BatchMaker.make`, and those of `read`."""
        return self.decode(self.read(epoch, step), threads)

    def read(self, epoch: int, step: int, numbers: Any = None) -> Any:
        """Gets the batch of a step from a worker, or reads its records if this host makes it."""
        share = self.plan.config.service.share
        if share != "auto" and is_local(epoch * self.plan.steps_per_epoch + step, share):
            return self._local.read(epoch, step)
        begin, threads = time.perf_counter(), self.plan.config.max_threads
        rows = [self.plan.rows.start, len(self.plan.rows)]
        ticket = {"plan": self._wire_plan, "epoch": epoch, "step": step, "rows": rows}
        batch, came = self._workers.ask(ticket, lambda: self._local.make(epoch, step, threads))
        if came:
            self.clocks.add("read", time.perf_counter() - begin, 0.0)
        return batch

    def decode(self, stored: Any, threads: int = 1) -> Batch:
        """Returns a batch that is made, or makes the arrays if this host has read only the records."""
        return stored if isinstance(stored, dict) else self._local.decode(stored, threads)

    def make_example_image(self) -> Any:
        """Returns the result of the transform for the first image, which this host makes."""
        return self._local.make_example_image()


def is_local(step: int, share: float) -> bool:
    """Returns whether a host makes this step of a run itself, if it makes a share of them, spread evenly."""
    return math.floor((step + 1) * share) > math.floor(step * share)
