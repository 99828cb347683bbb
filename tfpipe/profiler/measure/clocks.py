"""The processor time of this process and its threads, the rate of the storage, and ways to make a batch in turns."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfpipe.profiler.types import MOST_THREADS
from tfpipe.system import host_limits

_MIN_READ_BYTES, _MAX_READ_BYTES, _MAX_READ_S = 16 * 2**20, 256 * 2**20, 1.0
_PIECE_BYTES = 2**20
_SECONDS, _TURN_S, _MIN_TURNS = 0.12, 0.015, 4
_REST_S, _MAX_REST_S, _SHORT_REST_S = 0.003, 5.0, 0.02
"""The pause in which an idle process uses less than a tenth; the time after which nobody waits any longer, since other
threads may never rest; and the rest after a turn from then on."""


@dataclass(frozen=True)
class HostTime:
    """The processor time up to a moment, in seconds."""

    at: float  # by `time.perf_counter`
    process: float
    machine: float | None  # of every process and the hypervisor; None in a container
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


def read_threads(process: str = "/proc/self") -> dict[str, tuple[float, float]]:
    """Returns the seconds that each thread ran and waited for a core, by its number; empty if nobody counts them."""
    seconds = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in os.listdir(f"{process}/task"):
            try:
                file = os.open(f"{process}/task/{thread}/schedstat", os.O_RDONLY)  # a third of the cost of `open`
            except OSError:  # it has just ended
                continue
            try:
                fields = os.read(file, 128).split()
            finally:
                os.close(file)
            seconds[thread] = (int(fields[0]) / 1e9, int(fields[1]) / 1e9)
    # A kernel without these counters has the files missing, or all zeros.
    return seconds if any(cpu_s for cpu_s, _ in seconds.values()) else {}


def read_queue_s(process: str = "/proc/self") -> float:
    """Returns the time in which threads of a process waited for a core, in seconds; 0 if the kernel does not count."""
    return sum(queue_s for _, queue_s in read_threads(process).values())


def read_own_queue_s() -> float:
    """Returns the time that this thread has waited for a core, in seconds; 0 if the kernel does not count it."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def has_ready_thread(process: str = "/proc/self") -> bool:
    """Returns whether another thread of this process runs, or waits for a core or a disk; False if nobody knows."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{process}/task"):
            if int(thread) == threading.get_native_id():
                continue
            with contextlib.suppress(OSError), open(f"{process}/task/{thread}/stat", "rb", buffering=0) as file:
                # The state follows the thread's name, which may hold anything.
                if file.read(256).rpartition(b") ")[2][:1] in (b"R", b"D"):
                    return True
    return False


def measure_storage_rate(paths: Sequence[str]) -> float | None:
    """Returns the bytes per second that many threads read, the last file first; None of less than 16 MiB."""
    pieces, lock, started = _list_pieces(paths), threading.Lock(), time.perf_counter()

    def read(_: int) -> int:
        num_bytes, buffer = 0, bytearray(_PIECE_BYTES)
        while time.perf_counter() - started < _MAX_READ_S:
            with lock:
                path, offset = next(pieces, ("", 0))
            if not path:
                break
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                num_bytes += file.readinto(buffer) or 0
        return num_bytes

    try:
        with ThreadPoolExecutor(MOST_THREADS) as pool:
            num_bytes = sum(pool.map(read, range(MOST_THREADS)))
    except OSError:
        return None
    return num_bytes / (time.perf_counter() - started) if num_bytes >= _MIN_READ_BYTES else None


def _list_pieces(paths: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yields files and offsets, for 256 MiB at most."""
    num_bytes = 0
    for path in reversed(paths):
        for offset in range(0, os.path.getsize(path), _PIECE_BYTES):
            yield path, offset
            if (num_bytes := num_bytes + _PIECE_BYTES) >= _MAX_READ_BYTES:
                return


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
    """Measures the processor time of an image in batches that are made in several ways, each for a seventh of a second.

    The clock `spent_s` is `time.thread_time` for functions that do all work themselves, else `Rest.wait`.
    """
    for make in make_batch.values():
        _run_turn_us(make, images, spent_s)  # functions are made, caches filled, buffers full
    turns: list[dict[str, float]] = []
    until = time.perf_counter() + _SECONDS * len(make_batch)
    while len(turns) < _MIN_TURNS or time.perf_counter() < until:
        turns.append({name: _run_turn_us(make, images, spent_s) for name, make in make_batch.items()})
    return {name: statistics.median(turn[name] for turn in turns) for name in make_batch}


def _run_turn_us(make: Callable[[], Any], images: int, spent_s: Callable[[], float]) -> float:
    """Makes batches from full buffers to full buffers, and returns the processor time of one image."""
    before_s, started, batches = spent_s(), time.perf_counter(), 0
    while not batches or time.perf_counter() - started < _TURN_S:
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
