"""Records the steps of a training and adds them up: input wait and idle time of each period, each epoch, and the whole.

    recorder = StepRecorder(every_steps=100, warm_up=10, is_synchronous=True)
    call = recorder.begin(now)
    call.wait_s = 0.02                      # or `recorder.clock` tells it later
    recorder.end(now)
    recorder.result().idle_fraction

Pure: all times come in as numbers, in seconds, as `time.time()` gives them. `IdleMonitor` and its Keras callback read
the clocks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tfpipe.errors import DataError
from tfpipe.profiler.live.step_ledger import Delivery, StepLedger, TrainCall
from tfpipe.profiler.types import Spread, StepTiming

logger = logging.getLogger(__name__)

IdleFrom = Literal["wait", "probes"]

_PROBE_EVERY = 50  # a probe empties the device's queue, so at most one step in 50 loses its overlap
_FIRST_PROBES = 5  # one after another, for a first estimate
_MAX_REPORTS = 10_000
_MAX_STEPS_PER_READ = 64


class DeliveryClock(Protocol):
    """A clock inside a dataset, such as `tfpipe.profiler.live.graph_clock.GraphClock`."""

    @property
    def capacity(self) -> int:
        """The number of deliveries that the clock remembers."""

    def take(self) -> Sequence[Delivery]:
        """Returns the deliveries since the last call, in their order."""


@dataclass(frozen=True)
class MonitorReport:
    """The idle time of one period, which is a number of steps in a row.

    Attributes:
        step: The step of the whole training at which the period ended.
        steps: The number of steps in the period.
        wall_s: The time that the period took.
        input_wait_fraction: The share of the time in which the trainer waited for a batch.
        idle_fraction_estimate: The share of the time in which the device had no batch.
        idle_from: The source of the estimate. "probes": the time that the compute of timed steps leaves, at most the
            wait. "wait": the wait itself, which is exact on CPUs and an upper bound elsewhere.
        images_per_second: The rate at which the trainer took images.
    """

    step: int
    steps: int
    wall_s: float
    input_wait_fraction: float
    idle_fraction_estimate: float
    idle_from: IdleFrom
    images_per_second: float

    @property
    def logs(self) -> dict[str, float]:
        """The figures that Keras and TensorBoard show, by name."""
        return {
            "input_wait_fraction": self.input_wait_fraction,
            "idle_fraction_estimate": self.idle_fraction_estimate,
            "images_per_second": self.images_per_second,
        }


@dataclass
class StepSums:
    """The sums over some steps.

    Attributes:
        steps: The number of steps.
        images: The number of images that they took.
        wall_s: The time from the beginning of each to its end.
        wait_s: The time in which the trainer waited for a batch.
    """

    steps: int = 0
    images: int = 0
    wall_s: float = 0.0
    wait_s: float = 0.0

    def add(self, call: TrainCall) -> None:
        """Adds a call that has ended and whose wait is known."""
        assert call.end is not None
        assert call.wait_s is not None
        self.steps += call.steps
        self.images += call.images
        self.wall_s += call.end - call.begin
        self.wait_s += call.wait_s

    def report(self, step: int, compute_s: float | None) -> MonitorReport:
        """Returns the figures. The device is idle for the time that compute leaves, and at most for the wait.

        Args:
            step: The number of the last step.
            compute_s: The compute time of one step, in seconds. None if a step has ended when its call returns, so that
                the device is idle exactly while the trainer waits.
        """
        wall_s = max(self.wall_s, 1e-9)
        idle = wait = min(1.0, self.wait_s / wall_s)
        if compute_s is not None:
            idle = max(0.0, min(wait, 1.0 - self.steps * compute_s / wall_s))
        source: IdleFrom = "wait" if compute_s is None else "probes"
        return MonitorReport(step, self.steps, self.wall_s, wait, idle, source, self.images / wall_s)


class StepRecorder:
    """The record of one training: its steps in order, and their sums.

    Attributes:
        is_synchronous: Whether a step has ended when its call returns, as on CPUs.
        clock: The clock inside the dataset, if there is one. Without it the caller sets `TrainCall.wait_s`.
        reports: A report for every `every_steps` steps; the last ones of a long training.
        open_call: The call that has begun and has not ended.
        last_end: The time at which the last call ended; None after a pause.
    """

    def __init__(
        self,
        *,
        every_steps: int,
        warm_up: int,
        is_synchronous: bool,
        started_at: float = 0.0,
        on_report: Callable[[MonitorReport], None] = lambda report: None,
    ) -> None:
        """Begins a record.

        Args:
            every_steps: The number of steps in a report.
            warm_up: The number of first steps that no figure includes.
            is_synchronous: Whether a step has ended when its call returns.
            started_at: The time from which iterators of the dataset belong to this training.
            on_report: Called with each report.
        """
        self.is_synchronous = is_synchronous
        self.clock: DeliveryClock | None = None
        self.reports: deque[MonitorReport] = deque(maxlen=_MAX_REPORTS)
        self.open_call: TrainCall | None = None
        self.last_end: float | None = None
        self._every_steps, self._warm_up, self._on_report = every_steps, warm_up, on_report
        self._ledger = StepLedger()
        self._resumed_at: float | None = started_at
        self._ended_steps = self._settled_steps = self._probes = 0
        self._period, self._epoch, self._total = StepSums(), StepSums(), StepSums()
        self._has_warned = False

    def set_replicas(self, count: int) -> None:
        """Sets the number of replicas of this process that may each take their own batch.

        The largest number counts: outside the scope of a strategy a caller sees only one replica.
        """
        self._ledger.replicas = max(self._ledger.replicas, count)

    def begin(self, asks: float, steps: int = 1) -> TrainCall:
        """Begins a call of some steps, which asks for its batch now."""
        call = TrainCall(begin=asks, asks=asks, steps=steps, resumed_at=self._resumed_at)
        self._resumed_at, self.open_call = None, call
        return call

    def end(self, now: float) -> None:
        """Ends the open call, if there is one, and reads the clock before the clock forgets."""
        call, self.open_call = self.open_call, None
        if call is None:
            return
        call.end = self.last_end = now
        self._ledger.waiting.append(call)
        self._ended_steps += call.steps
        call.last_step = self._ended_steps
        rows_per_step = 4 * self._ledger.elements_per_step
        capacity = _MAX_STEPS_PER_READ if self.clock is None else self.clock.capacity // rows_per_step
        steps_per_read = max(1, min(_MAX_STEPS_PER_READ, self._every_steps, capacity))
        if self._ended_steps // steps_per_read != (self._ended_steps - call.steps) // steps_per_read:
            self.settle()

    def leave(self, now: float) -> None:
        """Ends the open call without counting it, because the time of its end is not known."""
        if self.open_call is not None:
            self.open_call.counts = False
        self.end(now)

    def cancel(self) -> None:
        """Forgets the open call, which got no batch because the dataset has ended."""
        self.open_call = None

    def pause(self, now: float) -> None:
        """Leaves out the time until the next step, in which a training evaluates or saves."""
        self.end(now)
        self.settle()
        if lost := self._ledger.forget_waiting():
            logger.debug("The clock has no wait for %d steps.", lost)
        self.last_end, self._resumed_at = None, now

    def end_epoch(self, now: float) -> dict[str, float]:
        """Pauses, and returns the figures that Keras logs for the epoch. There are none if no step was timed."""
        self.pause(now)
        sums, self._epoch = self._epoch, StepSums()
        if sums.steps:
            return self._make_report(sums).logs
        if not self._has_warned and self._ended_steps > self._warm_up:
            self._has_warned = True
            logger.warning("%s", self._explain_no_steps())
        return {}

    def decide_probe(self) -> bool:
        """Returns whether to time the compute of the next step. Call it once for each step."""
        if self.is_synchronous:
            return True  # costs nothing
        if self._ended_steps < self._warm_up:
            return False
        self._probes += 1
        return self._probes <= _FIRST_PROBES or self._probes % _PROBE_EVERY == 0

    def settle(self) -> None:
        """Reads the clock, and adds up the calls whose wait is known now."""
        deliveries = self.clock.take() if self.clock is not None else ()
        for call in self._ledger.settle(deliveries):
            self._settled_steps += call.steps
            if self._settled_steps <= self._warm_up:
                self._ledger.compute_s.clear()
                continue
            if not call.counts:
                continue
            for sums in (self._period, self._epoch, self._total):
                sums.add(call)
            if self._period.steps >= self._every_steps:
                report = self._make_report(self._period)
                self.reports.append(report)
                self._on_report(report)
                self._period = StepSums()

    def result(self) -> StepTiming:
        """Returns the timing of all steps after the warm-up. Each spread is that of the reports.

        Raises:
            DataError: No step was timed after the warm-up.
        """
        self.settle()
        total = self._total
        if not total.steps:
            raise DataError(self._explain_no_steps())
        whole = self._make_report(total)
        reports = self.reports or [whole]
        waits = [report.input_wait_fraction for report in reports]
        idles = [report.idle_fraction_estimate for report in reports]
        without_wait = (total.wall_s - total.wait_s) / total.steps
        return StepTiming(
            method="monitor",
            steps=total.steps,
            images_per_step=round(total.images / total.steps),
            step_s=Spread.from_values(self._ledger.compute_s or [without_wait]),
            wall_s=total.wall_s,
            idle_fraction=Spread.from_values(idles, whole.idle_fraction_estimate),
            input_wait_fraction=Spread.from_values(waits, whole.input_wait_fraction),
        )

    @property
    def device_compute_s(self) -> float | None:
        """The compute time of a step; None if the device is idle exactly while the trainer waits."""
        return None if self.is_synchronous else self._ledger.get_typical_compute_s()

    def _make_report(self, sums: StepSums) -> MonitorReport:
        return sums.report(self._settled_steps, self.device_compute_s)

    def _explain_no_steps(self) -> str:
        if self._ended_steps > self._warm_up:
            return (
                f"{self._ended_steps} steps were made, and the clock saw no batch of them. Train on the dataset that "
                "`IdleMonitor.watch` returned, in this process, or take batches from `IdleMonitor.iterate`."
            )
        return (
            f"No step was seen after the {self._warm_up} of the warm-up; {self._ended_steps} were made. Train for "
            "longer."
        )
