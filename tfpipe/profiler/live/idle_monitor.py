"""Watches a training while it runs: how long it waits for input, and how much of its time the device is idle.

    monitor = tfpipe.IdleMonitor(log_dir="logs")
    model.fit(monitor.watch(dataset), callbacks=[monitor.callback()])      # Keras

    for batch in monitor.iterate(dataset):                                 # a loop of your own
        with monitor.step() as step:
            step.result = train_step(batch)

    print(monitor.result())

*Input wait* and *idle* are two figures. A GPU or TPU works on what was dispatched before, so while the trainer waits
for a batch the device may still be busy: the wait is the longer of the two, and is never called idle here. To know
the idle time, some steps are timed on a device that has nothing else to do (probes): what their compute leaves of
the wall time, and no more than the wait, is the estimate. On CPUs a step has ended when its call returns, so there
the wait is the idle time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.live.graph_clock import ROWS, GraphClock, block_until_done, images_in, runs_in_step
from tfpipe.profiler.live.keras_callback import idle_callback
from tfpipe.profiler.live.step_recorder import IdleFrom, Ledger, Step, Sums
from tfpipe.profiler.live.tensorboard import Scalars
from tfpipe.profiler.types import Spread, StepTiming

logger = logging.getLogger(__name__)

_PROBE_EVERY = 50  # a probe empties the device's queue once, so it costs at most one step's overlap in 50
_FIRST_PROBES = 5  # one after another, for a first estimate
_WINDOWS = 10_000


@dataclass(frozen=True)
class MonitorReport:
    """What some steps in a row were like."""

    step: int
    """Of the whole training, at the end of them."""
    steps: int
    wall_s: float
    input_wait_fraction: float
    """Share of the time in which the trainer stood still for a batch."""
    idle_fraction_estimate: float
    """Share of the time in which the device had no batch."""
    idle_from: IdleFrom
    """"probes": what the compute of timed steps leaves; "wait": of the wait, which it equals on CPUs and otherwise
    does not exceed."""
    images_per_second: float

    @property
    def logs(self) -> dict[str, float]:
        """For Keras and TensorBoard."""
        return {
            "input_wait_fraction": self.input_wait_fraction,
            "idle_fraction_estimate": self.idle_fraction_estimate,
            "images_per_second": self.images_per_second,
        }


class TimedStep:
    """What `IdleMonitor.step` hands over."""

    result: Any = None
    """Something that the step computed, such as the loss. Needed on TPUs: only with it can the end be waited for."""


class IdleMonitor:
    """Input wait and idle time of a training, live."""

    def __init__(self, *, every_steps: int = 100, warm_up: int = 10, log_dir: str | Path | None = None) -> None:
        """A monitor for one training.

        Args:
            every_steps: How many steps a report covers.
            warm_up: Steps at the beginning that are left out of everything: compiling, filling buffers.
            log_dir: Where TensorBoard's scalars go, if anywhere.

        Raises:
            ConfigError: A number is too small.
        """
        if every_steps < 1:
            raise ConfigError(f"`every_steps` must be at least 1, got {every_steps}.")
        if warm_up < 0:
            raise ConfigError(f"`warm_up` must be at least 0, got {warm_up}.")
        self.reports: deque[MonitorReport] = deque(maxlen=_WINDOWS)
        """One for every `every_steps` steps, the last ones of a long training."""
        self._every, self._warm_up = every_steps, warm_up
        self._scalars = None if log_dir is None else Scalars(log_dir)
        self._clock: GraphClock | None = None
        self._ledger = Ledger()
        self.runs_in_step = runs_in_step()
        """A step has ended when its call returns."""
        self._open: Step | None = None
        self._since: float | None = time.time()
        self._left_at: float | None = None
        self._made = self._settled = self._probes = 0
        self._window, self._epoch, self._total = Sums(), Sums(), Sums()
        self._warned = False

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The same dataset with a clock in its last stage, for trainers that take batches out of sight: Keras, or an
        iterator inside a `tf.function`.

        Watch the dataset for training only, and whole: nothing may follow, no prefetch either. Under a strategy,
        watch inside the dataset function, or before `experimental_distribute_dataset`. It must run in this process.
        Costs some 0.2 ms a batch, where `iterate` costs 0.02 ms. To hand over a batch that is ready takes 0.2 to 1 ms
        where the pipeline and the step want the same cores; that happens around the clock, and is no part of the wait.
        """
        self._clock = self._clock or GraphClock()
        self.use_strategy(tf.distribute.get_strategy())
        return self._clock.watch(dataset)

    def iterate(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """The batches of a dataset, distributed or not, with a host's clock around each; once for each epoch."""
        iterator = iter(dataset)
        try:
            while True:
                asked = time.time()
                self.end_step(asked)
                batch = next(iterator, self)
                if batch is self:  # what no dataset yields
                    self._open = None
                    return
                step = self.begin_step(asked)
                step.wait_s, step.images = time.time() - asked, images_in(batch)
                yield batch
        finally:
            self.pause()

    @contextmanager
    def step(self, steps: int = 1) -> Iterator[TimedStep]:
        """Goes around the call of a train function.

        Args:
            steps: How many it makes, where a loop runs inside a `tf.function`.
        """
        outer = self._open
        entered = time.time()
        step = outer or self.begin_step(self._left_at or entered, steps)
        probing = self.probes_now()
        if probing and not self.runs_in_step:
            block_until_done(None)
        began, timed = time.time(), TimedStep()
        yield timed
        if probing:
            if not self.runs_in_step:  # fetching costs some 0.3 ms
                block_until_done(timed.result)
            step.compute_from, step.compute_until = began, time.time()
            if step.wait_s is not None:
                step.compute_s = step.compute_until - began
        if outer is None:
            self._left_at = time.time()
            self.end_step(self._left_at)

    def pause(self) -> None:
        """Training stops for a while, to evaluate or to save: what follows, up to the next step, is left out."""
        self.end_step(time.time())
        self._settle()
        if lost := self._ledger.forget_waiting():
            logger.debug("The clock has no wait for %d steps.", lost)
        self._left_at, self._since = None, time.time()

    def result(self) -> StepTiming:
        """All steps so far, less the warm-up, together; spreads are over the reports.

        Raises:
            DataError: No step was seen after the warm-up.
        """
        self._settle()
        total, reports = self._total, list(self.reports)
        if not total.steps:
            raise DataError(self._nothing())
        compute_s = self._ledger.typical_compute_s()
        waits = [one.input_wait_fraction for one in reports] or [total.input_wait_fraction]
        idles = [one.idle_fraction_estimate for one in reports] or [total.idle_fraction(self._device_s())]
        without_wait = (total.wall_s - total.wait_s) / total.steps
        return StepTiming(
            method="monitor",
            steps=total.steps,
            images_per_step=round(total.images / total.steps),
            step_s=Spread.of(self._ledger.compute_s or [compute_s or without_wait]),
            wall_s=total.wall_s,
            idle_fraction=Spread.of(idles, total.idle_fraction(self._device_s())),
            input_wait_fraction=Spread.of(waits, total.input_wait_fraction),
        )

    def callback(self) -> tf.keras.callbacks.Callback:
        """For `model.fit`, whose dataset must have gone through `watch`.

        Puts `input_wait_fraction`, `idle_fraction_estimate` and `images_per_second` into the logs of each epoch; stand
        before callbacks that read them. A report is logged, and written for TensorBoard, every `every_steps` steps.
        """
        return idle_callback(self)

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Tells how many replicas of this process may each take a batch of their own; `callback` does it itself."""
        if strategy.num_replicas_in_sync > 1:
            self._ledger.replicas = len(strategy.extended.worker_devices)

    # For the callback.

    def begin_step(self, asks: float, steps: int = 1) -> Step:
        """A step begins, and asks for its batch."""
        step = Step(begin=asks, asks=asks, steps=steps, since=self._since)
        self._since, self._open = None, step
        return step

    def end_step(self, now: float) -> None:
        """Ends the open step, if there is one, and reads the clock before it forgets."""
        step, self._open = self._open, None
        if step is None:
            return
        step.end = now
        self._ledger.waiting.append(step)
        self._made += step.steps
        per_read = max(1, min(64, self._every, ROWS // (4 * self._ledger.per_step)))
        if self._made // per_read != (self._made - step.steps) // per_read:
            self._settle()

    def leave_step(self) -> None:
        """The open step has ended some time ago, nobody knows when: it is left out."""
        if self._open is not None:
            self._open.counts = False
        self.end_step(time.time())

    def probes_now(self) -> bool:
        """Whether the compute of the next step is timed."""
        if self.runs_in_step:
            return True  # costs nothing
        if self._made < self._warm_up:
            return False
        self._probes += 1
        return self._probes <= _FIRST_PROBES or self._probes % _PROBE_EVERY == 0

    def _settle(self) -> None:
        deliveries = self._clock.take() if self._clock is not None else []
        for step in self._ledger.settle(deliveries):
            self._settled += step.steps
            if self._settled <= self._warm_up:
                self._ledger.compute_s.clear()
                continue
            if not step.counts:
                continue
            for sums in (self._window, self._epoch, self._total):
                sums.add(step)
            if self._window.steps >= self._every:
                self._publish(self._report(self._window))
                self._window = Sums()

    def _report(self, sums: Sums) -> MonitorReport:
        compute_s = self._device_s()
        return MonitorReport(
            step=self._settled,
            steps=sums.steps,
            wall_s=sums.wall_s,
            input_wait_fraction=sums.input_wait_fraction,
            idle_fraction_estimate=sums.idle_fraction(compute_s),
            idle_from="wait" if compute_s is None else "probes",
            images_per_second=sums.images_per_second,
        )

    def _device_s(self) -> float | None:
        return None if self.runs_in_step else self._ledger.typical_compute_s()

    def _publish(self, report: MonitorReport) -> None:
        self.reports.append(report)
        logger.info(
            "Step %d: input wait %.1f %%, device idle %.1f %% (from %s), %.1f images/s.",
            report.step,
            100 * report.input_wait_fraction,
            100 * report.idle_fraction_estimate,
            report.idle_from,
            report.images_per_second,
        )
        if self._scalars is not None:
            self._scalars.write(report.step, {f"tfpipe/{name}": value for name, value in report.logs.items()})

    def end_epoch(self) -> dict[str, float]:
        """What Keras logs of an epoch; nothing where no step was seen."""
        self.pause()
        sums, self._epoch = self._epoch, Sums()
        if sums.steps:
            return self._report(sums).logs
        if not self._warned and self._made > self._warm_up:
            self._warned = True
            logger.warning("%s", self._nothing())
        return {}

    def _nothing(self) -> str:
        if self._made > self._warm_up:
            return (
                f"{self._made} steps were made, and the clock saw no batch of them. Train on the dataset that "
                "`IdleMonitor.watch` returned, in this process, or take batches from `IdleMonitor.iterate`."
            )
        return f"No step was seen after the {self._warm_up} of the warm-up; {self._made} were made. Train for longer."
