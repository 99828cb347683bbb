"""The clocks of the engine: the wall time and the processor time of each phase of making batches.

Threads run phases at the same time, so the sum of the wall times may be more than the time that passed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from tfpipe.native import library
from tfpipe.system.fork_lock import make_fork_lock

Phase = Literal["read", "parse", "decode", "transform", "batch", "batch_transform"]
"""The phases of a batch: list, find and read records; parse them; decode images; the user's function for an image;
seeds, boxes, labels and other features; the user's function for a batch."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_LOCK = make_fork_lock()  # guards the clocks of all makers, and is held for a moment in each phase
_helped = threading.local()


@dataclass(frozen=True)
class PhaseTime:
    """The time that threads spent in a phase."""

    calls: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0  # the rest of `wall_s` is waiting, unless several threads worked


class Clocks:
    """The times of all phases of some batches. Threads may share it."""

    def __init__(self) -> None:
        self._times: dict[Phase, PhaseTime] = {}

    @contextmanager
    def measure(self, phase: Phase) -> Iterator[None]:
        """Adds the time that the `with` block takes to a phase, also if the block raises."""
        begin_s, begin_cpu_s = time.perf_counter(), read_cpu_s()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - begin_s, read_cpu_s() - begin_cpu_s)

    def add(self, phase: Phase, wall_s: float, cpu_s: float) -> None:
        """Adds time to a phase."""
        with _LOCK:
            before = self._times.get(phase, PhaseTime())
            self._times[phase] = PhaseTime(before.calls + 1, before.wall_s + wall_s, before.cpu_s + cpu_s)

    def read(self) -> dict[Phase, PhaseTime]:
        """Returns the time so far of each phase that has run."""
        with _LOCK:
            return dict(self._times)


def read_cpu_s() -> float:
    """Returns the processor seconds of this thread, with those of threads while they worked for it."""
    helped_ns: int = library.load().tfpipe_helped_ns()  # by the library's threads
    return time.thread_time() + helped_ns / 1e9 + getattr(_helped, "cpu_s", 0.0)


def run_in_threads(work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> list[_Result]:
    """Calls a function for each item, in threads whose processor time counts as the calling thread's."""
    items = list(items)
    if threads == 1 or len(items) < 2:
        return [work(item) for item in items]

    def work_timed(item: _Item) -> tuple[_Result, float]:
        begin_s = time.thread_time()
        return work(item), time.thread_time() - begin_s

    with ThreadPoolExecutor(threads, "tfpipe-images") as pool:
        done = list(pool.map(work_timed, items))
    _helped.cpu_s = getattr(_helped, "cpu_s", 0.0) + sum(cpu_s for _, cpu_s in done)
    return [result for result, _ in done]
