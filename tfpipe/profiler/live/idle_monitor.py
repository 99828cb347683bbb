"""Watches a training while it runs: how long it waits for input, and how much of its time the device is idle.

    monitor = tfpipe.IdleMonitor(log_dir="logs")
    model.fit(monitor.watch(dataset), callbacks=[monitor.callback()])      # Keras

    for batch in monitor.iterate(dataset):                                 # a loop of your own
        with monitor.step() as step:
            step.result = train_step(batch)

    print(monitor.result())

    timing = tfpipe.measure_training(train_step, dataset, steps=200)       # the same for some steps, in one call

`tfpipe.profiler.live.step_monitor` says what the figures are. On CPUs a step has ended when its call returns, so there
the wait is the idle time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.live.device_sync import (
    block_until_done,
    count_images,
    count_local_replicas,
    steps_are_synchronous,
)
from tfpipe.profiler.live.graph_clock import GraphClock
from tfpipe.profiler.live.keras_callback import make_keras_callback
from tfpipe.profiler.live.step_monitor import Devices, StepMonitor
from tfpipe.profiler.live.step_recorder import MonitorReport
from tfpipe.profiler.live.tensorboard import Scalars
from tfpipe.profiler.types import StepTiming
from tfpipe.system.arguments import check_count, check_function, check_has

_REPORTS = 20  # of a measurement, for its spread


class IdleMonitor(StepMonitor):
    """The input wait and the idle time of a training in TensorFlow while it runs."""

    def __init__(
        self,
        *,
        every_steps: int = 100,
        warm_up: int = 10,
        log_dir: str | Path | None = None,
    ) -> None:
        """Begins to monitor a training.

        Args:
            every_steps: The number of steps in a report.
            warm_up: The number of first steps that no figure includes, because they compile and fill buffers.
            log_dir: The folder for TensorBoard's scalars; None writes none.

        Raises:
            ConfigError: A number is too small.
        """
        self._scalars = None if log_dir is None else Scalars(log_dir)
        self._clock: GraphClock | None = None
        super().__init__(
            Devices(steps_are_synchronous(), block_until_done, count_images),
            every_steps=every_steps,
            warm_up=warm_up,
        )

    def watch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the dataset with a clock in its last stage.

        Use it for trainers that take batches themselves: Keras, or an iterator inside a `tf.function`. Watch only the
        training dataset, and add no stage after it, not even a prefetch. Under a strategy, watch inside the dataset
        function, or before `experimental_distribute_dataset`. The dataset must run in this process.

        The clock costs about 0.2 ms a batch; `iterate` costs 0.02 ms. To take a batch that is ready costs 0.2 to 1 ms
        when the pipeline and the step compete for cores. The clock does not count this as wait.
        """
        check_has("dataset", dataset, "element_spec", "a tf.data.Dataset; other iterables go through `iterate`")
        if self._clock is None:
            self._clock = self._recorder.clock = GraphClock()
        self.use_strategy(tf.distribute.get_strategy())
        return self._clock.watch(dataset)

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
        if self._scalars is not None:
            self._scalars.write(report.step, {f"tfpipe/{name}": value for name, value in report.logs.items()})
        super()._publish(report)


def measure_training(
    train_step: Callable[[Any], Any], dataset: Iterable[Any], *, steps: int = 100, warm_up: int = 10
) -> StepTiming:
    """Trains for some steps under an `IdleMonitor`, and returns what it measured.

    The loop is a plain one: it takes a batch, and then it calls the step.

    Args:
        train_step: A function that takes an element of the dataset and trains on it. It may be compiled, or call
            `strategy.run`. It should return a value that it computed, such as the loss, because the end of a step on a
            TPU shows in no other way. The model is trained: save it before.
        dataset: An iterable of batches, distributed if the step is. It is iterated again when it ends.
        steps: The number of steps to measure.
        warm_up: The number of steps before the measured ones.

    Raises:
        ConfigError: A number is too small.
        DataError: The dataset is empty.
    """
    check_function("train_step", train_step)
    check_has("dataset", dataset, "__iter__", "an iterable of batches")
    check_count("steps", steps, 1)
    check_count("warm_up", warm_up)
    if warm_up < 1:
        raise ConfigError(f"`warm_up` must be at least 1, for what is compiled in the first step, got {warm_up}.")
    monitor = IdleMonitor(every_steps=max(steps // _REPORTS, 1), warm_up=warm_up)
    monitor.use_strategy(tf.distribute.get_strategy())
    left = warm_up + steps
    while left:
        before = left
        for batch in monitor.iterate(itertools.islice(dataset, left)):
            with monitor.step() as step:
                step.result = train_step(batch)
            left -= 1
        if left == before:
            raise DataError("The dataset has no batch to train on.")
    return monitor.result()
