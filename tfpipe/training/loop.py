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
from numpy.typing import NDArray

from tfpipe.errors import DataError, first_line
from tfpipe.profiler.live.step_recorder import MonitorReport
from tfpipe.profiler.types import StepTiming
from tfpipe.training.checkpoints import Checkpoints, Position
from tfpipe.training.learner import SUMS_SHAPE, Learner, Steps, get_timing
from tfpipe.training.results import SUM_NAMES
from tfpipe.training.run_dir import RunDir
from tfpipe.training.run_log import RunLog

Stop = Callable[[], bool]


class TrainLoop:
    """The steps and epochs of a run that are still to do.

    Attributes:
        position: The step that comes next.
    """

    def __init__(self, learner: Learner, run_dir: RunDir, checkpoints: Checkpoints, log: RunLog) -> None:
        """Begins at the first step; `go_to` moves to another."""
        self.learner, self.facts, self.config = learner, learner.facts, learner.facts.config
        self.run_dir, self.checkpoints, self.log = run_dir, checkpoints, log
        self.position = Position(self.config.pipeline.seed, 0, 0)
        self._line_sums, self._epoch_sums = np.zeros(SUMS_SHAPE)
        self._unread: list[Any] = []  # results of steps, which devices may still compute
        self._saved_step = 0
        self._steps: Steps | None = None

    def go_to(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Goes on from a checkpoint."""
        self.position, (self._line_sums, self._epoch_sums) = position, sums
        self._saved_step = self.global_step
        self.run_dir.go_back(position, self.facts.steps_per_epoch)

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
        except self.learner.failures as error:
            where = f"epoch {self.position.epoch + 1}, step {self.position.step}"
            raise DataError(f"The training ended after {where}: {first_line(error)}.") from error
        finally:
            if self._steps is not None:
                self._steps.close()

    @property
    def global_step(self) -> int:
        """The number of steps that the run has made."""
        return self.position.count_steps(self.facts.steps_per_epoch)

    @property
    def timing(self) -> StepTiming | None:
        """The timing of all steps after the warm-up; None if there were too few."""
        return None if self._steps is None else get_timing(self._steps.monitor)

    def _train_epoch(self, stop: Stop) -> bool:
        """Makes the remaining steps of an epoch. Returns False if the run must stop."""
        steps_per_epoch, log_every = self.facts.steps_per_epoch, self.config.log_every_steps
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
        if (split := self.facts.evaluation_split) is not None:
            sums = self._evaluate(split, stop)
            if sums is None:
                return False
            evaluation = split, sums
        self.log.write_epoch(self.position, self._epoch_sums, evaluation, rates.get("images_per_second"))
        self.position = self.position.next_epoch()
        self._line_sums, self._epoch_sums = np.zeros(SUMS_SHAPE)
        if self._is_save_due() or self.position.epoch == self.config.num_epochs:
            self._save()
        return True

    def _make_steps(self, left: int) -> None:
        """Calls the train function once, for one step or several, but for no more than remain."""
        if self._steps is None:
            self._steps = self.learner.open_steps(self.global_step, self.run_dir)
        count = min(self._steps.steps_per_call, left)
        self._unread.append(self._steps.make(count))
        self.position = self.position.after(count)

    def _evaluate(self, split: str, stop: Stop) -> NDArray[np.float64] | None:
        """Returns the sums over all images of a split, each counted once; None if the run must stop."""
        total = np.zeros(len(SUM_NAMES))
        for sums in self.learner.evaluate(split):
            total += sums
            if self.facts.num_processes == 1 and stop():
                return None
        return total

    def _must_stop(self, stop: Stop, may_wait: bool) -> bool:
        """Returns whether any process must stop.

        Several processes ask each other only when they write a line, because they wait for each other then anyway.
        """
        if self.facts.num_processes == 1:
            return stop()
        return may_wait and self.learner.any_process(stop())

    def _log(self) -> None:
        self._read_sums()
        self.log.write_steps(self.position, self._line_sums, self._last_report)
        self._line_sums = np.zeros_like(self._line_sums)

    def _read_sums(self) -> None:
        """Adds up the sums of the last steps, which waits for the device.

        Raises:
            DataError: The loss is not a number.
        """
        for result in self._unread:
            step_sums = self.learner.read_sums(result)
            self._line_sums = self._line_sums + step_sums
            self._epoch_sums = self._epoch_sums + step_sums
        self._unread.clear()
        if not np.isfinite([self._line_sums[0], self._epoch_sums[0]]).all():
            peak = self.config.peak_learning_rate(self.facts.global_batch_size)
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
        # Lines come first: a run that goes on drops those after its last checkpoint.
        self.run_dir.write_metrics()
        if self.facts.is_chief:
            self.checkpoints.save(self.position, np.stack([self._line_sums, self._epoch_sums]))
