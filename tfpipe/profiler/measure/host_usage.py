"""The machine while a pipeline runs, and how fast its storage reads when nothing else happens."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfpipe.system import host_limits

_MIN_READ_BYTES, _MAX_READ_BYTES, _MAX_READ_S = 16 * 2**20, 256 * 2**20, 1.0
_PIECE_BYTES, _READERS = 2**20, 16


@dataclass(frozen=True)
class HostTime:
    """Processor time so far, in seconds."""

    at: float
    own: float
    all: float | None
    """Of every process on this machine, and what its hypervisor took; None where that is not this process's to know."""
    thread: float = 0.0
    """Of the thread that asks."""

    @classmethod
    def now(cls) -> HostTime:
        """As of now."""
        return cls(time.perf_counter(), time.process_time(), _machine_s(), time.thread_time())

    def fractions_since(self, before: HostTime, cores: int) -> tuple[float, float]:
        """Shares of all cores that this process took, and that others took."""
        total = (self.at - before.at) * cores
        own = (self.own - before.own) / total
        others = 0.0 if self.all is None or before.all is None else (self.all - before.all) / total - own
        return min(own, 1.0), min(max(others, 0.0), 1.0)


def peak_memory_bytes() -> int:
    """The most that this process has held in memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def storage_rate(paths: Sequence[str]) -> float | None:
    """Bytes a second with which local files are read by several threads, from the last file on.

    Several, since storage that answers late gives more to many readers than to one. No file is dropped from the
    system's cache first: a dataset that fits there is read from there in training too. The last files are the least
    likely to be there because the pipeline has just read them.

    Returns:
        None if there are less than 16 MiB, too few to tell, or where they cannot be read as local files.
    """
    pieces, lock, started = _pieces(paths), threading.Lock(), time.perf_counter()

    def read(_: int) -> int:
        done, buffer = 0, bytearray(_PIECE_BYTES)
        while time.perf_counter() - started < _MAX_READ_S:
            with lock:
                path, offset = next(pieces, ("", 0))
            if not path:
                break
            with open(path, "rb", buffering=0) as file:
                file.seek(offset)
                done += file.readinto(buffer) or 0
        return done

    try:
        with ThreadPoolExecutor(_READERS) as pool:
            done = sum(pool.map(read, range(_READERS)))
    except OSError:
        return None
    return done / (time.perf_counter() - started) if done >= _MIN_READ_BYTES else None


def _pieces(paths: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Files and offsets, 256 MiB at most."""
    offered = 0
    for path in reversed(paths):
        for offset in range(0, os.path.getsize(path), _PIECE_BYTES):
            yield path, offset
            if (offered := offered + _PIECE_BYTES) >= _MAX_READ_BYTES:
                return


def _machine_s(stat: Path = Path("/proc/stat")) -> float | None:
    """In a container with fewer cores than the machine, what others do there says nothing about its own cores."""
    if host_limits.usable_cpus() != os.cpu_count():
        return None
    try:
        fields = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]  # idle, and idle while files are waited for
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")
