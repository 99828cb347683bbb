"""Runs a function on many items in worker processes of this machine, and ends at once when that cannot go on."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from tfpipe.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Enough to keep every worker busy, few enough that stopping early leaves little behind.
_QUEUED_PER_WORKER = 4
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()

running: set[ProcessPoolExecutor] = set()
"""The pools of this process."""


@dataclass(frozen=True)
class Workers:
    """What the workers of a pool have in common."""

    preload: Sequence[str]
    """Modules that the process that forks them imports once for all."""
    death: str
    """The sentence for when one dies."""

    def start_early(self) -> None:
        """Lets the process that forks the workers import what they need while this one is busy with its own imports."""
        if _FORKS:
            multiprocessing.set_forkserver_preload(list(self.preload))
            forkserver.ensure_running()

    def map_unordered(
        self,
        function: Callable[..., Result],
        items: Iterable[Item],
        workers: int,
        *,
        shared: tuple[object, ...] = (),
        set_up: Callable[[], None] | None = None,
    ) -> Iterator[Result]:
        """Yields results as they come, in no order; an item is taken up when a worker is free for it.

        Args:
            function: Called as `function(*shared, item)`; at the top of a module that is cheap to import. Items and
                results are pickled.
            items: Taken one by one, so that they may be many.
            workers: Processes.
            shared: What every call needs; pickled once for each process.
            set_up: Called in each process first.

        Raises:
            DataError: A worker process died. What `function` raises comes as it is.
        """
        self.start_early()
        executor = ProcessPoolExecutor(workers, context(), _start_worker, (function, shared, set_up))
        running.add(executor)
        pending: set[Future[Result]] = set()
        try:
            for item in items:
                pending.add(executor.submit(_call, item))
                if len(pending) >= workers * _QUEUED_PER_WORKER:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
            executor.shutdown()
        except BrokenProcessPool as error:
            raise DataError(self.death) from error
        finally:
            _kill(executor)
            running.discard(executor)


def context() -> BaseContext:
    """By which workers are started; what they share, such as a counter, must be of it."""
    return multiprocessing.get_context("forkserver" if _FORKS else "spawn")


def kill_all() -> None:
    """Kills the workers of every pool of this process, as an interrupted run must."""
    for executor in tuple(running):
        _kill(executor)


def _kill(executor: ProcessPoolExecutor) -> None:
    # `_processes` is None once the pool was shut down in order; there is no public way to them before Python 3.14.
    for process in tuple((executor._processes or {}).values()):
        process.kill()
    executor.shutdown(wait=False, cancel_futures=True)


_bound: Callable[..., Any] | None = None  # of a worker process, which serves one pool in its life


def _start_worker(function: Callable[..., Any], shared: tuple[object, ...], set_up: Callable[[], None] | None) -> None:
    # Ctrl-C reaches every process of the terminal; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if set_up is not None:
        set_up()
    global _bound
    _bound = partial(function, *shared)


def _call(item: Any) -> Any:
    assert _bound is not None
    return _bound(item)


def _die_with_parent() -> None:
    """Ends a worker whose parent was killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
