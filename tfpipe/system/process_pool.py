"""Runs a function on many items in worker processes of this machine, and ends at once if a worker dies."""

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from tfpipe.errors import DataError
from tfpipe.system.child_process import defer_interrupts, die_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")

# Enough to keep every worker busy, few enough that stopping early leaves little behind.
_QUEUED_PER_WORKER = 4
_CLOSING_S = 2.0  # the longest wait for a pool to close its pipes, which takes milliseconds
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()

running: set[ProcessPoolExecutor] = set()
"""The pools of this process."""


@dataclass(frozen=True)
class WorkerPool:
    """The settings that the worker processes of a pool share."""

    preload: Sequence[str]  # modules that the fork server imports once
    death: str  # the error message if a worker dies
    runs_script: bool = False  # whether functions may come from the user's script, which each worker then runs again

    def start_early(self) -> None:
        """Starts the fork server, which imports the modules of `preload` while this process does its own imports."""
        if _FORKS:
            multiprocessing.set_forkserver_preload(list(self.preload))
            with _without_current_folder():
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
        """Yields `function(*shared, item)` of each item, in the order in which the workers finish.

        The function must stand at the top of a module that is cheap to import. Items are taken one by one, so there may
        be any number of them; `shared` is pickled once for each process, which first calls `set_up`.
        """
        self.start_early()
        executor = ProcessPoolExecutor(workers, context(), _start_worker, (function, shared, set_up))
        running.add(executor)
        pending: set[Future[Result]] = set()
        try:
            for item in items:
                # `submit` may start a process. If an interrupt came before the pool knows that process, nobody would
                # kill it, and it would print a traceback when it does not find its parent.
                with defer_interrupts(), contextlib.nullcontext() if self.runs_script else _without_script():
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


@contextlib.contextmanager
def _without_current_folder() -> Iterator[None]:
    """Keeps the fork server that is started here from importing modules of the current folder.

    The server of Python before 3.12.8 and 3.13.1 looks there first: in a checkout it would find tfpipe's sources in
    place of the installed package. Workers take their import path and their folder from this process.
    """
    folder = os.getcwd()
    os.chdir(os.sep)
    try:
        yield
    finally:
        os.chdir(folder)


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Keeps the workers started in the block from running the user's script again: it may lack a `__main__` guard."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def context() -> BaseContext:
    """Returns the context that starts the workers; objects that they share, such as a counter, must come from it."""
    return multiprocessing.get_context("forkserver" if _FORKS else "spawn")


def kill_all() -> None:
    """Kills the workers of every pool of this process, as an interrupted run must."""
    for executor in tuple(running):
        _kill(executor)


def _kill(executor: ProcessPoolExecutor) -> None:
    # Both attributes are None once the pool has shut down. No public attribute has the processes before Python 3.14.
    for process in tuple((executor._processes or {}).values()):
        process.kill()
    manager: Any = executor._executor_manager_thread
    executor.shutdown(wait=False, cancel_futures=True)
    if manager is not None:
        # The manager closes the pool's pipes now. Before Python 3.13, the exit of this process writes to them unchecked
        # and prints a traceback. `shutdown(wait=True)` could wait forever for the pipes of a killed worker.
        manager.join(_CLOSING_S)


_bound: Callable[..., Any] | None = None  # set in a worker process, which serves one pool in its life


def _start_worker(function: Callable[..., Any], shared: tuple[object, ...], set_up: Callable[[], None] | None) -> None:
    # Ctrl-C reaches every process of the terminal; the parent decides whether the workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    gc.freeze()  # no collection looks through the imported modules, nor makes copies of their pages
    if set_up is not None:
        set_up()
    global _bound
    _bound = partial(function, *shared)


def _call(item: Any) -> Any:
    assert _bound is not None
    return _bound(item)
