"""Runs a Python function alone, with 1 thread and with 2: it computes, it waits, or a lock lets one call run."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfpipe.profiler.measure.clocks import HostTime, read_own_queue_s
from tfpipe.system import host_limits

SECONDS, TURNS = 0.1, 3  # the seconds of a turn with a number of threads, and the turns of each
_TIMES = ("wall_s", "cpu_s", "queue_s")
_HELPS = 1.4  # how much more 2 threads must do than one where a call waits; else a lock keeps the second out
_LEAST_GAIN, _NO_GAIN = 0.7, 1.2  # between these factors 2 threads do as much as one where a call computes
_BLOCKED = 2 / 3  # of the time in which 2 threads run or wait for a core; from this share on a lock stops them
_WATCH_S = (0.0005, 0.004)
"""The seconds between which a watching thread sleeps, drawn anew: it must not wake up at one place of each call."""
_LATE, _LEAST_LATE_S, _MOST_LATE_S = 0.15, 0.0003, 0.001
"""The share of a call by which that thread gets Python's lock late if a call holds it, within these seconds: a machine
wakes a thread up a little late in any case, and a long call lets go of the lock every 5 ms."""
_WAITS = 0.5  # of a call's time, without waits for a core, below which it waits for something else


@dataclass(frozen=True)
class Run:
    """A run of a function, or of a dataset."""

    calls: int  # or elements
    wall_s: float  # for one of them
    cpu_s: float
    queue_s: float  # in which threads waited for a core

    @classmethod
    def since(cls, before: HostTime, calls: int, earlier: int = 0) -> Run:
        """Returns what calls took since a moment, beside some that were made earlier."""
        now, number = HostTime.now(), max(calls, 1)
        spent = (now.at - before.at, now.process - before.process, now.queue - before.queue)
        return cls(calls + earlier, *(max(seconds, 0.0) / number for seconds in spent))


class CallTimes(NamedTuple):
    """The time of a call of a function."""

    cpu_s: float
    wait_s: float  # in which it neither runs nor waits for a core
    hold_s: float | None  # from one call to the next, if a lock lets one run at a time
    is_pythons: bool = False  # whether this lock is Python's own


class PythonLockWatch:
    """A thread that wakes up while a block runs, and notes how late it gets Python's lock."""

    def __enter__(self) -> PythonLockWatch:
        self.late_s, self.counts = 0.0, True
        self._stopped, self._late = threading.Event(), list[float]()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.late_s = statistics.median(self._late)

    def _run(self) -> None:
        while not self._late or not self._stopped.is_set():
            counted = self.counts
            began_s, queue_s = time.perf_counter(), read_own_queue_s()
            sleep_s = random.uniform(*_WATCH_S)
            time.sleep(sleep_s)
            passed_s = time.perf_counter() - began_s
            if (counted and self.counts) or self._stopped.is_set():
                self._late.append(passed_s - sleep_s - (read_own_queue_s() - queue_s))


def run_function(call: Callable[[int], Any]) -> CallTimes:
    """Runs a function alone; it gets the number of the call, possibly in several threads."""
    call(0)  # which imports and allocates
    with PythonLockWatch() as watch:
        turns = [(_run(call, 1), _run(call, 2)) for _ in range(TURNS)]
    return judge(turns, host_limits.usable_cpus(), watch.late_s)


def judge(turns: Sequence[tuple[Run, Run]], cores: int, late_s: float = 0.0) -> CallTimes:
    """Tells waiting, computing and a lock apart, by runs with one thread and with two in turns. Pure.

    A second thread makes a function nearly twice as fast, unless a lock stands in its way: then it neither runs nor
    waits for a core. Where the kernel does not count the waits for a core, no lock is seen beside many programs.
    """
    ones = [one for one, _ in turns]
    one_s, cpu_s, queue_s = (statistics.median(getattr(one, name) for one in ones) for name in _TIMES)
    waits = cpu_s < _WAITS * (one_s - queue_s)
    # Other programs only make a call longer, so of calls that wait the fastest runs count.
    fastest_one_s, fastest_two_s = (min(run.wall_s for run in runs) for runs in zip(*turns, strict=True))
    if waits:
        is_locked = fastest_one_s < _HELPS * fastest_two_s
    else:
        is_locked = cores > 1 and _is_computing_blocked(turns)
    wait_s = max(one_s - cpu_s - queue_s, 0.0) if waits else 0.0
    if not is_locked:
        return CallTimes(cpu_s, wait_s, None)
    fastest_s = min(fastest_one_s, fastest_two_s)
    hold_s = fastest_s if waits else max(cpu_s, fastest_s - queue_s)
    is_pythons = not waits and late_s > min(max(_LATE * hold_s, _LEAST_LATE_S), _MOST_LATE_S)
    return CallTimes(cpu_s, wait_s, hold_s, is_pythons)


def _is_computing_blocked(turns: Sequence[tuple[Run, Run]]) -> bool:
    """Returns whether a lock stops the second of two threads that compute."""
    gains = [one.wall_s / two.wall_s for one, two in turns]
    if not any(run.queue_s for pair in turns for run in pair):  # a wait for a core is not known, and may be a lock
        return all(_LEAST_GAIN < gain < _NO_GAIN for gain in gains)
    worked = [(2 * two.wall_s, two.cpu_s + two.queue_s) for _, two in turns]
    blocked = statistics.median((wall_s - work_s) / max(work_s, 1e-9) for wall_s, work_s in worked)
    return blocked > _BLOCKED and statistics.median(gains) < _HELPS


def _run(call: Callable[[int], Any], threads: int) -> Run:
    numbers, start = itertools.count(), threading.Barrier(threads)

    def work(_: int) -> tuple[int, float, float, float, float]:
        start.wait()
        began_s, cpu_s, queue_s, calls = time.perf_counter(), time.thread_time(), read_own_queue_s(), 0
        while calls == 0 or time.perf_counter() < began_s + SECONDS:
            call(next(numbers))
            calls += 1
        cpu_s, queue_s = time.thread_time() - cpu_s, read_own_queue_s() - queue_s
        return calls, cpu_s, queue_s, began_s, time.perf_counter()

    with ThreadPoolExecutor(threads) as pool:
        done = list(pool.map(work, range(threads)))
    numbers_of, spent_s, waited_s, begins, ends = zip(*done, strict=True)
    calls, passed_s = sum(numbers_of), max(ends) - min(begins)
    return Run(calls, passed_s / calls, sum(spent_s) / calls, sum(waited_s) / calls)
