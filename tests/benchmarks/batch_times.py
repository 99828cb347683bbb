"""How batches come from a pipeline: the first one, the rate in every few seconds, how even they are, and the memory.

figures = measure(iter(batches), first_batch_s=0.9, batch_size=64, seconds=40)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import psutil

PERIOD_S = 5.0
_AFTER_HALT = 2  # the first batches of a period were halted while they were made: they say nothing of the pipeline
_EARLY_PERIODS = 2  # in these a pipeline may still fill its buffers; the spread of batch times counts from then on


@dataclass(frozen=True)
class BatchTimes:
    """What a pipeline gave, from its construction on.

    Attributes:
        first_batch_s: The seconds from the construction to the first batch.
        images_per_s: The images per second in each period of `PERIOD_S` seconds after the first batch.
        images_per_cpu_s: The images per second of processor time, of all processes together, after the first batch.
        median_ms: The median of the batch times after the first `_EARLY_PERIODS` periods, without the first
            `_AFTER_HALT` of each period.
        p99_ms: Their 99th percentile.
        longest_ms: The longest of them.
        peak_bytes: The most memory that all processes held together; pages that they share count once.
    """

    first_batch_s: float
    images_per_s: list[float]
    images_per_cpu_s: float
    median_ms: float
    p99_ms: float
    longest_ms: float
    peak_bytes: int


def measure(
    make_batches: Callable[[], Iterator[Any]],
    batch_size: int,
    seconds: float,
    begin_period: Callable[[], None] = lambda: None,
) -> BatchTimes:
    """Builds a pipeline and takes batches as fast as they come.

    Args:
        make_batches: The function that builds the pipeline and returns its iterator.
        batch_size: The images of a batch.
        seconds: How long batches are taken after the first one: a multiple of `PERIOD_S`.
        begin_period: What is called before each period. It may halt this process for as long as it likes.
    """
    started = time.perf_counter()
    batches = make_batches()
    next(batches)
    first_batch_s = time.perf_counter() - started
    periods: list[list[float]] = []
    cpu_s, peak, next_look = 0.0, 0, 0.0
    for _ in range(max(round(seconds / PERIOD_S), 1)):
        begin_period()
        times: list[float] = []
        cpu_before, begin = _cpu_seconds(), time.perf_counter()
        last = begin
        while last - begin < PERIOD_S:
            next(batches)
            now = time.perf_counter()
            times.append(now - last)
            last = now
            if now >= next_look:
                peak, next_look = max(peak, _held_bytes()), now + 1
        cpu_s += _cpu_seconds() - cpu_before
        periods.append(times)
    late_periods = periods[min(_EARLY_PERIODS, len(periods) // 2) :]
    late = list(chain.from_iterable(times[_AFTER_HALT:] for times in late_periods))
    return BatchTimes(
        first_batch_s=first_batch_s,
        images_per_s=[len(times) * batch_size / sum(times) for times in periods],
        images_per_cpu_s=sum(map(len, periods)) * batch_size / cpu_s,
        median_ms=1e3 * statistics.median(late),
        p99_ms=1e3 * statistics.quantiles(late, n=100)[98],
        longest_ms=1e3 * max(late),
        peak_bytes=peak,
    )


def _processes() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def _cpu_seconds() -> float:
    total = 0.0
    for process in _processes():
        try:
            total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def _held_bytes() -> int:
    total = 0
    for process in _processes():
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total
