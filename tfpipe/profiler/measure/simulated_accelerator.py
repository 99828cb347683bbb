"""An accelerator that is not there: it takes batches, is busy for a step's time, and uses no processor for it.

It works as real ones are fed: while the device computes one step, the host fetches the batch of the next one and
hands it over, and not until the device has begun with that one does it fetch another. So a wait for input that is
shorter than the step costs no idle time, and input wait and idle time are two figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from tfpipe.errors import ConfigError
from tfpipe.profiler.types import Spread, Step, StepTiming

MIN_WARM_UP_S, MIN_WARM_UP_STEPS = 1.5, 8
"""AUTOTUNE looks at its pipeline after 10, 20, 40 ... ms, so by then it has done so seven times
(`kOptimizationPeriodMinMs` in TensorFlow's model.cc)."""
NO_TIME_S = 1e-9
"""The step of an accelerator that waits for any pipeline."""
SETTLED = 0.1
"""Two rates that differ by less are called the same."""
_PARTS = 10  # of a run, for its spread
_TIMELINE_STEPS = 200  # as many as a chart can show side by side


@dataclass(frozen=True)
class Accelerator:
    """What consumes the batches."""

    step_s: float
    """Compute of one step."""
    images_per_step: int
    """Of all replicas together, as the pipeline hands them over."""

    def __post_init__(self) -> None:
        if not 0 < self.step_s < float("inf"):
            raise ConfigError(f"The step time must be above 0, got {self.step_s * 1e3:g} ms.")

    @property
    def images_per_second(self) -> float:
        """What it consumes when it never waits."""
        return self.images_per_step / self.step_s


def drive(
    batches: Iterator[Any],
    accelerator: Accelerator,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Step]:
    """Feeds batches to the accelerator, one step after another, for as long as there are batches.

    Steps begin at times that are computed, not slept for: when the machine wakes this thread late, the device's clock
    is not late, since the next batch may be fetched at any time during the step.
    """
    free: float | None = None
    while True:
        asked = clock()
        try:
            next(batches)
        except StopIteration:
            return
        got = clock()
        free = got if free is None else free
        begins = max(got, free)
        if begins > got:
            sleep(begins - got)  # until the device takes this batch: then there is room for the next
        yield Step(begins, begins - free, got - asked)
        free = begins + accelerator.step_s


def is_settled(begins: Sequence[float]) -> bool:
    """Whether the warm-up is over: the rate no longer changes.

    That is after at least 1.5 s and 8 steps, as soon as the last quarter of all steps took as long as the quarter
    before, within a tenth.
    """
    if len(begins) <= MIN_WARM_UP_STEPS or begins[-1] - begins[0] < MIN_WARM_UP_S:
        return False
    quarter = (len(begins) - 1) // 4
    last, before = begins[-1] - begins[-1 - quarter], begins[-1 - quarter] - begins[-1 - 2 * quarter]
    return abs(last - before) <= SETTLED * max(last, before)


def timing(steps: Sequence[Step], accelerator: Accelerator) -> StepTiming:
    """The figures of a run, from the begin of its first step to that of its last.

    Raises:
        ConfigError: Fewer than two steps fit.
    """
    if len(steps) < 2:
        raise ConfigError("The run was too short for two steps. Give more --seconds, or a shorter step.")
    parts = min(_PARTS, len(steps) - 1)
    edges = [round(i * (len(steps) - 1) / parts) for i in range(parts + 1)]
    cut = [steps[a : b + 1] for a, b in pairwise(edges)]

    def share(name: Literal["idle_s", "wait_s"]) -> Spread:
        # Of all steps, since waits come in bursts, which the median of the parts would miss.
        return Spread.of([_share(part, name) for part in cut], _share(steps, name))

    return StepTiming(
        method="simulated",
        steps=len(steps) - 1,
        images_per_step=accelerator.images_per_step,
        step_s=Spread(accelerator.step_s, accelerator.step_s, accelerator.step_s),
        wall_s=_wall_s(steps),
        idle_fraction=share("idle_s"),
        input_wait_fraction=share("wait_s"),
    )


def timeline(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The first steps after the one with which measuring begins, in seconds since then."""
    return tuple(replace(step, begins_s=step.begins_s - steps[0].begins_s) for step in steps[1 : _TIMELINE_STEPS + 1])


def _share(steps: Sequence[Step], name: Literal["idle_s", "wait_s"]) -> float:
    spent: float = sum(getattr(step, name) for step in steps[1:])
    return min(spent / _wall_s(steps), 1.0)


def _wall_s(steps: Sequence[Step]) -> float:
    return steps[-1].begins_s - steps[0].begins_s
