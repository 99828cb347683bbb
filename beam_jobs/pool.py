"""Runs a function on many items in worker processes of this machine, and ends at once when that cannot go on.

Beam's own multi-process mode was slower in every trial (it deals work out in advance and each worker imports Beam)
and waits for ever when a worker is killed; `concurrent.futures` says so within seconds.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tfpipe.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Enough to keep every worker busy, few enough that stopping early leaves little behind.
_QUEUED_PER_WORKER = 4
_PRELOAD = ["beam_jobs.writer"]

_running: set[ProcessPoolExecutor] = set()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_unordered(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[object, ...] = (),
) -> Iterator[Result]:
    """Yields results as they come, in no order; an item is taken up when a worker is free for it.

    Args:
        function: A function at the top of a module, with an argument and a result that can be pickled.
        items: Taken one by one, so that they may be many.
        workers: Processes.
        initializer: Called in each process first.
        initargs: Its arguments.

    Raises:
        DataError: A worker process died. What `function` raises comes as it is.
    """
    context = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(_PRELOAD)
    executor = ProcessPoolExecutor(workers, context, _start_worker, (initializer, initargs))
    _running.add(executor)
    pending: set[Future[Result]] = set()
    try:
        for item in items:
            pending.add(executor.submit(function, item))
            if len(pending) >= workers * _QUEUED_PER_WORKER:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
        executor.shutdown()
    except BrokenProcessPool as error:
        raise DataError(
            "A worker process died: it was killed, or memory ran out. Finished shards are kept; run the same command "
            "again to go on, with fewer --workers if memory was short."
        ) from error
    finally:
        _kill(executor)
        _running.discard(executor)


def kill_all() -> None:
    """Kills the workers of every pool of this process, as an interrupted run must."""
    for executor in tuple(_running):
        _kill(executor)


def _kill(executor: ProcessPoolExecutor) -> None:
    # `_processes` is None once the pool was shut down in order; there is no public way to them before Python 3.14.
    for process in tuple((executor._processes or {}).values()):
        process.kill()
    executor.shutdown(wait=False, cancel_futures=True)


def _start_worker(initializer: Callable[..., None] | None, initargs: tuple[object, ...]) -> None:
    # Ctrl-C reaches every process of the terminal; the parent decides what becomes of the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if initializer is not None:
        initializer(*initargs)


def _die_with_parent() -> None:
    """Ends a worker whose parent was killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
