"""The memory that a few lines take: the peak of the whole process, which the kernel counts anew from their begin on.

`tracemalloc` crashes Python up to 3.12 where other threads allocate as it stops (its issue 128679).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function that returns the bytes by which memory has grown at most since the block began."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is taken now
    except OSError as error:
        pytest.skip(f"the peak of memory cannot be set back: {error}")
    before = _read_bytes("VmRSS")
    yield lambda: _read_bytes("VmHWM") - before


def _read_bytes(name: str) -> int:
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) * 1024
