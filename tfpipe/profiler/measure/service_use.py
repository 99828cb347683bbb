"""Measures the service of a pipeline: the images of each worker while all of them make as many as they can."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from tfpipe.engine.ahead import list_positions, make_ahead
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.position import Position
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.types import ServiceUse, Spread, StageTiming, StepTiming, WorkerTiming
from tfpipe.service.remote import RemoteMaker

_MEASURE_S = 3.0
_AT_ONCE = 2  # batches that a worker makes


@dataclass(frozen=True)
class WorkerRate:
    """The rate of one worker while all of them work."""

    address: str  # host:port
    batches_per_second: float
    busy_fraction: float  # the rest it waited for requests or the network


@dataclass(frozen=True)
class ServiceRates:
    """The rates of a service."""

    workers: tuple[WorkerRate, ...]
    batches_per_second: float  # of all workers and of this host
    batch_bytes: float  # on the wire; 0 if none came


def measure_service(plan: BatchPlan, timing: StepTiming) -> ServiceUse:
    """Measures the service after a run."""
    rates = measure_rates(RemoteMaker(open_maker(plan)), _MEASURE_S)
    return describe_service(rates, timing, plan.config.service.share)


def describe_service(rates: ServiceRates, timing: StepTiming, local_share: float | Literal["auto"]) -> ServiceUse:
    """Puts together what was measured. Pure."""
    images = timing.images_per_step
    remote = sum(worker.batches_per_second for worker in rates.workers)
    local = max(1 - remote / rates.batches_per_second, 0.0) if local_share == "auto" else local_share
    return ServiceUse(
        workers=tuple(
            WorkerTiming(worker.address, worker.batches_per_second * images, worker.busy_fraction)
            for worker in rates.workers
        ),
        local_fraction=local,
        batch_bytes=rates.batch_bytes,
        wire_bytes_per_second=timing.steps / timing.wall_s * (1 - local) * rates.batch_bytes,
    )


def time_taking(before: HostTime, after: HostTime, timing: StepTiming, use: ServiceUse) -> StageTiming:
    """Returns the figures of the stage that takes batches from a service.

    All processor time of this process counts: tf.data's counters take the wait for a worker for work.
    """
    images = timing.steps * timing.images_per_step
    cpu_us = (after.process - before.process) / images * 1e6
    image_bytes = use.batch_bytes / timing.images_per_step
    return StageTiming("prefetch", Spread(cpu_us, cpu_us, cpu_us), bytes_out_per_image=image_bytes)


def measure_rates(maker: RemoteMaker, seconds: float) -> ServiceRates:
    """Takes batches as fast as they come, for some seconds after the first ones."""
    batches = make_ahead(maker, _repeat_positions(maker), maker.plan.config.max_threads)
    with closing(batches):
        for _ in range(maker.steps_ahead + 1):
            next(batches)
        begin, before, count = time.perf_counter(), maker.worker_clocks, 0
        while time.perf_counter() - begin < seconds or not count:
            next(batches)
            count += 1
        passed, after = time.perf_counter() - begin, maker.worker_clocks
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
