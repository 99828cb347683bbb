"""The simulated accelerator against two clocks that tell the truth: a made-up one, and the machine's."""

import time
from collections.abc import Iterator

import pytest

from tfpipe.profiler.measure.simulated_accelerator import (
    Accelerator,
    compute_step_timing,
    drive,
    is_settled,
    make_timeline,
)
from tfpipe.profiler.types import IdleMethod, Spread, Step


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make_steps(
    make_s: float, step_s: float, count: int = 50, oversleep_s: float = 0.0, trainer: IdleMethod = "fit"
) -> list[Step]:
    """Returns the steps for batches that take `make_s` each and are made on request."""
    clock = Clock()

    def batches() -> Iterator[None]:
        while True:
            clock.sleep(make_s)
            yield None

    run = drive(batches(), Accelerator(step_s, 10, trainer), clock, lambda s: clock.sleep(s + oversleep_s))
    return [next(run) for _ in range(count)]


def get_idle(steps: list[Step], step_s: float) -> float:
    return compute_step_timing(steps, Accelerator(step_s, 10)).idle


@pytest.mark.parametrize(
    ("trainer", "make_s", "truth"),
    [
        *(("loop", make_s, truth) for make_s, truth in ((0.0, 0.0), (0.25, 0.2), (1.0, 0.5), (3.0, 0.75))),
        *(("fit", make_s, truth) for make_s, truth in ((0.1, 0.0), (1.0, 0.0), (4 / 3, 0.25), (2.0, 0.5), (20, 0.95))),
    ],
)
def test_planted_idle_is_measured_exactly(trainer: IdleMethod, make_s: float, truth: float) -> None:
    """A step takes 1 s. A plain loop waits for all that a batch takes; `fit` takes one while it computes."""
    steps = make_steps(make_s, 1.0, trainer=trainer)
    timing = compute_step_timing(steps, Accelerator(1.0, 10, trainer))
    assert get_idle(steps, 1.0) == pytest.approx(truth, abs=1e-9)
    if trainer == "loop":
        assert (timing.method, timing.idle_fraction.median) == ("loop", pytest.approx(truth))
        assert timing.input_wait_fraction.median == pytest.approx(truth)


def test_figures_are_those_of_the_whole_run() -> None:
    timing = compute_step_timing(make_steps(2.0, 1.0, count=21), Accelerator(1.0, 10))
    assert (timing.steps, timing.images_per_step, timing.wall_s) == (20, 10, 40.0)
    assert timing.idle_fraction == Spread.from_values([0.5])
    # Input wait is not idle time, and a late wake-up costs none.
    timing = compute_step_timing(make_steps(0.5, 1.0), Accelerator(1.0, 10))
    assert (timing.input_wait_fraction.median, timing.idle_fraction.median) == (pytest.approx(0.5), 0)
    assert get_idle(make_steps(0.2, 1.0, oversleep_s=0.3), 1.0) == pytest.approx(0)
    assert len(list(drive(iter([1, 2, 3]), Accelerator(1e-3, 1)))) == 3  # steps end with the batches


def test_a_run_has_settled_when_its_rate_no_longer_changes() -> None:
    steady = [0.25 * i for i in range(20)]
    assert not is_settled(steady[:4])
    assert not is_settled(steady[:8])
    assert is_settled(steady[:12])
    assert not is_settled([0.01 * i for i in range(100)])  # for 1 s
    assert not is_settled([0.1 * i**1.5 for i in range(20)])  # each takes longer


def paced(interval_s: float) -> Iterator[None]:
    """Yields a batch every `interval_s` by the clock, which is the truth."""
    due = time.perf_counter()
    while True:
        due += interval_s
        time.sleep(max(due - time.perf_counter(), 0))
        yield None


@pytest.mark.parametrize("truth", [0.5, *(pytest.param(truth, marks=pytest.mark.slow) for truth in (0.0, 0.95))])
def test_planted_idle_is_measured_on_a_real_clock(truth: float) -> None:
    """This machine is busy with other tests, so 3 points are allowed and not 1."""
    step_s = 0.02 * (1 - truth) if truth else 0.04
    run = drive(paced(0.02), Accelerator(step_s, 10, "fit"))
    assert get_idle([next(run) for _ in range(60)], step_s) == pytest.approx(truth, abs=0.03)


def test_the_timeline_is_bounded_and_begins_with_measuring() -> None:
    timeline = make_timeline([Step(5.0 + i, 0.25, 0.5) for i in range(300)])
    assert len(timeline) == 200
    assert (timeline[0], timeline[-1]) == (Step(1.0, 0.25, 0.5), Step(200.0, 0.25, 0.5))
