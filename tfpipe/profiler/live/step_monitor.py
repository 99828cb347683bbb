"""Watches the steps of a training in any framework: how long it waits for input, and how long the device is idle.

    monitor = StepMonitor(devices, every_steps=100)
    for batch in monitor.iterate(loader):
        with monitor.step() as step:
            step.result = train_step(batch)
    print(monitor.result())

*Input wait* and *idle* are two figures. A GPU or TPU works on steps that were dispatched before. So the device may
still be busy while the trainer waits for a batch: the wait is the longer of the two. To estimate the idle time, the
monitor times some steps on a device that has nothing else to do (probes). The idle time is the wall time less the
compute time of all steps, and at most the wait. Where a step has ended when its call returns, as on CPUs in TensorFlow
and PyTorch, the wait is the idle time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tfpipe.profiler.live.step_recorder import MonitorReport, StepRecorder
from tfpipe.profiler.types import StepTiming
from tfpipe.system.arguments import check_count

logger = logging.getLogger(__name__)

_NO_BATCH = object()


class Devices(NamedTuple):
    """The answers of a framework about its devices.

    Attributes:
        is_synchronous: Whether a step has ended when its call returns.
        block_until_done: A function that waits until the devices have computed a step's result. With None it waits for
            all work that they were given, where the framework can.
        count_images: A function that counts the images of a batch that this process takes.
    """

    is_synchronous: bool
    block_until_done: Callable[[Any], None]
    count_images: Callable[[Any], int]


class StepHandle:
    """The object that `StepMonitor.step` yields.

    Attributes:
        result: A value that the step computed, such as the loss. On a TPU the monitor needs it to wait for the end of
            the step.
    """

    result: Any = None


class StepMonitor:
    """The input wait and the idle time of a training while it runs."""

    def __init__(
        self,
        devices: Devices,
        *,
        every_steps: int = 100,
        warm_up: int = 10,
    ) -> None:
        """Begins to monitor a training.

        Args:
            devices: The devices that train.
            every_steps: The number of steps in a report.
            warm_up: The number of first steps that no figure includes, because they compile and fill buffers.

        Raises:
            ConfigError: A number is too small.
        """
        check_count("every_steps", every_steps, 1)
        check_count("warm_up", warm_up)
        self._devices = devices
        self._recorder = StepRecorder(
            every_steps=every_steps,
            warm_up=warm_up,
            is_synchronous=devices.is_synchronous,
            started_at=time.time(),
            on_report=self._publish,
        )

    @property
    def reports(self) -> deque[MonitorReport]:
        """A report for every `every_steps` steps; the last 10,000 of a long training."""
        return self._recorder.reports

    def iterate(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of a dataset, distributed or not, and times each on the host. Call it every epoch."""
        iterator = iter(dataset)
        try:
            while True:
                asked_at = time.time()
                self._recorder.end(asked_at)
                batch = next(iterator, _NO_BATCH)
                if batch is _NO_BATCH:
                    self._recorder.cancel()
                    return
                call = self._recorder.begin(asked_at)
                call.wait_s, call.images = time.time() - asked_at, self._devices.count_images(batch)
                yield batch
        finally:
            self.pause()

    @contextmanager
    def step(self, steps: int = 1) -> Iterator[StepHandle]:
        """Measures the call of a train function inside its `with` block.

        Args:
            steps: The number of steps in the call: more than 1 if a loop runs inside a `tf.function`.
        """
        recorder = self._recorder
        iterated = recorder.open_call  # begun by `iterate`, which also ends it
        entered = time.time()
        call = iterated or recorder.begin(recorder.last_end or entered, steps)
        is_probe = recorder.decide_probe()
        if is_probe and not recorder.is_synchronous:
            self._devices.block_until_done(None)
        began, handle = time.time(), StepHandle()
        yield handle
        if is_probe:
            if not recorder.is_synchronous:  # fetching a result costs some 0.3 ms
                self._devices.block_until_done(handle.result)
            call.set_probe(began, time.time())
        if iterated is None:
            recorder.end(time.time())

    def pause(self) -> None:
        """Leaves out the time until the next step, in which the training evaluates or saves."""
        self._recorder.pause(time.time())

    def end_epoch(self) -> dict[str, float]:
        """Pauses, and returns the figures of the epoch by name. There are none if no step was timed."""
        return self._recorder.end_epoch(time.time())

    def result(self) -> StepTiming:
        """Returns the timing of all steps after the warm-up. Each spread is that of the reports.

        Raises:
            DataError: No step was timed after the warm-up.
        """
        return self._recorder.result()

    def _publish(self, report: MonitorReport) -> None:
        logger.info(
            "Step %d: input wait %.1f %%, device idle %.1f %% (from %s), %.1f images/s.",
            report.step,
            100 * report.input_wait_fraction,
            100 * report.idle_fraction_estimate,
            report.idle_from,
            report.images_per_second,
        )
