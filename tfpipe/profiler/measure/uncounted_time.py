"""Books processor time that tf.data's counters miss to the stage that took it. Pure.

The kernel counts the processor time of all threads exactly. A few percent of it are never in a stage: see
`MOST_OTHER_PER_STAGE_TIME`. What is missing beyond that goes to the stages, in this order:

1. Reading. Threads that unpack a file ahead, or read for a call of the native library, are counted nowhere. On a busy
   machine reading can also be counted too high, since its many threads wait for a core. So it has at least what it cost
   when it was tried with a few records, as far as time is missing. It has at most twice as much, and the time of
   copying its bytes from memory, which the trial has in the processor's caches.
2. All others. Their counted time was divided by how much longer threads took than they ran. A thread that wakes up and
   waits for a core is not counted meanwhile, so on a busy machine this makes every stage look too cheap. The division
   is taken back as far as time is missing.
3. A stage of the user's own that computes much. Its operations can compute in threads of their own, as a convolution
   does, and only the time of the thread that called them is counted.

What is then left of the time that threads of `read` took by the clock is their wait for files.

A stage of the user's own can also be counted too high: its operations wait for their own threads. If the stages
together have more time than the processor spent, this stage gives it back. If its threads can have waited that long,
for files of its own say, they did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tfpipe.profiler.diagnose.calibration import (
    ALLOCATION_PER_STAGE_TIME,
    MOST_OTHER_PER_STAGE_TIME,
    RAW_READ_US_PER_KB,
)
from tfpipe.profiler.types import READING_STAGES, DatasetFacts, OptionCosts, Spread, StageTiming


@dataclass(frozen=True)
class ProcessorTime:
    """The processor time of all threads, as the kernel counts it.

    Attributes:
        us_per_image: The time for an image that leaves the pipeline, in microseconds.
        stretch: The factor by which the threads took longer than they ran, which the counted figures were divided by.
    """

    us_per_image: float
    stretch: float


_MOST_READING = 2.0
"""The time of reading that is believed, by what it cost when it was tried with files that the system has in memory."""
_POSSIBLE = 1.1
"""The busy threads of a stage, by those that it has, up to which its counted time is believed."""
_MUCH = 0.3
"""The share of the counted time from which on a stage of the user's own may have threads that nobody counts."""


def book_uncounted_time(
    stages: Sequence[StageTiming],
    spent: ProcessorTime,
    costs: OptionCosts,
    dataset: DatasetFacts,
    records_per_image: float,
) -> tuple[StageTiming, ...]:
    """Returns the figures of the stages with the time that the counters missed.

    Args:
        stages: The counted figures.
        spent: The processor time that the kernel counted.
        costs: The costs that were tried with a few records.
        dataset: The facts about the stages.
        records_per_image: The records that are taken for an image that leaves the pipeline.
    """
    counted = {stage.name: stage.cpu_us_per_image.median for stage in stages}
    in_stages_us = spent.us_per_image / (1 + MOST_OTHER_PER_STAGE_TIME)
    missed_us = max(in_stages_us - sum(counted.values()), 0.0)
    reading_us = _believe_reading(counted, missed_us, costs, dataset, records_per_image)
    others_us = sum(us for name, us in counted.items() if name not in reading_us)
    factor = (in_stages_us - sum(reading_us.values())) / others_us if others_us else 1.0
    factor = min(max(factor, 1.0), spent.stretch)
    booked = {name: reading_us.get(name, us * factor) for name, us in counted.items()}
    missed_us = in_stages_us - sum(booked.values())
    if costs.read is not None:
        stages = [
            _find_wait(stage, booked, spent.stretch, factor) if stage.name == "read" else stage for stage in stages
        ]
    own = [
        stage
        for stage in stages
        if stage.name in dataset.own_stages and stage.wait_us_per_image <= stage.cpu_us_per_image.median
    ]
    largest = max(own, key=lambda stage: booked[stage.name], default=None)
    if largest is not None and booked[largest.name] >= _MUCH * sum(booked.values()):
        if missed_us > 0:
            booked[largest.name] += missed_us
        elif sum(booked.values()) > spent.us_per_image:
            booked[largest.name] = max(booked[largest.name] + missed_us, 0.0)
            stages = [_add_wait(stage, -missed_us) if stage is largest else stage for stage in stages]
    return tuple(_scale(stage, counted[stage.name], booked) for stage in stages)


def _believe_reading(
    counted: Mapping[str, float],
    missed_us: float,
    costs: OptionCosts,
    dataset: DatasetFacts,
    records_per_image: float,
) -> dict[str, float]:
    """Returns the time of the stages that read, within the bounds of the trial; without one, what was counted."""
    reading_us = {name: counted[name] for name in READING_STAGES if name in counted}
    if costs.read is None or not reading_us:
        return reading_us
    # The trial's time includes its allocations.
    least_us = costs.read * records_per_image / (1 + ALLOCATION_PER_STAGE_TIME)
    copy_us = RAW_READ_US_PER_KB * dataset.record_bytes / 1e3 * records_per_image
    total_us = sum(reading_us.values())
    believed_us = min(max(total_us, min(least_us, total_us + missed_us)), _MOST_READING * least_us + copy_us)
    if total_us <= 0:
        return {name: believed_us if place == 0 else 0.0 for place, name in enumerate(reading_us)}
    return {name: us * believed_us / total_us for name, us in reading_us.items()}


def _find_wait(read: StageTiming, booked: Mapping[str, float], stretch: float, factor: float) -> StageTiming:
    """Returns `read` with the wait that its booked time leaves. The arguments are those of the caller."""
    clock_us = read.cpu_us_per_image.median * stretch + read.wait_us_per_image
    wait_us = max(clock_us - booked["read"] * stretch / factor, 0.0)
    blocked = min(wait_us * read.images_per_second / 1e6 / read.parallelism, 1.0)
    return replace(read, wait_us_per_image=wait_us, blocked_fraction=blocked)


def _add_wait(stage: StageTiming, us: float) -> StageTiming:
    """Returns a stage whose threads waited for some of their time, if they have that much time."""
    busy_threads = stage.images_per_second * stage.cpu_us_per_image.median / 1e6
    if busy_threads > _POSSIBLE * stage.parallelism:
        return stage
    return replace(stage, wait_us_per_image=stage.wait_us_per_image + min(us, stage.cpu_us_per_image.median))


def _scale(stage: StageTiming, counted_us: float, booked: Mapping[str, float]) -> StageTiming:
    if booked[stage.name] == counted_us:
        return stage
    if counted_us <= 0:
        us = booked[stage.name]
        return replace(stage, cpu_us_per_image=Spread(us, us, us))
    factor, cpu = booked[stage.name] / counted_us, stage.cpu_us_per_image
    return replace(stage, cpu_us_per_image=Spread(cpu.median * factor, cpu.low * factor, cpu.high * factor))
