"""Runs work on many files in worker processes, and shares counters that show an observer the progress."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from tfpipe.system import process_pool
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.process_pool import WorkerPool
from tfpipe.system.progress import Observer, Progress, poll_progress

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_on_files(
    pool: WorkerPool,
    function: Callable[..., Result],
    jobs: Sequence[tuple[Job, int]],
    shared: tuple[object, ...],
    *,
    workers: int | None = None,
    observer: Observer | None = None,
) -> list[Result]:
    """Calls `function(*shared, counters, job)` for each job, given with its bytes; by default in a process per core."""
    count = min(usable_cpus() if workers is None else workers, len(jobs))
    with _share_counters(sum(size for _, size in jobs), observer or Observer()) as counters:
        if not count:
            return [function(*shared, counters, job) for job, _ in jobs]
        # The largest file comes first, so that the last one to finish is small.
        numbered = sorted(((k, job) for k, (job, _) in enumerate(jobs)), key=lambda item: -jobs[item[0]][1])
        results = dict(pool.map_unordered(_run, numbered, count, shared=(function, (*shared, counters))))
    return [results[k] for k in range(len(jobs))]


def _run(function: Callable[..., Result], shared: tuple[object, ...], item: tuple[int, object]) -> tuple[int, Result]:
    return item[0], function(*shared, item[1])


@contextlib.contextmanager
def _share_counters(num_bytes: int, observer: Observer) -> Iterator[Any]:
    """Yields the counters that workers add to: bytes, records and damages. The observer sees their last state too."""
    counters: Any = process_pool.context().Array("q", 3)

    def read() -> Progress:
        with counters.get_lock():
            done, records, damaged = counters[:]
        return Progress(done, num_bytes, "bytes", bytes=done, records=records, bad=damaged)

    with poll_progress(read, observer):
        yield counters
