"""Measures the processor time of this process, of a single function and of batches, and the rate of the storage."""

from __future__ import annotations

import glob
import itertools
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.profiler.loader.probe import read_state, read_times
from tfpipe.profiler.types import MOST_THREADS
from tfpipe.system import host_limits

SECONDS, ROUNDS = 0.1, 3  # the seconds of a round, and the number of rounds with each number of threads
_HELPS = 1.4  # with 2 threads, calls must be this many times as fast as with one; else a lock is in their way
_LEAST_GAIN, _NO_GAIN = 0.7, 1.2  # calls that compute gain nothing from 2 threads if the factor is between these
_BLOCKED = 2 / 3  # locked: 2 threads are blocked for more than this share of the time they run or wait for a core
_WATCH_S = (0.0005, 0.004)
"""The shortest and the longest sleep of a watching thread: random, so that it wakes up anywhere in a call."""
_LATE, _LEAST_LATE_S, _MOST_LATE_S = 0.15, 0.0003, 0.001
"""A call holds Python's lock if the watching thread wakes up later than this share of the call, clipped to these
seconds: every machine wakes a thread up a little late, and a long call releases the lock every 5 ms."""
_RUNS = 0.5  # of the time that a watching thread sleeps: a function that computes runs longer, unless it is held up
_WAITS = 0.5  # a call that computes for a smaller share of its time, without waits for a core, waits for something
_PIECE_BYTES, _MIN_READ_BYTES, _MAX_PIECES, _MAX_READ_S = 2**20, 16 * 2**20, 256, 1.0
_COST_S, _ROUND_S, _MIN_ROUNDS = 0.12, 0.015, 4
_REST_S, _MAX_REST_S, _SHORT_REST_S = 0.003, 5.0, 0.02
"""A process rests if it computes for less than a tenth of the pause `_REST_S`. Other threads may never rest, so `Rest`
waits for at most `_MAX_REST_S`, and after that only for `_SHORT_REST_S` a round."""


@dataclass(frozen=True)
class HostTime:
    """The readings of the clocks of wall time and processor time at one moment, in seconds."""

    at: float  # by `time.perf_counter`
    process: float
    machine: float | None  # of all processes and the hypervisor; None in a container
    thread: float = 0.0  # of the calling thread
    queue: float = 0.0  # in which threads of this process waited for a core

    @classmethod
    def now(cls) -> HostTime:
        """Reads the clocks."""
        return cls(time.perf_counter(), time.process_time(), _read_machine_s(), time.thread_time(), read_queue_s())

    def compute_fractions(self, before: HostTime, cores: int) -> tuple[float, float]:
        """Returns the shares of all cores that this process and others took since an earlier moment."""
        total_s = (self.at - before.at) * cores
        process = (self.process - before.process) / total_s
        others = 0.0
        if self.machine is not None and before.machine is not None:
            others = (self.machine - before.machine) / total_s - process
        return min(process, 1.0), min(max(others, 0.0), 1.0)


def read_queue_s(process: str = "/proc/self") -> float:
    """Returns the time in which threads of a process waited for a core, in seconds; 0 if the kernel does not count."""
    return sum(read_times(thread)[1] for thread in glob.glob(f"{process}/task/*")) / 1e9


def has_ready_thread(process: str = "/proc/self") -> bool:
    """Returns whether another thread of this process runs, or waits for a core or a disk; False if unknown."""
    own = f"{process}/task/{threading.get_native_id()}"
    return any(read_state(thread) in ("R", "D") for thread in glob.glob(f"{process}/task/*") if thread != own)


@dataclass(frozen=True)
class Run:
    """The times of a call in a run of a function, or of an element in a run of a dataset."""

    calls: int  # or elements
    wall_s: float  # per call or element
    cpu_s: float
    queue_s: float  # in which threads waited for a core

    @classmethod
    def since(cls, before: HostTime, calls: int, earlier: int = 0) -> Run:
        """Returns the times per call since `before`; `earlier` calls are only added to the number of calls."""
        now, number = HostTime.now(), max(calls, 1)
        spent = (now.at - before.at, now.process - before.process, now.queue - before.queue)
        return cls(calls + earlier, *(max(seconds, 0.0) / number for seconds in spent))


class CallTimes(NamedTuple):
    """The times of one call of a function."""

    cpu_s: float
    wait_s: float  # in which it neither runs nor waits for a core
    locked_s: float = 0.0  # from one call to the next, if a lock lets one run at a time; else 0
    is_pythons: bool = False  # whether this lock is Python's GIL


def measure_late_s(run: Callable[[], Any]) -> float:
    """Runs a function while another thread wakes up again and again; returns how late that thread gets the GIL.

    A wake-up tells nothing if other programs kept the function from its core meanwhile, or delayed the reading.
    """
    late, stopped = list[tuple[bool, float]](), threading.Event()

    def watch() -> None:
        while not late or not stopped.is_set():
            began_s, cpu_s = time.perf_counter(), time.process_time()
            queue_ns = read_times("/proc/thread-self")[1]
            sleep_s = random.uniform(*_WATCH_S)
            time.sleep(sleep_s)
            passed_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
            queue_ns = read_times("/proc/thread-self")[1] - queue_ns
            late_s = passed_s - sleep_s - queue_ns / 1e9
            late.append((cpu_s > _RUNS * sleep_s and late_s > 0, late_s))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    run()
    stopped.set()
    thread.join()
    return statistics.median([late_s for tells, late_s in late if tells] or [late_s for _, late_s in late])


def run_function(call: Callable[[int], Any], count: int = 1) -> CallTimes:
    """Measures a function with 1 thread and with 2; each call gets its number, and counts as `count` calls."""
    call(0)  # which imports and allocates
    rounds = [(_run(call, 1, count), _run(call, 2, count)) for _ in range(ROUNDS)]
    return judge(rounds, host_limits.usable_cpus(), measure_late_s(lambda: _run(call, 1, count)))


def judge(rounds: Sequence[tuple[Run, Run]], cores: int, late_s: float = 0.0) -> CallTimes:
    """Tells whether calls wait, compute or hold a lock, by runs with one thread and with two in turns. Pure.

    A second thread makes a function nearly twice as fast, unless a lock stands in its way: then it neither runs nor
    waits for a core. If the kernel does not count waits for a core, no lock is recognized while other programs run.
    """
    times = ((one.wall_s, one.cpu_s, one.queue_s) for one, _ in rounds)
    one_s, cpu_s, queue_s = map(statistics.median, zip(*times, strict=True))
    waits = cpu_s < _WAITS * (one_s - queue_s)
    # Other programs only make a call longer, so of calls that wait the fastest runs count.
    fastest_one_s, fastest_two_s = (min(run.wall_s for run in runs) for runs in zip(*rounds, strict=True))
    gains = [one.wall_s / two.wall_s for one, two in rounds]
    if waits:
        is_locked = fastest_one_s < _HELPS * fastest_two_s
    elif not any(run.queue_s for pair in rounds for run in pair):  # unknown waits for a core look like a lock
        is_locked = cores > 1 and all(_LEAST_GAIN < gain < _NO_GAIN for gain in gains)
    else:
        worked = [(2 * two.wall_s, two.cpu_s + two.queue_s) for _, two in rounds]
        blocked = statistics.median((wall_s - work_s) / max(work_s, 1e-9) for wall_s, work_s in worked)
        is_locked = cores > 1 and blocked > _BLOCKED and statistics.median(gains) < _HELPS
    wait_s = max(one_s - cpu_s - queue_s, 0.0) if waits else 0.0
    if not is_locked:
        return CallTimes(cpu_s, wait_s)
    fastest_s = min(fastest_one_s, fastest_two_s)
    locked_s = fastest_s if waits else max(cpu_s, fastest_s - queue_s)
    is_pythons = not waits and late_s > min(max(_LATE * locked_s, _LEAST_LATE_S), _MOST_LATE_S)
    return CallTimes(cpu_s, wait_s, locked_s, is_pythons)


def _run(call: Callable[[int], Any], threads: int, count: int) -> Run:
    numbers = itertools.count()

    def work(_: int) -> int:
        began_s, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() < began_s + SECONDS:
            call(next(numbers))
            calls += 1
        return calls

    with ThreadPoolExecutor(threads) as pool:
        before = HostTime.now()
        return Run.since(before, count * sum(pool.map(work, range(threads))))


def measure_storage_rate(paths: Sequence[str]) -> float | None:
    """Measures the bytes per second that many threads read, the last file first; None if they read less than 16 MiB."""
    started = time.perf_counter()

    def read(piece: tuple[str, int]) -> int:
        if time.perf_counter() - started > _MAX_READ_S:
            return 0
        with open(piece[0], "rb", buffering=0) as file:
            file.seek(piece[1])
            return len(file.read(_PIECE_BYTES))

    try:
        pieces = ((path, at) for path in reversed(paths) for at in range(0, os.path.getsize(path), _PIECE_BYTES))
        with ThreadPoolExecutor(MOST_THREADS) as pool:
            num_bytes = sum(pool.map(read, itertools.islice(pieces, _MAX_PIECES)))
    except OSError:
        return None
    return num_bytes / (time.perf_counter() - started) if num_bytes >= _MIN_READ_BYTES else None


def _read_machine_s(stat: Path = Path("/proc/stat")) -> float | None:
    """Returns the processor time of the machine in seconds; None in a container, whose own cores it does not show."""
    if host_limits.usable_cpus() != os.cpu_count():
        return None
    try:
        fields = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]  # idle, and idle while files are waited for
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")


def measure_costs_us(
    make_batch: Mapping[str, Callable[[], Any]], images: int, spent_s: Callable[[], float]
) -> dict[str, float]:
    """Measures the processor time per image of several ways to make batches, each for a seventh of a second.

    The clock `spent_s` is `time.thread_time` for functions that do all work themselves, else `Rest.wait`.
    """
    for make in make_batch.values():
        _run_round_us(make, images, spent_s)  # the first round builds functions, and fills caches and buffers
    rounds: list[dict[str, float]] = []
    until = time.perf_counter() + _COST_S * len(make_batch)
    while len(rounds) < _MIN_ROUNDS or time.perf_counter() < until:
        rounds.append({name: _run_round_us(make, images, spent_s) for name, make in make_batch.items()})
    return {name: statistics.median(costs[name] for costs in rounds) for name in make_batch}


def _run_round_us(make: Callable[[], Any], images: int, spent_s: Callable[[], float]) -> float:
    """Makes batches for one round, which begins and ends with full buffers; returns the processor time per image."""
    before_s, started, batches = spent_s(), time.perf_counter(), 0
    while not batches or time.perf_counter() - started < _ROUND_S:
        make()
        batches += 1
    return (spent_s() - before_s) / (batches * images) * 1e6


class Rest:
    """A clock of processor time that waits until no thread computes any more, because buffers are full."""

    def __init__(self) -> None:
        self._max_s = _MAX_REST_S
        self._looking_s = 0.0

    def wait(self) -> float:
        """Waits for the end of all work, and returns the processor time of the process in seconds."""
        until = time.perf_counter() + self._max_s
        while time.perf_counter() < until:
            before = time.process_time()
            time.sleep(_REST_S)
            if time.process_time() - before > _REST_S / 10:
                continue
            looked_s = time.thread_time()
            rests = not has_ready_thread()
            self._looking_s += time.thread_time() - looked_s
            if rests:
                return time.process_time() - self._looking_s
        self._max_s = _SHORT_REST_S
        return time.process_time() - self._looking_s
