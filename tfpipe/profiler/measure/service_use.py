"""Measures the service of a pipeline: the images of each worker while all of them make as many as they can."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from tfpipe.engine.ahead import list_positions, make_ahead
from tfpipe.engine.open_maker import open_maker
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.position import Position
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.types import ServiceUse, Spread, StageTiming, StepTiming, WorkerTiming

if TYPE_CHECKING:
    from tfpipe.service.client import RemoteMaker, WorkerClock

_MEASURE_S = 3.0
_AT_ONCE = 2  # batches that a worker makes


def measure_service(plan: BatchPlan, timing: StepTiming) -> ServiceUse:
    """Takes batches as fast as they come, for some seconds after a run and after the first ones."""
    from tfpipe.service.client import RemoteMaker  # loads Arrow, which other profiles do not need

    maker = RemoteMaker(open_maker(plan))
    with closing(make_ahead(maker, _repeat_positions(maker), plan.config.max_threads)) as batches:
        for _ in range(maker.steps_ahead + 1):
            next(batches)
        begin, before, count = time.perf_counter(), maker.worker_clocks, 0
        while time.perf_counter() - begin < _MEASURE_S or not count:
            next(batches)
            count += 1
        passed_s, after = time.perf_counter() - begin, maker.worker_clocks
    return describe_service(list(zip(before, after, strict=True)), count, passed_s, timing, plan.config.service.share)


def describe_service(
    clocks: Sequence[tuple[WorkerClock, WorkerClock]],
    count: int,
    passed_s: float,
    timing: StepTiming,
    local_share: float | Literal["auto"],
) -> ServiceUse:
    """Describes a service by its workers' clocks before and after `count` batches of all workers and this host."""
    came = sum(new.batches - old.batches for old, new in clocks)
    local = max(1 - came / count, 0.0) if local_share == "auto" else local_share
    batch_bytes = sum(new.num_bytes - old.num_bytes for old, new in clocks) / came if came else 0.0
    return ServiceUse(
        workers=tuple(
            WorkerTiming(
                new.address,
                (new.batches - old.batches) / passed_s * timing.images_per_step,
                min((new.made_s - old.made_s) / passed_s / _AT_ONCE, 1.0),
            )
            for old, new in clocks
        ),
        local_fraction=local,
        batch_bytes=batch_bytes,
        wire_bytes_per_second=timing.steps / timing.wall_s * (1 - local) * batch_bytes,
    )


def time_taking(before: HostTime, after: HostTime, timing: StepTiming, use: ServiceUse) -> StageTiming:
    """Returns the figures of taking batches from a service. All processor time of this process counts."""
    cpu_us = (after.process - before.process) / (timing.steps * timing.images_per_step) * 1e6
    image_bytes = use.batch_bytes / timing.images_per_step
    return StageTiming("prefetch", Spread(cpu_us, cpu_us, cpu_us), bytes_out_per_image=image_bytes)


def _repeat_positions(maker: RemoteMaker) -> Iterator[Position]:
    steps, training = maker.plan.steps_per_epoch, maker.plan.config.training
    if training:
        return list_positions(Position(0, 0), steps, goes_on=True)
    return itertools.cycle(list(list_positions(Position(0, 0), steps, goes_on=False)))
