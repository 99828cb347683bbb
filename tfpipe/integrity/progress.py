"""Counters that worker processes share, from which an observer learns their progress."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tfpipe.system import process_pool
from tfpipe.system.progress import Observer, Progress, poll_progress


@contextlib.contextmanager
def shared_counters(num_bytes: int, observer: Observer) -> Iterator[Any]:
    """Yields the counters that workers add to: bytes, records and damages.

    Args:
        num_bytes: The bytes of all files.
        observer: The observer of the sums. It is called while the block runs, and once more at its end.
    """
    counters: Any = process_pool.context().Array("q", 3)

    def read() -> Progress:
        with counters.get_lock():
            done, records, damaged = counters[:]
        return Progress(done, num_bytes, "bytes", bytes=done, records=records, bad=damaged)

    with poll_progress(read, observer):
        yield counters
