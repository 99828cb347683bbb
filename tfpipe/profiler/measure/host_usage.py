"""The use of the machine while a pipeline runs, and the rate of its storage when nothing else happens."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfpipe.profiler.types import MOST_THREADS
from tfpipe.system import host_limits

_MIN_READ_BYTES, _MAX_READ_BYTES, _MAX_READ_S = 16 * 2**20, 256 * 2**20, 1.0
_PIECE_BYTES = 2**20


@dataclass(frozen=True)
class HostTime:
    """The processor time up to a moment, in seconds.

    Attributes:
        at: The moment, by `time.perf_counter`.
        process: The processor time of this process.
        machine: The processor time of every process on this machine and of its hypervisor. None if that says nothing
            about this process's cores.
        thread: The processor time of the calling thread.
        queue: The time in which threads of this process waited for a core.
    """

    at: float
    process: float
    machine: float | None
    thread: float = 0.0
    queue: float = 0.0

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
    """Returns the processor time of each thread and the time that it waited for a core, in seconds, by its number.

    It is empty if the kernel does not count them.
    """
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
    """Reads local files by many threads, from the last file on, and returns the bytes per second.

    Storage that answers late gives more to many readers than to one. No file is dropped from the system's cache first:
    a dataset that fits there is read from there in training too. The last files are the least likely to be there
    because the pipeline has just read them.

    Returns:
        None if there are less than 16 MiB, too few to tell, or if the files cannot be read as local ones.
    """
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
    """Returns the processor time of the machine, in seconds.

    It is None in a container with fewer cores than the machine: what others do there says nothing about its own cores.
    """
    if host_limits.usable_cpus() != os.cpu_count():
        return None
    try:
        fields = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]  # idle, and idle while files are waited for
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")
