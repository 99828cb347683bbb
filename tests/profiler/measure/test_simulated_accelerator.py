"""The simulated accelerator against clocks that tell the truth: one made up, and the machine's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tfpipe.errors import ConfigError
from tfpipe.profiler.diagnose import bottleneck
from tfpipe.profiler.measure.simulated_accelerator import Accelerator, drive, is_settled, timeline, timing
from tfpipe.profiler.types import Spread, Step


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def steps(make_s: float, step_s: float, count: int = 50, oversleep_s: float = 0.0) -> list[Step]:
    """Batches that take `make_s` each, made when they are asked for."""
    clock = Clock()

    def batches() -> Iterator[None]:
        while True:
            clock.sleep(make_s)
            yield None

    run = drive(batches(), Accelerator(step_s, 10), clock, lambda s: clock.sleep(s + oversleep_s))
    return [next(run) for _ in range(count)]


def idle(found: list[Step], step_s: float) -> float:
    return bottleneck.idle_fraction(timing(found, Accelerator(step_s, 10)))


@pytest.mark.parametrize(
    ("make_s", "truth"), [(0.1, 0.0), (1.0, 0.0), (4 / 3, 0.25), (2.0, 0.5), (4.0, 0.75), (20, 0.95)]
)
def test_planted_idle(make_s: float, truth: float) -> None:
    """Steps of 1 s; a batch is made while the one before is computed."""
    assert idle(steps(make_s, 1.0), 1.0) == pytest.approx(truth, abs=1e-9)


def test_input_wait_is_not_idle_time() -> None:
    found = timing(steps(0.5, 1.0), Accelerator(1.0, 10))
    assert found.input_wait_fraction.median == pytest.approx(0.5)
    assert found.idle_fraction.median == 0


def test_a_late_wake_up_costs_no_idle_time() -> None:
    assert idle(steps(0.2, 1.0, oversleep_s=0.3), 1.0) == pytest.approx(0)


def test_batches_that_end() -> None:
    assert len(list(drive(iter([1, 2, 3]), Accelerator(1e-3, 1)))) == 3


def test_figures() -> None:
    found = timing(steps(2.0, 1.0, count=21), Accelerator(1.0, 10))
    assert (found.steps, found.images_per_step, found.wall_s) == (20, 10, 40.0)
    assert found.idle_fraction == Spread.of([0.5])
    with pytest.raises(ConfigError, match="too short for two steps"):
        timing([Step(0, 0, 0)], Accelerator(1.0, 10))


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_step(step_s: float) -> None:
    with pytest.raises(ConfigError, match="step time must be above 0"):
        Accelerator(step_s, 1)


def test_when_it_has_settled() -> None:
    steady = [0.25 * i for i in range(20)]
    assert not is_settled(steady[:4])
    assert not is_settled(steady[:8])
    assert is_settled(steady[:12])
    assert not is_settled([0.01 * i for i in range(100)])  # for 1 s
    assert not is_settled([0.1 * i**1.5 for i in range(20)])  # each takes longer


def paced(interval_s: float) -> Iterator[None]:
    """A batch every `interval_s`, by the clock: the truth."""
    due = time.perf_counter()
    while True:
        due += interval_s
        time.sleep(max(due - time.perf_counter(), 0))
        yield None


@pytest.mark.parametrize("truth", [0.0, 0.5, 0.95])
def test_planted_idle_on_a_real_clock(truth: float) -> None:
    """This machine is busy with other tests: hence 3 points and not 1."""
    step_s = 0.02 * (1 - truth) if truth else 0.04
    run = drive(paced(0.02), Accelerator(step_s, 10))
    found = [next(run) for _ in range(60)]
    assert idle(found, step_s) == pytest.approx(truth, abs=0.03)


def test_the_timeline_is_bounded_and_begins_with_measuring() -> None:
    found = timeline([Step(5.0 + i, 0.25, 0.5) for i in range(300)])
    assert len(found) == 200
    assert (found[0], found[-1]) == (Step(1.0, 0.25, 0.5), Step(200.0, 0.25, 0.5))
