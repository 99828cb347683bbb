"""The machine while a pipeline runs, and how fast its storage reads when nothing else happens."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfpipe import machine

_MIN_READ_BYTES, _MAX_READ_BYTES, _MAX_READ_S = 16 * 2**20, 256 * 2**20, 1.0
_PIECE_BYTES = 4 * 2**20


@dataclass(frozen=True)
class HostTime:
    """Processor time so far, in seconds."""

    at: float
    own: float
    all: float | None
    """Of every process on this machine, and what its hypervisor took; None where that is not this process's to know."""

    @classmethod
    def now(cls) -> HostTime:
        """As of now."""
        return cls(time.perf_counter(), time.process_time(), _machine_s())

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
    """Bytes a second with which whole local files are read, one after another, from the last one on.

    No file is dropped from the system's cache first: a dataset that fits there is read from there in training too.
    The last files are the least likely to be there because the pipeline has just read them.

    Returns:
        None if there are less than 16 MiB, too few to tell, or where they cannot be read as local files.
    """
    started, done, piece = time.perf_counter(), 0, bytearray(_PIECE_BYTES)
    for path in reversed(paths):
        try:
            with open(path, "rb", buffering=0) as file:
                while count := file.readinto(piece):
                    done += count
                    if done >= _MAX_READ_BYTES or time.perf_counter() - started > _MAX_READ_S:
                        return done / (time.perf_counter() - started)
        except OSError:
            return None
    return done / (time.perf_counter() - started) if done >= _MIN_READ_BYTES else None


def _machine_s(stat: Path = Path("/proc/stat")) -> float | None:
    """In a container with fewer cores than the machine, what others do there says nothing about its own cores."""
    if machine.usable_cpus() != os.cpu_count():
        return None
    try:
        fields = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]  # idle, and idle while files are waited for
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK")
