"""How far the workers of a verification or a repair are."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from tfpipe.system import process_pool

_POLL_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """Sums over all files so far."""

    bytes: int
    num_bytes: int
    records: int
    damaged: int


@contextlib.contextmanager
def watch(num_bytes: int, on_progress: Callable[[Progress], None] | None) -> Iterator[Any]:
    """Counters to give to the workers; calls `on_progress` from a thread while the block runs, and once at its end."""
    counters: Any = process_pool.context().Array("q", 3)
    if on_progress is None:
        yield counters
        return
    stop = Event()

    def tell() -> None:
        with counters.get_lock():
            done, records, damaged = counters[:]
        on_progress(Progress(done, num_bytes, records, damaged))

    def poll() -> None:
        while not stop.wait(_POLL_EVERY_S):
            tell()

    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield counters
    finally:
        stop.set()
        thread.join()
        tell()
