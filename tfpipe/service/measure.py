"""Measures how many batches the workers of a service give when they are asked for as many as they can make.

rates = measure_rates(maker, seconds=3.0)
rates.workers[0].batches_per_second, rates.batch_bytes
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from tfpipe.engine.ahead import list_positions, make_ahead
from tfpipe.engine.position import Position
from tfpipe.service.client import WorkerClock
from tfpipe.service.remote import RemoteMaker
from tfpipe.system.host_limits import usable_cpus

_AT_ONCE = 2  # batches that a worker makes


@dataclass(frozen=True)
class WorkerRate:
    """The rate of one worker while all of them work.

    Attributes:
        address: The address, host:port.
        batches_per_second: The batches that came from it in a second.
        busy_fraction: The share of the time in which it made batches; the rest it waited for requests or the network.
    """

    address: str
    batches_per_second: float
    busy_fraction: float


@dataclass(frozen=True)
class ServiceRates:
    """The rates of a service.

    Attributes:
        workers: The rate of each worker.
        batches_per_second: The batches of all workers and of this host in a second.
        batch_bytes: The mean size of a batch on the wire; 0 if none came.
    """

    workers: tuple[WorkerRate, ...]
    batches_per_second: float
    batch_bytes: float


def measure_rates(maker: RemoteMaker, seconds: float) -> ServiceRates:
    """Takes batches as fast as they come, for some seconds after the first ones.

    Raises:
        DataError: No worker gives a batch within the service's `timeout_s`.
        TfpipeError: A batch cannot be made.
    """
    batches = make_ahead(maker, _repeat_positions(maker), usable_cpus())
    with closing(batches):
        for _ in range(maker.steps_ahead + 1):
            next(batches)
        begin, before, count = time.perf_counter(), _copy_clocks(maker), 0
        while time.perf_counter() - begin < seconds or not count:
            next(batches)
            count += 1
        passed, after = time.perf_counter() - begin, _copy_clocks(maker)
    pairs = list(zip(before, after, strict=True))
    came = sum(new.batches - old.batches for old, new in pairs)
    num_bytes = sum(new.num_bytes - old.num_bytes for old, new in pairs)
    workers = tuple(
        WorkerRate(
            new.address,
            (new.batches - old.batches) / passed,
            min((new.made_s - old.made_s) / passed / _AT_ONCE, 1.0),
        )
        for old, new in pairs
    )
    return ServiceRates(workers, count / passed, num_bytes / came if came else 0.0)


def _repeat_positions(maker: RemoteMaker) -> Iterator[Position]:
    steps, training = maker.plan.steps_per_epoch, maker.plan.config.training
    if training:
        return list_positions(Position(0, 0), steps, goes_on=True)
    return itertools.cycle(list(list_positions(Position(0, 0), steps, goes_on=False)))


def _copy_clocks(maker: RemoteMaker) -> list[WorkerClock]:
    return [replace(clock) for clock in maker.worker_clocks]
