"""Reports the progress of a run: lines in metrics.jsonl, curves for TensorBoard, calls of an observer."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from tfpipe.profiler.live.step_recorder import MonitorReport
from tfpipe.profiler.live.tensorboard import Scalars
from tfpipe.system.progress import Progress
from tfpipe.training.checkpoints import Position
from tfpipe.training.learner import Learner
from tfpipe.training.results import EpochResult, Metrics, StepResult, TrainObserver
from tfpipe.training.run_dir import LOGS, RunDir

_SHOW_EVERY_S = 1.0


class RunLog:
    """The places to which a run writes its figures."""

    def __init__(self, learner: Learner, run_dir: RunDir, observer: TrainObserver) -> None:
        """Opens the log of a run; only the chief writes curves."""
        self._learner, self._facts, self._config = learner, learner.facts, learner.facts.config
        self._run_dir, self._observer = run_dir, observer
        self._scalars = Scalars(run_dir.file(LOGS)) if self._facts.is_chief else None
        self._epoch_began = self._shown_at = time.monotonic()
        self._shown_images = 0

    def begin_epoch(self, images_done: int) -> None:
        """Begins to time an epoch.

        Args:
            images_done: The images that an earlier part of the run has trained in this epoch.
        """
        self._epoch_began = self._shown_at = time.monotonic()
        self._shown_images = images_done

    def shows_now(self) -> bool:
        """Returns whether the observer was not called for a second. More calls cost, since reading the loss waits."""
        return time.monotonic() - self._shown_at >= _SHOW_EVERY_S

    def show_step(self, position: Position, sums: NDArray[np.float64], report: MonitorReport | None) -> None:
        """Passes the state of the epoch to the observer.

        Args:
            position: The place after the last step.
            sums: The sums since the epoch began.
            report: The latest report about idle time.
        """
        now, metrics = time.monotonic(), self._make_metrics(sums)
        images = metrics.images - self._shown_images
        result = StepResult(
            epoch=position.epoch,
            num_epochs=self._config.num_epochs,
            step=position.step,
            steps_per_epoch=self._facts.steps_per_epoch,
            metrics=metrics,
            images_per_second=images / (now - self._shown_at),
            idle_fraction=None if report is None else report.idle_fraction_estimate,
            input_wait_fraction=None if report is None else report.input_wait_fraction,
        )
        self._shown_at, self._shown_images = now, metrics.images
        all_steps = self._config.num_epochs * self._facts.steps_per_epoch
        self._observer.progress(Progress(position.count_steps(self._facts.steps_per_epoch), all_steps, "steps"))
        self._observer.step(result)

    def write_steps(self, position: Position, sums: NDArray[np.float64], report: MonitorReport | None) -> None:
        """Writes a line of metrics.jsonl and a point of each curve.

        Args:
            position: The place after the last step.
            sums: The sums since the last line.
            report: The latest report about idle time.
        """
        step = position.count_steps(self._facts.steps_per_epoch)
        values = {**self._make_metrics(sums).values, "learning_rate": self._learner.rates.get(step - 1)}
        self._run_dir.metrics.append({"kind": "step", "epoch": position.epoch, "step": step, **values})
        idle = {} if report is None else {f"tfpipe/{name}": value for name, value in report.logs.items()}
        self._write_scalars(step, {**{f"train/{name}": value for name, value in values.items()}, **idle})

    def write_epoch(
        self,
        position: Position,
        sums: NDArray[np.float64],
        evaluation: tuple[str, NDArray[np.float64]] | None,
        images_per_second: float | None,
    ) -> None:
        """Writes the epoch's line of metrics.jsonl and the evaluation's points, and calls the observer.

        Args:
            position: The end of the epoch.
            sums: The sums of the epoch's steps.
            evaluation: The name of the evaluation split, and the sums over its images.
            images_per_second: The rate at which this process took images.
        """
        step, trained, evaluated = position.count_steps(self._facts.steps_per_epoch), self._make_metrics(sums), None
        line = {"kind": "epoch", "epoch": position.epoch, "step": step, **trained.values}
        if evaluation is not None:
            split, evaluated = evaluation[0], self._make_metrics(evaluation[1])
            line["evaluation"] = {"split": split, **evaluated.values, "images": evaluated.images}
            self._write_scalars(step, {f"{split}/{name}": value for name, value in evaluated.values.items()})
        self._run_dir.metrics.append(line)
        result = EpochResult(
            epoch=position.epoch,
            num_epochs=self._config.num_epochs,
            training=trained,
            evaluation=evaluated,
            images_per_second=None if images_per_second is None else images_per_second * self._facts.num_processes,
            seconds=time.monotonic() - self._epoch_began,
        )
        self._observer.epoch(result)

    def _make_metrics(self, sums: NDArray[np.float64]) -> Metrics:
        return Metrics.from_sums(sums, self._facts.num_classes)

    def _write_scalars(self, step: int, values: dict[str, float]) -> None:
        if self._scalars is not None:
            self._scalars.write(step, values)
