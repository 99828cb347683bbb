"""Watches a training while it runs: how long it waits for input, and how much of its time the device is idle.

    monitor = tfpipe.IdleMonitor(log_dir="logs")
    model.fit(monitor.watch(dataset), callbacks=[monitor.callback()])      # Keras

    for batch in monitor.iterate(dataset):                                 # a loop of your own
        with monitor.step() as step:
            step.result = train_step(batch)

    print(monitor.result())

    monitor = tfpipe.IdleMonitor(hosts_dir="logs/hosts", host=(3, 16))     # one of 16: `tfpipe profile --hosts logs`

*Input wait* and *idle* are two figures. A GPU or TPU works on steps that were dispatched before. So the device may
still be busy while the trainer waits for a batch: the wait is the longer of the two. To estimate the idle time, the
monitor times some steps on a device that has nothing else to do (probes). The idle time is the wall time less the
compute time of all steps, and at most the wait. On CPUs a step has ended when its call returns, so there the wait is
the idle time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.profiler.live.device_sync import (
    block_until_done,
    count_images,
    count_local_replicas,
    steps_are_synchronous,
)
from tfpipe.profiler.live.graph_clock import GraphClock
from tfpipe.profiler.live.host_recorder import HostRecorder
from tfpipe.profiler.live.keras_callback import make_keras_callback
from tfpipe.profiler.live.step_recorder import MonitorReport, StepRecorder
from tfpipe.profiler.live.tensorboard import Scalars
from tfpipe.profiler.types import StepTiming

logger = logging.getLogger(__name__)

_NO_BATCH = object()


class StepHandle:
    """The object that `IdleMonitor.step` yields.

    Attributes:
        result: A value that the step computed, such as the loss. On a TPU the monitor needs it to wait for the end of
            the step.
    """

    result: Any = None


class IdleMonitor:
    """The input wait and the idle time of a training while it runs."""

    def __init__(
        self,
        *,
        every_steps: int = 100,
        warm_up: int = 10,
        log_dir: str | Path | None = None,
        hosts_dir: str | Path | None = None,
        host: tuple[int, int] = (0, 1),
    ) -> None:
        """Begins to monitor a training.

        Args:
            every_steps: The number of steps in a report.
            warm_up: The number of first steps that no figure includes, because they compile and fill buffers.
            log_dir: The folder for TensorBoard's scalars; None writes none.
            hosts_dir: The folder in which each host of a training keeps a record of its last steps, the same for all
                hosts. `tfpipe profile --hosts` reads them and says which host is late. None keeps no record.
            host: The number of this host, from 0, and the number of hosts that train together.

        Raises:
            ConfigError: A number is too small, or `host` is not one of the hosts.
        """
        if every_steps < 1:
            raise ConfigError(f"`every_steps` must be at least 1, got {every_steps}.")
        if warm_up < 0:
            raise ConfigError(f"`warm_up` must be at least 0, got {warm_up}.")
        if not 0 <= host[0] < host[1]:
            raise ConfigError(f"`host` must be the number of a host, from 0, and how many there are, got {host}.")
        self._scalars = None if log_dir is None else Scalars(log_dir)
        self._host_recorder = None if hosts_dir is None else HostRecorder(str(hosts_dir), *host)
        self._clock: GraphClock | None = None
        self._recorder = StepRecorder(
            every_steps=every_steps,
            warm_up=warm_up,
            is_synchronous=steps_are_synchronous(),
            started_at=time.time(),
            on_report=self._publish,
            on_call=(lambda call: None) if self._host_recorder is None else self._host_recorder.add,
        )

    @property
    def reports(self) -> deque[MonitorReport]:
        """A report for every `every_steps` steps; the last 10,000 of a long training."""
        return self._recorder.reports

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the dataset with a clock in its last stage.

        Use it for trainers that take batches themselves: Keras, or an iterator inside a `tf.function`. Watch only the
        training dataset, and add no stage after it, not even a prefetch. Under a strategy, watch inside the dataset
        function, or before `experimental_distribute_dataset`. The dataset must run in this process.

        The clock costs about 0.2 ms a batch; `iterate` costs 0.02 ms. To take a batch that is ready costs 0.2 to 1 ms
        when the pipeline and the step compete for cores. The clock does not count this as wait.
        """
        if self._clock is None:
            self._clock = self._recorder.clock = GraphClock()
        self.use_strategy(tf.distribute.get_strategy())
        return self._clock.watch(dataset)

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
                call.wait_s, call.images = time.time() - asked_at, count_images(batch)
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
            block_until_done(None)
        began, handle = time.time(), StepHandle()
        yield handle
        if is_probe:
            if not recorder.is_synchronous:  # fetching a result costs some 0.3 ms
                block_until_done(handle.result)
            call.set_probe(began, time.time())
        if iterated is None:
            recorder.end(time.time())

    def pause(self) -> None:
        """Leaves out the time until the next step, in which the training evaluates or saves."""
        self._recorder.pause(time.time())

    def end_epoch(self) -> dict[str, float]:
        """Pauses, and returns the figures of the epoch by name. There are none if no step was timed."""
        figures = self._recorder.end_epoch(time.time())
        self._write_host_record(at_once=True)
        return figures

    def result(self) -> StepTiming:
        """Returns the timing of all steps after the warm-up. Each spread is that of the reports.

        Raises:
            DataError: No step was timed after the warm-up.
        """
        timing = self._recorder.result()
        self._write_host_record(at_once=True)
        return timing

    def callback(self) -> tf.keras.callbacks.Callback:
        """Returns a callback for `model.fit`, whose dataset must have gone through `watch`.

        The callback puts `input_wait_fraction`, `idle_fraction_estimate` and `images_per_second` into the logs of each
        epoch. List it before callbacks that read them. A report is logged, and written for TensorBoard, every
        `every_steps` steps.
        """
        return make_keras_callback(self._recorder, self.end_epoch)

    def use_strategy(self, strategy: tf.distribute.Strategy) -> None:
        """Sets the strategy, to know how many replicas of this process take batches. `callback` does this by itself."""
        self._recorder.set_replicas(count_local_replicas(strategy))

    def _publish(self, report: MonitorReport) -> None:
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
        self._write_host_record()

    def _write_host_record(self, *, at_once: bool = False) -> None:
        if self._host_recorder is not None:
            self._host_recorder.write(self._recorder.device_compute_s, at_once=at_once)
