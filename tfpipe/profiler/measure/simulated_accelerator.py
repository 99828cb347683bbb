"""A simulated accelerator: it takes batches and is busy for a step's time, but uses no processor.

A plain loop takes a batch, and then computes. Keras' `fit` takes the batch of the next step while the device computes,
and no other batch until the device has begun that step: a wait that is shorter than the step costs no idle time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tfpipe.profiler.types import IdleMethod, Spread, Step, StepTiming

MIN_WARM_UP_S, MIN_WARM_UP_STEPS = 1.5, 8
"""The shortest warm-up: AUTOTUNE tunes after 10, 20, 40 ... ms, so seven times within these seconds
(`kOptimizationPeriodMinMs` in TensorFlow's model.cc)."""
SETTLED = 0.1  # two rates that differ by at most this share count as the same
_INTERVALS = 10  # the intervals of a run whose spread is computed
_TIMELINE_STEPS = 200  # as many as a chart can show side by side


@dataclass(frozen=True)
class Accelerator:
    """The consumer of the batches."""

    step_s: float  # above 0, except for the trainer "none"
    images_per_step: int  # of all replicas together
    trainer: IdleMethod = "loop"


def drive(
    batches: Iterator[Any],
    accelerator: Accelerator,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Step]:
    """Feeds batches to the accelerator for as long as there are any, and yields each step when the device begins it."""
    free_at: float | None = None
    while True:
        if accelerator.trainer == "loop" and free_at is not None:
            sleep(max(free_at - clock(), 0.0))
        asked_at = clock()
        try:
            next(batches)
        except StopIteration:
            return
        got_at = clock()
        free_at = got_at if free_at is None else free_at
        begins_at = max(got_at, free_at)
        if begins_at > got_at:
            sleep(begins_at - got_at)  # until the device takes this batch: then there is room for the next
        yield Step(begins_at, begins_at - free_at, got_at - asked_at)
        free_at = begins_at + accelerator.step_s


def is_settled(begins: Sequence[float]) -> bool:
    """Returns whether the last quarter of the steps, which began at these times, took as long as the one before."""
    if len(begins) <= MIN_WARM_UP_STEPS or begins[-1] - begins[0] < MIN_WARM_UP_S:
        return False
    quarter = (len(begins) - 1) // 4
    last_s, before_s = begins[-1] - begins[-1 - quarter], begins[-1 - quarter] - begins[-1 - 2 * quarter]
    return abs(last_s - before_s) <= SETTLED * max(last_s, before_s)


def compute_step_timing(steps: Sequence[Step], accelerator: Accelerator) -> StepTiming:
    """Computes the timing of a run of at least two steps, from the beginning of the first to that of the last."""
    table = np.array([(step.begins_s, step.idle_s, step.wait_s) for step in steps])
    num_intervals = min(_INTERVALS, len(steps) - 1)
    edges = [round(i * (len(steps) - 1) / num_intervals) for i in range(num_intervals + 1)]

    def compute_shares(first: int, last: int) -> list[float]:
        shares = table[first + 1 : last + 1].sum(0) / (table[last, 0] - table[first, 0])
        return [min(share, 1.0) for share in shares.tolist()]

    _, idle, wait = zip(*(compute_shares(*ends) for ends in pairwise(edges)), strict=True)
    _, whole_idle, whole_wait = compute_shares(0, len(steps) - 1)
    return StepTiming(
        method=accelerator.trainer,
        steps=len(steps) - 1,
        images_per_step=accelerator.images_per_step,
        step_s=Spread(accelerator.step_s, accelerator.step_s, accelerator.step_s),
        wall_s=steps[-1].begins_s - steps[0].begins_s,
        idle_fraction=Spread.from_values(idle, whole_idle),
        input_wait_fraction=Spread.from_values(wait, whole_wait),
    )


def make_timeline(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Returns the first steps after the one that begins the measurement, with times relative to its beginning."""
    return tuple(replace(step, begins_s=step.begins_s - steps[0].begins_s) for step in steps[1 : _TIMELINE_STEPS + 1])
