"""Measures the tf.data service of a pipeline: its workers, the wire, and what compression would change.

In exact order each batch says who made it, so the wait of a step is that for one worker. Then all workers make batches
as fast as they can, each read by itself: that tells how many are needed. At last they hand over batches that cost
nothing to make, which shows what the wire allows.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from tfpipe.pipeline import service_client, service_steps
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.step_shares import StepShares
from tfpipe.pipeline.service_measure import (
    Compression,
    find_late_worker,
    measure_compression,
    measure_intervals,
    measure_rates,
    name_workers,
)
from tfpipe.pipeline.stage import Stage, Stages
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.profiler.types import ServiceUse, Spread, StageTiming, Step, StepTiming, WorkerTiming


@dataclass(frozen=True)
class ServedRun:
    """A run of a pipeline whose batches came from a service.

    Attributes:
        steps: The measured steps in a row.
        first_step: The number of the first of them, from the first batch of the pipeline on.
        timing: The figures of these steps.
        shares: The steps that the trainer made itself; None if batches do not say who made them.
        samples: A few batches, to compress them.
    """

    steps: Sequence[Step]
    first_step: int
    timing: StepTiming
    shares: StepShares | None
    samples: Sequence[Any] = ()


def measure_service(plan: ReadPlan, stages: Stages, run: ServedRun) -> ServiceUse:
    """Measures the service after a run.

    It takes about 5 s. No wait is longer than `service_timeout_s`.

    Args:
        plan: The read plan of the pipeline.
        stages: The stages of the pipeline.
        run: The run.

    Raises:
        ConfigError: The dispatcher does not answer.
        TfpipeError: A worker gave no batch in time; it is named.
    """
    assert plan.config.service is not None
    compression = measure_compression(run.samples)
    size, limit_s = round(compression.batch_bytes), plan.config.service_timeout_s
    if plan.by_steps:
        workers = service_steps.split_by_worker(plan, _cut_at_batch(stages))
        empty = service_steps.split_by_worker(plan, _make_empty_batches(size))
        rates = dict(zip(workers, measure_rates(name_workers(workers), limit_s).values(), strict=True))
    else:
        workers = dict.fromkeys(service_client.list_live_workers(plan.config.service))
        endless = tf.data.Dataset.range(1).flat_map(lambda _: _repeat_empty_batch(size))
        empty = {"": service_client.distribute(endless, plan.config.service, training=True, limit_s=limit_s)}
        rates = {}
    intervals = measure_intervals(name_workers(empty) if plan.by_steps else {"The tf.data service": empty[""]}, limit_s)
    return describe_service(run, list(workers), rates, intervals, compression)


def describe_service(
    run: ServedRun,
    workers: Sequence[str],
    rates: Mapping[str, float],
    intervals: Sequence[float],
    compression: Compression,
) -> ServiceUse:
    """Puts together what was measured. Pure.

    Args:
        run: The run.
        workers: The addresses of the workers, in the order of their numbers.
        rates: The batches a second of each worker by itself; empty if that was not measured.
        intervals: The seconds between two batches of a worker that cost nothing to make.
        compression: The change that compression would make.
    """
    images, wall_s = run.timing.images_per_step, run.timing.wall_s
    makers: list[int | None] = []
    if run.shares is not None:
        numbers = range(run.first_step, run.first_step + len(run.steps))
        makers = [run.shares.find_worker(number, len(workers)) for number in numbers]
    timings: list[WorkerTiming] = []
    for number, address in enumerate(workers):
        own = [step for step, maker in zip(run.steps, makers, strict=False) if maker == number]
        rate = rates.get(address)
        timings.append(
            WorkerTiming(
                address,
                len(own) / len(makers) if makers else None,
                min(sum(step.wait_s for step in own) / wall_s, 1.0) if makers else None,
                None if rate is None else rate * images,
            )
        )
    timings = _mark_late_worker(timings, find_late_worker(rates))
    local = makers.count(None) / len(makers) if makers else 0.0
    hand_over = Spread.from_values(intervals) if intervals else None
    side_by_side = max(len(rates), 1)
    return ServiceUse(
        workers=tuple(timings),
        local_fraction=local,
        batch_bytes=compression.batch_bytes,
        wire_bytes_per_second=run.timing.steps / wall_s * (1 - local) * compression.batch_bytes,
        wire_limit_images_per_second=images * side_by_side * len(intervals) / sum(intervals) if intervals else None,
        hand_over_s=hand_over,
        compressed_fraction=compression.compressed_fraction,
        compress_s=compression.compress_s,
        uncompress_s=compression.uncompress_s,
    )


def _mark_late_worker(timings: Sequence[WorkerTiming], slowest: str | None) -> list[WorkerTiming]:
    """Marks the slowest worker if the trainer waits for it, too. A rate alone may be low for other reasons.

    Workers that are equally fast are waited for by turns or always in the same place, so a wait alone proves nothing.
    """
    waits = {timing.address: timing.wait_fraction or 0.0 for timing in timings}
    others = [wait for address, wait in waits.items() if address != slowest]
    late = slowest if slowest is not None and waits[slowest] >= statistics.median(others) else None
    return [replace(timing, late=timing.address == late) for timing in timings]


def time_taking(before: HostTime, after: HostTime, timing: StepTiming, use: ServiceUse) -> StageTiming:
    """Returns the figures of the stage that takes batches from a service.

    All processor time of this process counts: tf.data's counters take the wait for a worker for work.
    """
    images = timing.steps * timing.images_per_step
    cpu_us = (after.process - before.process) / images * 1e6
    out = timing.steps / timing.wall_s * use.batch_bytes
    return StageTiming(
        "prefetch", Spread(cpu_us, cpu_us, cpu_us), images / timing.wall_s, use.wire_bytes_per_second, out
    )


def get_shares(plan: ReadPlan, stages: Stages) -> StepShares | None:
    """Returns the steps that the trainer makes itself, once the stages are built; None without exact order."""
    if not plan.by_steps:
        return None
    chosen = [stage.settings.get("service_share") for stage in stages if stage.name == "prefetch"]
    return next((shares for shares in chosen if isinstance(shares, StepShares)), StepShares.from_share(0))


def _cut_at_batch(stages: Stages) -> Stages:
    """Returns the stages that workers run: those before the one that takes the batches."""
    places = [place for place, stage in enumerate(stages) if stage.apply_around is not None]
    return Stages(stages[: places[-1]], stages.options) if places else stages


def _make_empty_batches(size: int) -> Stages:
    """Makes stages that turn each step into a batch of some bytes."""
    return Stages((Stage("batch", lambda steps: steps.map(lambda _: tf.zeros([size], tf.uint8))),))


def _repeat_empty_batch(size: int) -> tf.data.Dataset:
    return tf.data.Dataset.counter().map(lambda _: tf.zeros([size], tf.uint8))
