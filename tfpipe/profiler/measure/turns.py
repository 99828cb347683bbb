"""Measures the processor time of several ways to make a batch, which take turns because machines drift.

    as it is   ── 15 ms ─┐          ┌─ 15 ms ─┐
    smaller              └─ 15 ms ──┘         └─ ...      the median turn of each counts

costs_us = measure_costs_us({"as it is": make_batch, "smaller": make_smaller}, 32, time.thread_time)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfpipe.profiler.measure.host_usage import has_ready_thread

_SECONDS, _TURN_S, _MIN_TURNS = 0.12, 0.015, 4
_REST_S, _MAX_REST_S, _SHORT_REST_S = 0.003, 5.0, 0.02
"""A process counts as idle when it used less than a tenth of `_REST_S`, and no thread waits for a core. After
`_MAX_REST_S` nobody waits any longer, since a process may have other threads that never rest; from then on a turn is
followed by `_SHORT_REST_S`. Buffers of 800 records of 3 MB took more than one second to fill for the first time."""


def measure_costs_us(
    make_batch: Mapping[str, Callable[[], Any]], images: int, spent_s: Callable[[], float]
) -> dict[str, float]:
    """Measures the processor time of an image in batches that are made in several ways.

    It takes a seventh of a second for each way, and longer where batches of an epoch take long to make.

    Args:
        make_batch: A function for each way, which makes a batch.
        images: The number of images in a batch.
        spent_s: The clock: a function that returns the processor time of all that made batches until now, in seconds.
            `time.thread_time` fits functions that do all their work themselves, and `Rest.wait` those whose threads
            work ahead.

    Returns:
        The median of all turns in microseconds, by the names of the ways.
    """
    for make in make_batch.values():
        _run_turn_us(make, images, spent_s)  # functions are made, caches filled, buffers full
    turns: list[dict[str, float]] = []
    until = time.perf_counter() + _SECONDS * len(make_batch)
    while len(turns) < _MIN_TURNS or time.perf_counter() < until:
        turns.append({name: _run_turn_us(make, images, spent_s) for name, make in make_batch.items()})
    return {name: statistics.median(turn[name] for turn in turns) for name in make_batch}


def _run_turn_us(make: Callable[[], Any], images: int, spent_s: Callable[[], float]) -> float:
    """Makes batches for a short time, and returns the processor time of one image.

    A turn begins and ends with full buffers, so its processor time is that of its own images.
    """
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
        """Waits for the end of all work.

        Returns:
            The processor time of the process in seconds, without that of looking at its threads.
        """
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
