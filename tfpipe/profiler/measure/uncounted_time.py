"""Books processor time that tf.data's counters miss to the stage that took it. Pure.

The kernel counts the processor time of all threads exactly. The counters of the stages miss three parts of it:

- An operation that computes in threads of its own, such as a convolution, is counted by the time of the thread that
  called it.
- Threads that read ahead of a stage, such as those that unpack a file, are counted nowhere.
- The counted time of all stages is divided by how much longer threads took than they ran. A thread that wakes up and
  waits for a core is not counted meanwhile, so on a busy machine this makes every stage look too cheap.

A few percent are always missing: see `MOST_OTHER_PER_STAGE_TIME`. What is missing beyond that is given to the stages
that cost more than was counted when a few records were tried, and then to a stage of the user's own that computes much.

Reading can be counted too high on a busy machine, since its many threads wait for a core. It keeps at most twice what
it cost when it was tried, and the time of copying its bytes from memory, which the trial has in the processor's caches.
The rest is treated as time that was not counted.

A stage of the user's own can also be counted too high: its operations wait for their own threads, and few of its
batches end while it is measured. If the stages together have more time than the processor spent, this stage gives it
back. If its threads can have waited that long, for files of its own say, they did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfpipe.profiler.diagnose.calibration import (
    ALLOCATION_PER_STAGE_TIME,
    MOST_OTHER_PER_STAGE_TIME,
    RAW_READ_US_PER_KB,
)
from tfpipe.profiler.types import OPTION_COST_STAGES, READING_STAGES, DatasetFacts, OptionCosts, Spread, StageTiming

_MOST_READING = 2.0
"""The time of reading that is believed, by what it cost when it was tried with files that the system has in memory."""
_POSSIBLE = 1.1
"""The busy threads of a stage, by those that it has, up to which its counted time is believed."""
_MUCH = 0.3
"""The share of the counted time from which on a stage of the user's own may have threads that nobody counts."""


def book_uncounted_time(
    stages: Sequence[StageTiming], cpu_us: float, costs: OptionCosts, dataset: DatasetFacts, records_per_image: float
) -> tuple[StageTiming, ...]:
    """Returns the figures of the stages with the time that the counters missed.

    Args:
        stages: The counted figures.
        cpu_us: The processor time of all threads for an image that leaves the pipeline, in microseconds.
        costs: The costs that were tried with a few records.
        dataset: The facts about the stages.
        records_per_image: The records that are taken for an image that leaves the pipeline.
    """
    counted = {stage.name: stage.cpu_us_per_image.median for stage in stages}
    us = {**counted, **_limit_reading(counted, costs, dataset, records_per_image)}
    missed_us = cpu_us / (1 + MOST_OTHER_PER_STAGE_TIME) - sum(us.values())
    booked = dict(us)
    for names, cost_us in ((READING_STAGES, costs.read), (OPTION_COST_STAGES, _get_decode_cost(us, costs, dataset))):
        counted_us = sum(us.get(name, 0.0) for name in names)
        first = next((name for name in names if name in us), None)
        if cost_us is None or first is None:
            continue
        # The trial's time includes its allocations.
        tried_us = cost_us * records_per_image / (1 + ALLOCATION_PER_STAGE_TIME)
        more_us = min(max(tried_us - counted_us, 0.0), max(missed_us, 0.0))
        if counted_us > 0:
            booked |= {name: us[name] * (1 + more_us / counted_us) for name in names if name in us}
        else:
            booked[first] = more_us
        missed_us -= more_us
    own = [
        stage
        for stage in stages
        if stage.name in dataset.own_stages and stage.wait_us_per_image <= stage.cpu_us_per_image.median
    ]
    largest = max(own, key=lambda stage: us[stage.name], default=None)
    if largest is not None and us[largest.name] >= _MUCH * sum(us.values()):
        if missed_us > 0:
            booked[largest.name] += missed_us
        elif sum(us.values()) > cpu_us:
            booked[largest.name] = max(us[largest.name] + missed_us, 0.0)
            stages = [_add_wait(stage, -missed_us) if stage is largest else stage for stage in stages]
    return tuple(_scale(stage, counted[stage.name], booked) for stage in stages)


def _limit_reading(
    us: Mapping[str, float], costs: OptionCosts, dataset: DatasetFacts, records_per_image: float
) -> dict[str, float]:
    """Returns the time of the stages that read, limited by what reading cost when it was tried."""
    reading_us = {name: us[name] for name in READING_STAGES if name in us}
    most_us = math.inf
    if costs.read is not None:
        copy_us = RAW_READ_US_PER_KB * dataset.record_bytes / 1e3
        most_us = (_MOST_READING * costs.read + copy_us) * records_per_image
    ratio = min(most_us / sum(reading_us.values()), 1.0) if any(reading_us.values()) else 1.0
    return {name: value * ratio for name, value in reading_us.items()}


def _get_decode_cost(us: Mapping[str, float], costs: OptionCosts, dataset: DatasetFacts) -> float | None:
    """Returns the tried cost from `parse` to `batch`; None where a filter in front leaves fewer records to decode."""
    names = list(us)
    end = names.index("decode") if "decode" in us else len(names)
    return None if set(names[:end]) & set(dataset.filters) else costs.now


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
