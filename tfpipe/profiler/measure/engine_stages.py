"""The stages of the engine by its own clocks, between two moments of a run. No TensorFlow.

```
read      list, find and read the records of a batch        reads at once
parse     their features
decode    images; transform: the user's function for each
batch     seeds, boxes, labels and other features           batch_transform: the user's function for a batch
```
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tfpipe.engine.clocks import Phase, PhaseTime
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.profiler.types import Spread, StageTiming

_PHASES: tuple[Phase, ...] = ("read", "parse", "decode", "transform", "batch", "batch_transform")
PYTHON_PHASES: tuple[Phase, ...] = ("transform", "batch_transform")
"""The phases that are functions of the user's own."""
_MOST_PARTS = 10


class Reading(NamedTuple):
    """The clocks of the engine at a moment.

    Attributes:
        at: The moment, by `time.perf_counter`.
        times: The time in each phase until then.
    """

    at: float
    times: Mapping[Phase, PhaseTime]

    @classmethod
    def now(cls, times: Mapping[Phase, PhaseTime]) -> Reading:
        """Returns the times with this moment."""
        return cls(time.perf_counter(), times)


class Shape(NamedTuple):
    """The facts about a run that its clocks do not know.

    Attributes:
        images_per_second: The images that left the pipeline.
        reads: The batches that are read at once.
        threads: The most threads that decode.
        calls: The most calls of the user's `transform` at once.
        record_bytes: The mean size of a record.
        image_bytes: The bytes of a finished image.
    """

    images_per_second: float
    reads: int
    threads: int
    calls: int
    record_bytes: float
    image_bytes: float


def time_phases(
    readings: Sequence[Reading], before: HostTime, after: HostTime, shape: Shape
) -> tuple[StageTiming, ...]:
    """Returns the figures of the phases that were passed, in their order.

    Args:
        readings: The clocks from the beginning of a run to its end.
        before: The use of the machine at the beginning.
        after: The use of the machine at the end.
        shape: The facts about the run.
    """
    size = max(-(-(len(readings) - 1) // _MOST_PARTS), 1)
    chosen = [*readings[:-1:size], readings[-1]]
    used_s = after.process - before.process
    # A thread that waits for a core waits for nothing else.
    stretch = 1 + max(after.queue - before.queue, 0.0) / used_s if used_s > 0 else 1.0
    timings = []
    for phase in _PHASES:
        costs_us = [_compute_us(phase, *pair, shape) for pair in pairwise(chosen)]
        cpu_us, wall_us = _compute_us(phase, chosen[0], chosen[-1], shape)
        if not wall_us:
            continue
        is_read = phase == "read"
        waits = max(wall_us - stretch * cpu_us, 0.0) if is_read or phase in PYTHON_PHASES else 0.0
        timings.append(
            StageTiming(
                name=phase,
                cpu_us_per_image=Spread.from_values([cpu for cpu, _ in costs_us], cpu_us),
                wait_us_per_image=waits,
                parallelism={"read": shape.reads, "parse": shape.reads, "transform": shape.calls}.get(
                    phase, shape.threads
                ),
                bytes_out_per_image=shape.record_bytes if phase in ("read", "parse") else shape.image_bytes,
            )
        )
    return tuple(timings)


def _compute_us(phase: Phase, before: Reading, after: Reading, shape: Shape) -> tuple[float, float]:
    """Returns the processor time and the time by the clock of a phase between two readings, for an image."""
    images = shape.images_per_second * (after.at - before.at)
    then, now = before.times.get(phase, PhaseTime()), after.times.get(phase, PhaseTime())
    return 1e6 * (now.cpu_s - then.cpu_s) / images, 1e6 * (now.wall_s - then.wall_s) / images
