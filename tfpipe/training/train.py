"""The reference trainer: one call makes a finished model from a dataset, or goes on with a run that was killed.

    strategy = tfpipe.resolve_strategy()
    config = TrainConfig(pipeline=PipelineConfig(batch_size=256), model="resnet50", output="runs/flowers")
    result = train(tfpipe.load_manifest("flowers"), config, strategy)

`replicas.py` has the compiled steps, `models.py` the models, `run_dir.py` the folder with its checkpoints, `export.py`
and `tflite.py` the finished model, and `predict.py` classifies images with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.distribution import distribute_dataset, set_precision, steps_per_epoch
from tfpipe.distribution.devices import get_device_kind, get_host_index, is_remote_tpu, list_workers
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.lookups.data_lock import lock_data
from tfpipe.lookups.held_layer import HeldLayer, find_held
from tfpipe.pipeline.stage import Customize, explain_customize_errors
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.profiler.types import StepTiming
from tfpipe.system.units import human_rate, human_share
from tfpipe.training.config import TrainConfig, TrainObserver, find_evaluation_split, format_means
from tfpipe.training.export import export_models
from tfpipe.training.models import BuildModel
from tfpipe.training.replicas import SUMS, TOP, Replicas
from tfpipe.training.run_dir import LOGS, RunDir

logger = logging.getLogger(__name__)

_STEPS_PER_CALL_ON_TPU = 50
_SHOW_EVERY_S = 1.0  # more calls cost, since reading the loss waits for the device
_LINE, _EPOCH = 0, 1  # the rows of the sums: since the last line, and since the epoch began
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR")

Means = dict[str, float]


class TrainResult(NamedTuple):
    """The result of a training, which the command prints with --json.

    `position` is the epoch and the step that come next, `last` the last epoch's line in metrics.jsonl, and `timing`
    that of this process's steps; None if there were too few.
    """

    output: str
    finished: bool
    was_finished: bool
    position: tuple[int, int]
    last: dict[str, Any] | None
    timing: StepTiming | None
    global_batch_size: int
    tflite_accuracy: float | None


def train(
    manifest: Manifest,
    config: TrainConfig,
    strategy: tf.distribute.Strategy,
    build: BuildModel | None = None,
    observer: TrainObserver | None = None,
    stop: Callable[[], bool] = lambda: False,
    customize: Customize | None = None,
) -> TrainResult:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    It sets Keras' dtype policy and the random seeds of this process. A run may go on under another strategy, if the
    global batch stays the same. After each step `stop` is called: once it returns True, the run is saved and ends.
    `customize` changes the stages of the pipelines; the exported model decodes images without it.
    """
    held = hold_layer(manifest, config.output, config.split)
    begun, manifest = (manifest, manifest) if held is None else (held.begun, held.manifest)
    check_dataset(manifest, config)
    tf.keras.utils.set_random_seed(config.pipeline.seed % 2**32)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    set_precision(config.precision, strategy)
    run = _Run(manifest, config, strategy, customize, observer or TrainObserver())
    stages = None if customize is None else f"{customize.__module__}:{customize.__qualname__}"
    options = {"dataset": _get_fingerprint(begun, config.split), "stages": stages, **config.get_run_options()}
    lock = _lock_data(manifest, config)
    if run.folder.begin(options, lock) and run.folder.is_finished(config.num_epochs, config.tflite):
        run.epoch = config.num_epochs
        return run.make_result(finished=True, was_finished=True)
    if run.evaluation_split is None:
        where = manifest.directory
        run.observer.note(f"{where} has no split validation or test, so all figures are about training images.")
    if held is not None:
        run.observer.note(held.note)
    run.begin(build)
    if held is not None and held.has_changed:
        run.folder.change_data(_get_fingerprint(manifest, config.split), lock, run.global_step)
    try:
        finished, accuracy = run.train(stop), None
    except tf.errors.OpError as error:
        where = f"epoch {run.epoch + 1}, step {run.step}"
        raise DataError(f"The training ended after {where}: {first_line(error)}.") from error
    if finished and run.process == 0:
        accuracy = export_models(run.folder, manifest, config, run.replicas.model.get_weights(), build, customize)
    return run.make_result(finished, tflite_accuracy=accuracy)


class _Run:
    """The epochs and steps of a run that are still to do."""

    def __init__(
        self,
        manifest: Manifest,
        config: TrainConfig,
        strategy: tf.distribute.Strategy,
        customize: Customize | None,
        observer: TrainObserver,
    ) -> None:
        self.manifest, self.config, self.strategy = manifest, config, strategy
        self.customize, self.observer = customize, observer
        self.process, self.num_processes = get_host_index(strategy), len(list_workers(strategy)) or 1
        self.steps_per_epoch = steps_per_epoch(manifest, config.split, config.training_pipeline, strategy)
        self.evaluation_split = find_evaluation_split(manifest, config.split)
        self.folder = RunDir(config.output, self.process == 0)
        self.monitor = IdleMonitor(every_steps=config.log_every_steps)
        self.epoch = self.step = self.saved_step = 0
        self.sums = np.zeros((2, len(SUMS)))
        self.unread: list[tf.Tensor] = []  # sums of steps, which devices may still compute
        self.batches: Any = None
        self.evaluation_data: Any = None
        self.curves: Any = None

    def begin(self, build: BuildModel | None) -> None:
        """Builds the model, and goes to the last checkpoint if there is one."""
        config = self.config
        self.schedule = make_schedule(config, self.steps_per_epoch)
        self.replicas = Replicas(config, self.strategy, len(self.manifest.label_names), self.schedule, build)
        saved = self.folder.restore(config.pipeline.seed, self.replicas.set_state)
        if self.num_processes > 1 and self.replicas.any_process(saved is not None) and saved is None:
            raise ConfigError(
                f"All processes must see the same checkpoints, and process {self.process} sees none in "
                f"{self.folder.path}. Use a folder that all hosts share."
            )
        if saved is None:
            self.folder.metrics.clear()  # a run may have ended before its first checkpoint
            return
        self.epoch, self.step, self.sums = saved
        self.saved_step = self.global_step
        self.folder.go_back(self.epoch, self.global_step)
        steps = self.steps_per_epoch * config.num_epochs
        self.observer.note(f"The run goes on at step {self.global_step:,} of {steps:,}, from a checkpoint.")

    def train(self, stop: Callable[[], bool]) -> bool:
        """Trains to the end of the last epoch. If it is stopped before, it saves and returns False."""
        config, last_step, every = self.config, self.steps_per_epoch, self.config.log_every_steps
        while self.epoch < config.num_epochs:
            began = self.shown_at = time.monotonic()
            self.shown_images = self.sums[_EPOCH, -1]
            while self.step < last_step:
                until_save = self.saved_step + config.checkpoint_every_steps - self.global_step
                for steps, sums in self._make_steps(min(until_save, last_step - self.step)):
                    self.unread.append(sums)
                    before, self.step = self.step, self.step + steps
                    ends_line = self.step // every > before // every or self.step == last_step
                    if ends_line:
                        self._log_steps()
                    if time.monotonic() - self.shown_at >= _SHOW_EVERY_S:
                        self._show()
                    if self._must_stop(stop, ends_line):
                        self._save()
                        return False
                if self.step < last_step:
                    self._save()
            speed = self.monitor.end_epoch().get("images_per_second")
            evaluated = self._evaluate(stop)
            if evaluated is None:
                self._save()
                return False
            self._log_epoch(evaluated, speed, time.monotonic() - began)
            self.epoch, self.step = self.epoch + 1, 0
            self.sums = np.zeros_like(self.sums)
            if self.global_step - self.saved_step >= config.checkpoint_every_steps or self.epoch == config.num_epochs:
                self._save()
        return True

    @property
    def global_step(self) -> int:
        """The number of steps that the run has made."""
        return self.epoch * self.steps_per_epoch + self.step

    def make_result(
        self, finished: bool, was_finished: bool = False, tflite_accuracy: float | None = None
    ) -> TrainResult:
        """Returns the result of the run as it stands."""
        try:
            timing = self.monitor.result()
        except DataError:  # there were too few steps
            timing = None
        figures = (self.epoch, self.step), self.folder.get_last_epoch(), timing, self.config.pipeline.batch_size
        return TrainResult(self.config.output, finished, was_finished, *figures, tflite_accuracy)

    def _open(self, split: str, pipeline: PipelineConfig, start_step: int = 0, watch: Any = None) -> Any:
        with explain_customize_errors(self.customize):
            data = self.manifest, split, pipeline, start_step
            return distribute_dataset(self.strategy, *data, watch=watch, customize=self.customize)

    def _make_steps(self, count: int) -> Iterator[tuple[int, tf.Tensor]]:
        """Makes steps, and yields after each call how many it made, and their sums."""
        on_tpu = get_device_kind(self.strategy) == "TPU"
        steps_per_call = self.config.steps_per_execution or (_STEPS_PER_CALL_ON_TPU if on_tpu else 1)
        if self.batches is None:
            self.monitor.use_strategy(self.strategy)
            # If a loop inside a call takes its batches, only a clock inside the pipeline sees it wait. The pipelines
            # of a remote TPU run on other machines, where no clock of this process can run.
            watch = self.monitor.watch if steps_per_call > 1 and not is_remote_tpu(self.strategy) else None
            self.batches = iter(self._open(self.config.split, self.config.training_pipeline, self.global_step, watch))
        if steps_per_call == 1:
            for batch in self.monitor.iterate(islice(self.batches, count)):
                with self.monitor.step() as timed:
                    timed.result = self.replicas.train(batch)
                yield 1, timed.result
            return
        for first in range(0, count, steps_per_call):
            steps = min(steps_per_call, count - first)
            with self.monitor.step(steps) as timed:
                timed.result = self.replicas.train_many(self.batches, tf.constant(steps))
            yield steps, timed.result

    def _must_stop(self, stop: Callable[[], bool], ends_line: bool) -> bool:
        # Several processes ask each other only when they write a line, because they wait for each other then anyway.
        return stop() if self.num_processes == 1 else ends_line and self.replicas.any_process(stop())

    def _evaluate(self, stop: Callable[[], bool]) -> NDArray[np.float64] | None:
        """Returns the sums over all images of the evaluation split, each counted once; None if the run must stop."""
        total = np.zeros(len(SUMS))
        if self.evaluation_data is None:
            split = self.evaluation_split
            self.evaluation_data = [] if split is None else self._open(split, self.config.evaluation_pipeline)
        for batch in self.evaluation_data:
            total += self.replicas.evaluate(batch).numpy()
            if self.num_processes == 1 and stop():
                return None
        return total

    def _save(self) -> None:
        self._read_sums()
        self.monitor.pause()
        self.saved_step = self.global_step
        self.folder.write_metrics()  # first: a run that goes on drops the lines after its last checkpoint
        if self.curves is not None:
            self.curves.flush()
        if self.process == 0:
            saved, state = (self.epoch, self.step, self.sums), self.replicas.get_state()
            self.folder.save(self.config.pipeline.seed, saved, state, self.config.keep_checkpoints)

    def _read_sums(self) -> None:
        """Adds up the sums of the last steps, which waits for the device."""
        for sums in self.unread:
            self.sums = self.sums + sums.numpy()
        self.unread.clear()
        if not np.isfinite(self.sums[:, 0]).all():
            raise DataError(
                f"The loss is not a number any more at step {self.global_step}. Lower the learning rate, which has its "
                f"peak at {self.config.peak_learning_rate:.3g}, or warm up for longer."
            )

    def _show(self) -> None:
        self._read_sums()
        now, images = time.monotonic(), self.sums[_EPOCH, -1]
        speed = (images - self.shown_images) / (now - self.shown_at)
        self.shown_at, self.shown_images = now, images
        place = f"epoch {self.epoch + 1}/{self.config.num_epochs}, step {self.step}/{self.steps_per_epoch}"
        parts = [place, f"{human_rate(speed)} images/s", format_means(self._get_means(self.sums[_EPOCH]))]
        for report in list(self.monitor.reports)[-1:]:
            idle, wait = report.idle_fraction_estimate, report.input_wait_fraction
            parts.append(f"{human_share(idle)} idle, {human_share(wait)} input wait")
        self.observer.phase("  ".join(parts))

    def _log_steps(self) -> None:
        """Writes a line of metrics.jsonl and a point of each curve."""
        self._read_sums()
        values = self._get_means(self.sums[_LINE]) | {"learning_rate": float(self.schedule(self.global_step - 1))}
        self.folder.metrics.append({"kind": "step", "epoch": self.epoch, "step": self.global_step, **values})
        self._write_curves("train", values)
        for report in list(self.monitor.reports)[-1:]:
            self._write_curves("tfpipe", report.logs)
        self.sums[_LINE] = 0

    def _log_epoch(self, evaluated: NDArray[np.float64], speed: float | None, seconds: float) -> None:
        """Writes the epoch's line of metrics.jsonl and the evaluation's points, and tells the observer."""
        split, means = self.evaluation_split, self._get_means(self.sums[_EPOCH])
        line = {"kind": "epoch", "epoch": self.epoch, "step": self.global_step, **means}
        training, evaluation = {**means, "images": round(self.sums[_EPOCH, -1])}, None
        if split is not None:
            self._write_curves(split, self._get_means(evaluated))
            evaluation = {**self._get_means(evaluated), "images": round(evaluated[-1])}
            line["evaluation"] = {"split": split, **evaluation}
        self.folder.metrics.append(line)
        result = {"epoch": self.epoch + 1, "epochs": self.config.num_epochs, "training": training}
        speed = None if speed is None else speed * self.num_processes
        self.observer.epoch({**result, "evaluation": evaluation, "images_per_second": speed, "seconds": seconds})

    def _get_means(self, sums: NDArray[np.float64]) -> Means:
        """Divides sums by their number of images. With five classes or fewer, the best five are all of them."""
        loss, correct, in_top = (float(value) / max(float(sums[-1]), 1.0) for value in sums[:-1])
        means = {"loss": loss, "accuracy": correct}
        return {**means, "top5": in_top} if len(self.manifest.label_names) > TOP else means

    def _write_curves(self, group: str, values: Means) -> None:
        """Writes points of curves for TensorBoard; `tf.summary.scalar` would ask for its installation."""
        if self.process > 0:
            return
        self.curves = self.curves or tf.summary.create_file_writer(self.folder.file(LOGS))
        with self.curves.as_default(self.global_step):
            for name, value in values.items():
                tf.summary.write(f"{group}/{name}", tf.constant(value, tf.float32), metadata=_SCALAR)


def make_schedule(config: TrainConfig, steps_per_epoch: int) -> Any:
    """Returns a Keras schedule of the learning rate: it rises to the peak, then falls along a cosine to 0."""
    peak, steps = config.peak_learning_rate, config.num_epochs * steps_per_epoch
    warmup_steps = round(config.num_warmup_epochs * steps_per_epoch)
    # The warm-up begins above 0, where the first step would teach nothing.
    first, target = peak / (warmup_steps + 1), peak if warmup_steps else None
    schedules = tf.keras.optimizers.schedules
    return schedules.CosineDecay(first, steps - warmup_steps, warmup_target=target, warmup_steps=warmup_steps)


def check_dataset(manifest: Manifest, config: TrainConfig) -> None:
    """Checks that a classifier can be trained on the split."""
    where, pipeline = manifest.directory, config.pipeline
    if manifest.image_key is None:
        raise DataError(f"A classifier needs images, and {where} has none. Read it with `tfpipe.build_dataset`.")
    if manifest.has_several_images and pipeline.images != "first":
        advice = "Set `images` to first, or read them with `tfpipe.build_dataset`."
        raise ConfigError(f"A classifier needs one image a record, and {where} has several. {advice}")
    if manifest.label_key is None or not manifest.label_names:
        raise DataError(f"A classifier needs labels, and {where} has none. Shard images in one folder for each class.")
    if len(manifest.label_names) == 1:
        logger.warning("%s has one class only, %r, so there is nothing to learn.", where, manifest.label_names[0])
    if pipeline.order == "throughput" or pipeline.tf_data.deterministic is False or manifest.compression:
        logger.warning("Without the exact order a run that goes on sees other records than one that was not stopped.")


def hold_layer(manifest: Manifest, output: str, split: str) -> HeldLayer | None:
    """Returns the layer that the run in a folder holds; None if the dataset has its records, or nothing runs there."""
    saved = (RunDir(output).read_options() or {}).get("dataset")
    if saved is None or split not in manifest.splits or saved == _get_fingerprint(manifest, split):
        return None
    return find_held(manifest.address, lambda state: split in state.splits and _get_fingerprint(state, split) == saved)


def _get_fingerprint(manifest: Manifest, split: str) -> str:
    """Returns a text that changes when the records of the split or those of the evaluation change."""
    splits = (split, find_evaluation_split(manifest, split))
    return "-".join(manifest.splits[name].fingerprint[:16] for name in splits if name is not None)


def _lock_data(manifest: Manifest, config: TrainConfig) -> dict[str, Any] | None:
    """Returns what decides the records of all steps; None if they come in no exact order."""
    if config.pipeline.order == "throughput" or manifest.compression:
        return None
    return lock_data(manifest, config.split, replace(config.pipeline, training=True)).to_json()
