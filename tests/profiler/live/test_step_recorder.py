"""The recorder, with times written by hand: reports, epochs, pauses, probes and the idle time of a device."""

import logging
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tfpipe.errors import DataError
from tfpipe.profiler.live.step_ledger import Delivery
from tfpipe.profiler.live.step_recorder import MonitorReport, StepRecorder, StepSums


def make_recorder(
    *, every_steps: int = 4, warm_up: int = 0, is_synchronous: bool = True, reports: list[MonitorReport] | None = None
) -> StepRecorder:
    return StepRecorder(
        every_steps=every_steps,
        warm_up=warm_up,
        is_synchronous=is_synchronous,
        on_report=(reports if reports is not None else []).append,
    )


def record(
    recorder: StepRecorder, count: int, *, start: float = 0.0, wait_s: float = 0.25, step_s: float = 1.0
) -> None:
    """Makes steps one after the other, each of one second and 8 images."""
    for i in range(count):
        call = recorder.begin(start + i)
        call.wait_s, call.images = wait_s, 8
        recorder.end(start + i + 1)


class WrittenClock:
    """A clock whose deliveries were written by hand."""

    capacity = 1024

    def __init__(self, *deliveries: Delivery) -> None:
        self.deliveries = list(deliveries)

    def take(self) -> Sequence[Delivery]:
        taken, self.deliveries = self.deliveries, []
        return taken


def test_it_loads_without_tensorflow() -> None:
    code = "import tfpipe.profiler.live.step_recorder, sys; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_period_gets_a_report_after_the_warm_up() -> None:
    reports: list[MonitorReport] = []
    recorder = make_recorder(every_steps=4, warm_up=2, reports=reports)
    record(recorder, 11)
    recorder.settle()
    assert [report.step for report in reports] == [6, 10]
    assert reports[0] == MonitorReport(6, 4, 4.0, 0.25, 0.25, "wait", 8.0)
    assert list(recorder.reports) == reports
    timing = recorder.result()
    assert (timing.method, timing.steps, timing.images_per_step, timing.wall_s) == ("monitor", 9, 8, 9.0)
    assert timing.step_s.median == 0.75  # no probe: the wall time without the wait
    assert timing.idle_fraction.median == timing.input_wait_fraction.median == 0.25


def test_a_pause_is_left_out() -> None:
    recorder = make_recorder()
    record(recorder, 3)
    recorder.pause(3.0)
    assert recorder.last_end is None
    record(recorder, 3, start=100.0)
    assert recorder.result().wall_s == 6.0


def test_a_step_whose_end_nobody_saw_does_not_count() -> None:
    recorder = make_recorder()
    record(recorder, 2)
    recorder.begin(2.0).wait_s = 0.0
    recorder.leave(50.0)
    assert recorder.result().steps == 2


def test_a_step_that_got_no_batch_is_forgotten() -> None:
    recorder = make_recorder()
    record(recorder, 2)
    recorder.begin(2.0)
    recorder.cancel()
    recorder.end(9.0)
    assert recorder.result().steps == 2


def test_each_epoch_has_its_own_figures() -> None:
    recorder = make_recorder(every_steps=100)
    record(recorder, 3, wait_s=0.25)
    assert recorder.end_epoch(3.0)["input_wait_fraction"] == 0.25
    record(recorder, 3, start=10.0, wait_s=0.5)
    assert recorder.end_epoch(13.0) == {
        "input_wait_fraction": 0.5,
        "idle_fraction_estimate": 0.5,
        "images_per_second": 8.0,
    }


def test_a_clock_tells_the_waits_later() -> None:
    recorder = make_recorder()
    recorder.clock = WrittenClock(*(Delivery(i, i, i + 0.5, 8) for i in range(3)))
    for i in range(3):
        recorder.begin(i)
        recorder.end(i + 1)
    assert recorder.result().input_wait_fraction.median == 0.5


def test_a_device_that_works_ahead_is_idle_only_while_it_has_no_batch() -> None:
    reports: list[MonitorReport] = []
    recorder = make_recorder(every_steps=2, is_synchronous=False, reports=reports)
    for i in range(2):
        call = recorder.begin(i)
        call.wait_s = 0.5
        call.set_probe(i + 0.5, i + 1.25)  # 0.75 s of compute in steps of 1 s
        recorder.end(i + 1)
    recorder.settle()
    assert (reports[0].input_wait_fraction, reports[0].idle_fraction_estimate) == (0.5, 0.25)
    assert reports[0].idle_from == "probes"
    assert recorder.result().step_s.median == 0.75


def test_probes_come_five_times_and_then_in_every_fiftieth_step() -> None:
    recorder = make_recorder(warm_up=3, is_synchronous=False)
    probes = []
    for step in range(110):
        if recorder.decide_probe():
            probes.append(step)
        record(recorder, 1)
    assert probes == [3, 4, 5, 6, 7, 52, 102]
    assert all(make_recorder(is_synchronous=True).decide_probe() for _ in range(9))


def test_idle_is_the_time_that_compute_leaves_and_no_more_than_the_wait() -> None:
    sums = StepSums(steps=10, images=80, wall_s=1.0, wait_s=0.6)
    assert sums.report(10, None) == MonitorReport(10, 10, 1.0, 0.6, 0.6, "wait", 80.0)
    idle = {compute_s: sums.report(10, compute_s).idle_fraction_estimate for compute_s in (0.08, 0.01, 0.2)}
    assert idle == {0.08: pytest.approx(0.2), 0.01: 0.6, 0.2: 0.0}  # dispatched ahead: busy while the trainer waited
    assert sums.report(10, 0.08).idle_from == "probes"


def test_a_training_without_steps_is_told(caplog: pytest.LogCaptureFixture) -> None:
    recorder = make_recorder(warm_up=1)
    with pytest.raises(DataError) as caught:
        recorder.result()
    assert str(caught.value) == "No step was seen after the 1 of the warm-up; 0 were made. Train for longer."
    recorder.clock = WrittenClock()
    for i in range(3):
        recorder.begin(i)
        recorder.end(i + 1)
    with caplog.at_level(logging.WARNING, "tfpipe"):
        assert recorder.end_epoch(3.0) == {}
        assert recorder.end_epoch(3.0) == {}
    assert caplog.text.count("3 steps were made, and the clock saw no batch of them.") == 1
