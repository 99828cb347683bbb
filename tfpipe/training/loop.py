"""The loop over epochs and steps.

```
each epoch   make steps ──▶ evaluate ──▶ write the epoch's line ──▶ save, if due
each step    take a batch, train on it ──▶ log, show, save, each if due ──▶ stop, if asked
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.distribution import distribute_dataset
from tfpipe.distribution.devices import count_hosts, get_device_kind, get_host_index, is_remote_tpu, list_workers
from tfpipe.errors import DataError, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.stage import Customize, explain_customize_errors
from tfpipe.profiler.hosts.read import HOSTS
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.profiler.live.step_recorder import MonitorReport
from tfpipe.profiler.types import StepTiming
from tfpipe.training.checkpoints import Checkpoints, Position
from tfpipe.training.results import SUM_NAMES
from tfpipe.training.run_dir import RunDir
from tfpipe.training.run_log import RunLog
from tfpipe.training.train_step import Learner

SUMS_SHAPE = (2, len(SUM_NAMES))
"""The shape of the sums: a row since the last line, and a row since the epoch began. A checkpoint saves both."""

_STEPS_PER_CALL_ON_TPU = 50

Stop = Callable[[], bool]


class TrainLoop:
    """The steps and epochs of a run that are still to do.

    Attributes:
        position: The step that comes next.
    """

    def __init__(
        self,
        learner: Learner,
        manifest: Manifest,
        evaluation_split: str | None,
        run_dir: RunDir,
        checkpoints: Checkpoints,
        log: RunLog,
        customize: Customize | None = None,
    ) -> None:
        """Begins at the first step; `go_to` moves to another."""
        self.learner, self.manifest, self.evaluation_split = learner, manifest, evaluation_split
        self.run_dir, self.checkpoints, self.log = run_dir, checkpoints, log
        self.config, self._customize = learner.config, customize
        self.position = Position(self.config.pipeline.seed, 0, 0)
        self._line_sums, self._epoch_sums = np.zeros(SUMS_SHAPE)
        self._unread_sums: list[tf.Tensor] = []
        self._saved_step = 0
        self._steps: _TimedSteps | None = None
        self._evaluation_data: Any = None

    def go_to(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Goes on from a checkpoint."""
        self.position, (self._line_sums, self._epoch_sums) = position, sums
        self._saved_step = self.global_step
        self.run_dir.go_back(position, self.learner.steps_per_epoch)

    def run(self, stop: Stop) -> bool:
        """Trains to the end of the last epoch. If it is stopped before, it saves and returns False.

        Raises:
            DataError: The loss is not a number, the data cannot be read, the model cannot be compiled or does not fit,
                or the folder cannot be written.
        """
        try:
            while self.position.epoch < self.config.num_epochs:
                self.log.begin_epoch(images_done=round(self._epoch_sums[-1]))
                if not (self._train_epoch(stop) and self._finish_epoch(stop)):
                    self._save()
                    return False
            return True
        except tf.errors.OpError as error:
            where = f"epoch {self.position.epoch + 1}, step {self.position.step}"
            raise DataError(f"The training ended after {where}: {first_line(error)}.") from error

    @property
    def global_step(self) -> int:
        """The number of steps that the run has made."""
        return self.position.count_steps(self.learner.steps_per_epoch)

    @property
    def timing(self) -> StepTiming | None:
        """The timing of all steps after the warm-up; None if there were too few."""
        return None if self._steps is None else self._steps.get_timing()

    def _train_epoch(self, stop: Stop) -> bool:
        """Makes the remaining steps of an epoch. Returns False if the run must stop."""
        steps_per_epoch, log_every = self.learner.steps_per_epoch, self.config.log_every_steps
        while (left := steps_per_epoch - self.position.step) > 0:
            before = self.position.step
            self._make_steps(left)
            step = self.position.step
            ends_line = step // log_every > before // log_every or step == steps_per_epoch
            if ends_line:
                self._log()
            if self.log.shows_now():
                self._read_sums()
                self.log.show_step(self.position, self._epoch_sums, self._last_report)
            if self._must_stop(stop, may_wait=ends_line):
                return False
            if step < steps_per_epoch and self._is_save_due():
                self._save()
        return True

    def _finish_epoch(self, stop: Stop) -> bool:
        """Evaluates, and writes the epoch's line. Returns False if the run must stop."""
        rates = self._steps.monitor.end_epoch() if self._steps else {}
        evaluation = None
        if self.evaluation_split is not None:
            sums = self._evaluate(self.evaluation_split, stop)
            if sums is None:
                return False
            evaluation = self.evaluation_split, sums
        self.log.write_epoch(self.position, self._epoch_sums, evaluation, rates.get("images_per_second"))
        self.position = self.position.next_epoch()
        self._line_sums, self._epoch_sums = np.zeros(SUMS_SHAPE)
        if self._is_save_due() or self.position.epoch == self.config.num_epochs:
            self._save()
        return True

    def _make_steps(self, left: int) -> None:
        """Calls the train function once, for one step or several, but for no more than remain."""
        if self._steps is None:
            monitor = _make_monitor(self.learner.strategy, self.config.log_every_steps, self.run_dir)
            self._steps = _TimedSteps(self.learner, self.manifest, self.global_step, self._customize, monitor)
        count = min(self._steps.steps_per_call, left)
        self._unread_sums.append(self._steps.make(count))
        self.position = self.position.after(count)

    def _evaluate(self, split: str, stop: Stop) -> NDArray[np.float64] | None:
        """Returns the sums over all images of a split, each counted once; None if the run must stop."""
        strategy = self.learner.strategy
        if self._evaluation_data is None:
            with explain_customize_errors(self._customize):
                self._evaluation_data = distribute_dataset(
                    strategy, self.manifest, split, self.config.evaluation_pipeline, customize=self._customize
                )
        total, is_only_host = np.zeros(len(SUM_NAMES)), count_hosts(strategy) == 1
        for batch in self._evaluation_data:
            total += self.learner.evaluate(batch).numpy()
            if is_only_host and stop():
                return None
        return total

    def _must_stop(self, stop: Stop, may_wait: bool) -> bool:
        """Returns whether any host must stop.

        Several hosts ask each other only when they write a line, because they wait for each other then anyway.
        """
        if count_hosts(self.learner.strategy) == 1:
            return stop()
        return may_wait and self.learner.any_host(stop())

    def _log(self) -> None:
        self._read_sums()
        self.log.write_steps(self.position, self._line_sums, self._last_report)
        self._line_sums = np.zeros_like(self._line_sums)

    def _read_sums(self) -> None:
        """Adds up the sums of the last steps, which waits for the device.

        Raises:
            DataError: The loss is not a number.
        """
        for tensor in self._unread_sums:
            step_sums = tensor.numpy()
            self._line_sums = self._line_sums + step_sums
            self._epoch_sums = self._epoch_sums + step_sums
        self._unread_sums.clear()
        if not np.isfinite([self._line_sums[0], self._epoch_sums[0]]).all():
            peak = self.config.peak_learning_rate(self.learner.global_batch_size)
            raise DataError(
                f"The loss is not a number any more at step {self.global_step}. Lower the learning rate, which has its "
                f"peak at {peak:.3g}, or warm up for longer."
            )

    @property
    def _last_report(self) -> MonitorReport | None:
        reports = self._steps.monitor.reports if self._steps else ()
        return reports[-1] if reports else None

    def _is_save_due(self) -> bool:
        return self.global_step - self._saved_step >= self.config.checkpoint_every_steps

    def _save(self) -> None:
        self._read_sums()
        if self._steps is not None:
            self._steps.monitor.pause()
        self._saved_step = self.global_step
        # The lines come first: a run that goes on drops those after its last checkpoint.
        self.run_dir.write_metrics()
        if self.learner.is_chief:
            self.checkpoints.save(self.position, np.stack([self._line_sums, self._epoch_sums]))


class _TimedSteps:
    """The training data from a step on, and the steps over it, timed by an `IdleMonitor`.

    Attributes:
        steps_per_call: The largest number of steps that run without a return to Python.
        monitor: The monitor of all steps.
    """

    def __init__(
        self,
        learner: Learner,
        manifest: Manifest,
        start_step: int,
        customize: Customize | None,
        monitor: IdleMonitor,
    ) -> None:
        """Opens the data at a step of the run."""
        self._learner, config, strategy = learner, learner.config, learner.strategy
        self.steps_per_call = config.steps_per_execution or (
            _STEPS_PER_CALL_ON_TPU if get_device_kind(strategy) == "TPU" else 1
        )
        self.monitor = monitor
        self.monitor.use_strategy(strategy)
        # If a loop inside a call takes its batches, only a clock inside the pipeline sees it wait. The pipelines of a
        # remote TPU run on other machines, where no clock of this process can run.
        watch = self.monitor.watch if self.steps_per_call > 1 and not is_remote_tpu(strategy) else None
        with explain_customize_errors(customize):
            dataset = distribute_dataset(
                strategy, manifest, config.split, config.training_pipeline, start_step, watch=watch, customize=customize
            )
        self._batches: Any = iter(dataset) if self.steps_per_call > 1 else self.monitor.iterate(dataset)

    def make(self, count: int) -> tf.Tensor:
        """Makes `count` steps, at most `steps_per_call`. Returns their sums, which the device may still compute."""
        if self.steps_per_call > 1:
            with self.monitor.step(count) as step:
                step.result = self._learner.train_from(self._batches, count)
        else:
            batch = next(self._batches)
            with self.monitor.step() as step:
                step.result = self._learner.train(batch)
        return step.result

    def get_timing(self) -> StepTiming | None:
        """Returns the timing of all steps after the warm-up; None if there were too few."""
        try:
            return self.monitor.result()
        except DataError:
            return None


def _make_monitor(strategy: tf.distribute.Strategy, every_steps: int, run_dir: RunDir) -> IdleMonitor:
    """Makes the monitor of this process. Where several processes train, each keeps a record in the folder of the run.

    Args:
        strategy: The strategy that trains.
        every_steps: The number of steps in a report.
        run_dir: The folder of the run.
    """
    num_processes = len(list_workers(strategy))
    if num_processes < 2:
        return IdleMonitor(every_steps=every_steps)
    host = get_host_index(strategy), num_processes
    return IdleMonitor(every_steps=every_steps, hosts_dir=run_dir.file(HOSTS), host=host)
