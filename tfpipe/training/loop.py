"""The loop over epochs and steps: feeds the learner, counts, logs, saves, evaluates."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.distribution import distribute_dataset
from tfpipe.distribution.devices import device_kind, is_remote_tpu, num_hosts
from tfpipe.errors import DataError, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.profiler.live.tensorboard import Scalars
from tfpipe.profiler.types import StepTiming
from tfpipe.training.checkpoints import Checkpoints, Position
from tfpipe.training.results import Audience, EpochResult, Metrics, Progress
from tfpipe.training.run_dir import LOGS, RunFolder
from tfpipe.training.train_step import NUM_SUMS, Learner

SUMS = (2, NUM_SUMS)
"""Of the steps since the last line, and of those since the epoch began; saved with a checkpoint."""

_SHOW_EVERY_S = 1.0
_STEPS_ON_TPU = 50


class Feed:
    """Takes the learner through the training data, under the eyes of an `IdleMonitor`."""

    def __init__(self, learner: Learner, manifest: Manifest, start_step: int) -> None:
        """Opens the data at a step of the run."""
        self._learner, config = learner, learner.config
        strategy, several = learner.strategy, device_kind(learner.strategy) == "TPU"
        self.steps_per_call = config.steps_per_execution or (_STEPS_ON_TPU if several else 1)
        self.monitor = IdleMonitor(every_steps=config.log_every_steps)
        self.monitor.use_strategy(strategy)
        # Where a loop takes its batches inside a call, only a clock inside the pipeline sees it wait; a remote TPU's
        # pipelines run where no clock of this process does.
        watch = self.monitor.watch if self.steps_per_call > 1 and not is_remote_tpu(strategy) else None
        dataset = distribute_dataset(
            strategy, manifest, config.split, config.training_pipeline, start_step, watch=watch
        )
        self._batches: Any = iter(dataset) if self.steps_per_call > 1 else self.monitor.iterate(dataset)

    def advance(self, steps: int) -> tf.Tensor:
        """Makes so many steps, at most `steps_per_call`. Returns their sums, which need not be there yet."""
        if self.steps_per_call > 1:
            with self.monitor.step(steps) as timed:
                timed.result = self._learner.train_from(self._batches, steps)
        else:
            batch = next(self._batches)
            with self.monitor.step() as timed:
                timed.result = self._learner.train(batch)
        return timed.result

    def timing(self) -> StepTiming | None:
        """Of all steps but the first; None where there were too few."""
        try:
            return self.monitor.result()
        except DataError:
            return None


class Loop:
    """A run from where it is to its end."""

    def __init__(
        self,
        learner: Learner,
        manifest: Manifest,
        evaluation_split: str | None,
        folder: RunFolder,
        checkpoints: Checkpoints,
        audience: Audience,
    ) -> None:
        """Begins at the first step; `go_to` goes elsewhere."""
        self.learner, self.manifest, self.evaluation_split = learner, manifest, evaluation_split
        self.folder, self.checkpoints, self.audience = folder, checkpoints, audience
        self.config, self.steps_per_epoch = learner.config, learner.steps_per_epoch
        self.position = Position(self.config.pipeline.seed, 0, 0)
        self.sums = np.zeros(SUMS)
        self.feed: Feed | None = None
        self._pending: list[tf.Tensor] = []
        self._saved_at = self._shown_images = 0
        self._shown_at = self._epoch_began = time.monotonic()
        self._scalars = Scalars(folder.file(LOGS)) if learner.is_chief else None
        self._evaluation: Any = None

    @property
    def global_step(self) -> int:
        """Steps done since the run began."""
        return self.position.epoch * self.steps_per_epoch + self.position.step

    def go_to(self, position: Position, sums: Any) -> None:
        """Goes on from a checkpoint."""
        self.position, self.sums = position, sums
        self._saved_at, self._shown_images = self.global_step, round(sums[1][-1])
        self.folder.go_back(position, self.steps_per_epoch)

    def run(self, stop: Callable[[], bool]) -> bool:
        """Trains to the end. Returns False where it was stopped before, after saving.

        Raises:
            DataError: The loss is no number, the data cannot be read, the model cannot be compiled or does not fit, or
                the folder cannot be written.
        """
        try:
            while self.position.epoch < self.config.num_epochs:
                self._epoch_began = self._shown_at = time.monotonic()
                if not (self._train_epoch(stop) and self._finish_epoch(stop)):
                    self._save()
                    return False
            return True
        except tf.errors.OpError as error:
            where = f"epoch {self.position.epoch + 1}, step {self.position.step}"
            raise DataError(f"The training ended after {where}: {first_line(error)}.") from error

    def _train_epoch(self, stop: Callable[[], bool]) -> bool:
        """The steps that are left of an epoch. Returns False where it is to stop."""
        if self.feed is None and self.position.step < self.steps_per_epoch:
            self.feed = Feed(self.learner, self.manifest, self.global_step)
        every = self.config.log_every_steps
        while (left := self.steps_per_epoch - self.position.step) > 0:
            assert self.feed is not None
            steps, before = min(self.feed.steps_per_call, left), self.position.step
            self._pending.append(self.feed.advance(steps))
            self.position = self.position.after(steps)
            after = self.position.step
            logs = after // every > before // every or after == self.steps_per_epoch
            if logs:
                self._log()
            self._show()
            if self._stops(stop, logs):
                return False
            if after < self.steps_per_epoch and self._is_due():
                self._save()
        return True

    def _stops(self, stop: Callable[[], bool], agrees: bool) -> bool:
        """Several processes ask each other with each line only: it makes them wait for each other."""
        if num_hosts(self.learner.strategy) == 1:
            return stop()
        return agrees and self.learner.any_host(stop())

    def _finish_epoch(self, stop: Callable[[], bool]) -> bool:
        """Evaluates, and writes the epoch's line. Returns False where it is to stop."""
        rates = self.feed.monitor.end_epoch() if self.feed else {}
        evaluated = None
        if self.evaluation_split is not None:
            sums = self._evaluate(self.evaluation_split, stop)
            if sums is None:
                return False
            evaluated = Metrics.of(sums, self.learner.num_classes)
        trained = Metrics.of(self.sums[1], self.learner.num_classes)
        line = {"kind": "epoch", "epoch": self.position.epoch, "step": self.global_step, **trained.values}
        if evaluated is not None:
            line["evaluation"] = {
                "split": self.evaluation_split, **evaluated.values, "images": evaluated.images
            }  # fmt: skip
            self._write_scalars({f"{self.evaluation_split}/{name}": value for name, value in evaluated.values.items()})
        self.folder.metrics.append(line)
        speed = rates.get("images_per_second")
        result = EpochResult(
            self.position.epoch, self.config.num_epochs, trained, evaluated,
            None if speed is None else speed * self._share(), time.monotonic() - self._epoch_began,
        )  # fmt: skip
        self.audience.epoch(result)
        self.position, self.sums = self.position.next_epoch(), np.zeros(SUMS)
        self._shown_images = 0
        if self._is_due() or self.position.epoch == self.config.num_epochs:
            self._save()
        return True

    def _evaluate(self, split: str, stop: Callable[[], bool]) -> Any:
        """Sums over all images of a split, each counted once; None where it is to stop."""
        strategy = self.learner.strategy
        if self._evaluation is None:
            self._evaluation = distribute_dataset(strategy, self.manifest, split, self.config.evaluation_pipeline)
        total, alone = np.zeros(NUM_SUMS), num_hosts(strategy) == 1
        for batch in self._evaluation:
            total += self.learner.evaluate(batch).numpy()
            if alone and stop():
                return None
        return total

    def _log(self) -> None:
        """A line in metrics.jsonl, and a point in TensorBoard."""
        self._drain()
        metrics = Metrics.of(self.sums[0], self.learner.num_classes)
        rate = float(self.learner.schedule(self.global_step - 1))
        values = {**metrics.values, "learning_rate": rate}
        self.folder.metrics.append({"kind": "step", "epoch": self.position.epoch, "step": self.global_step, **values})
        self.sums[0] = 0.0
        report = self._report()
        idle = {} if report is None else {f"tfpipe/{name}": value for name, value in report.logs.items()}
        self._write_scalars({**{f"train/{name}": value for name, value in values.items()}, **idle})

    def _write_scalars(self, values: dict[str, float]) -> None:
        if self._scalars is not None:
            self._scalars.write(self.global_step, values)

    def _show(self) -> None:
        """Tells the audience now and then; to look at the loss waits for the device."""
        now = time.monotonic()
        if now - self._shown_at < _SHOW_EVERY_S:
            return
        self._drain()
        metrics, report = Metrics.of(self.sums[1], self.learner.num_classes), self._report()
        images = metrics.images - self._shown_images
        progress = Progress(
            epoch=self.position.epoch,
            epochs=self.config.num_epochs,
            step=self.position.step,
            steps=self.steps_per_epoch,
            metrics=metrics,
            images_per_second=images / (now - self._shown_at),
            idle_fraction=None if report is None else report.idle_fraction_estimate,
            input_wait_fraction=None if report is None else report.input_wait_fraction,
        )
        self._shown_at, self._shown_images = now, metrics.images
        self.audience.progress(progress)

    def _report(self) -> Any:
        reports = self.feed.monitor.reports if self.feed else ()
        return reports[-1] if reports else None

    def _drain(self) -> None:
        """Adds up what the last steps counted, and refuses to go on with a loss that is no number."""
        for sums in self._pending:
            self.sums += sums.numpy()
        self._pending.clear()
        if not np.isfinite(self.sums[:, 0]).all():
            raise DataError(
                f"The loss is not a number any more at step {self.global_step}. Lower the learning rate, which has its "
                f"peak at {self.config.peak_learning_rate(self.learner.global_batch_size):.3g}, or warm up for longer."
            )

    def _share(self) -> int:
        """Hosts whose images this process does not see."""
        return 1 if isinstance(self.learner.strategy, tf.distribute.TPUStrategy) else num_hosts(self.learner.strategy)

    def _is_due(self) -> bool:
        return self.global_step - self._saved_at >= self.config.checkpoint_every_steps

    def _save(self) -> None:
        self._drain()
        if self.feed is not None:
            self.feed.monitor.pause()
        self._saved_at = self.global_step
        # First the lines: those that come after the last checkpoint are dropped when the run goes on.
        self.folder.write_metrics()
        if self.learner.is_chief:
            self.checkpoints.save(self.position, self.sums)
