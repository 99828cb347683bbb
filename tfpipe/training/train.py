"""The reference trainer: one call makes a finished model from a dataset, or goes on with a run that was killed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.distribution.distribute import distribute_dataset, steps_per_epoch
from tfpipe.distribution.strategy import get_host_index, list_workers, set_precision
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.format.manifest import Manifest
from tfpipe.lookups.data_lock import BegunLayer, find_begun, lock_data
from tfpipe.pipeline.stages import masked_sum
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.system.progress import Observer
from tfpipe.training.config import TrainConfig, find_evaluation_split
from tfpipe.training.export import export_models
from tfpipe.training.models import BuildModel, build_model
from tfpipe.training.run_dir import LOGS, RunDir, State

_SUMS = 3  # each step returns sums over its images: of the losses, the correct predictions, and the images
_LINE, _EPOCH = 0, 1  # the rows of the sums: since the last line of metrics, and since the epoch began
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"}, data_class="DATA_CLASS_SCALAR")

Line = dict[str, Any]
Stop = Callable[[], bool]
Strategy: TypeAlias = tf.distribute.Strategy
Step = Callable[[Any], tf.Tensor]


def train(
    manifest: Manifest,
    config: TrainConfig,
    strategy: Strategy,
    build: BuildModel | None = None,
    observer: Observer | None = None,
    stop: Stop = lambda: False,
) -> Iterator[Line]:
    """Trains, evaluates after each epoch, and exports; or goes on with the run in `config.output`.

    It sets the seeds and Keras' dtype policy of this process. Once `stop` returns True, the run is saved and ends.
    Yields each epoch's line of metrics.jsonl with the figures of `IdleMonitor`, and at last how far the run came.
    """
    resumed = find_begun_layer(manifest, config.output, config.split)
    begun, manifest = (manifest, manifest) if resumed is None else (resumed.begun, resumed.manifest)
    check_dataset(manifest, config)
    tf.keras.utils.set_random_seed(config.pipeline.seed % 2**32)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    set_precision(config.precision, strategy)
    has_order = config.pipeline.order != "throughput" and manifest.random_access
    lock = lock_data(manifest, config.split, config.training_pipeline).to_json() if has_order else None
    run = _Run(manifest, config, strategy, observer or Observer())
    run.folder.begin({"dataset": _get_fingerprint(begun, config.split), **config.get_run_options()}, lock)
    run.begin(build)
    if resumed is not None:
        run.observer.note(resumed.note)
        if any(map(len, resumed.begun.withheld.values())):  # records were deleted since
            run.folder.change_data(_get_fingerprint(manifest, config.split), lock, run.global_step)
    try:
        finished = yield from run.train(stop)
    except tf.errors.OpError as error:
        raise DataError(f"The training ended in epoch {run.epoch + 1}: {first_line(error)}.") from error
    if finished and run.process == 0:
        export_models(run.folder, manifest, config, run.model.get_weights(), build)
    yield {"output": config.output, "finished": finished, "epoch": run.epoch, "step": run.step}


class _Run:
    """A run of the trainer: its model, its position, and the epochs that are still to do."""

    def __init__(self, manifest: Manifest, config: TrainConfig, strategy: Strategy, observer: Observer) -> None:
        self.manifest, self.config, self.strategy, self.observer = manifest, config, strategy, observer
        self.process, self.num_processes = get_host_index(strategy), len(list_workers(strategy)) or 1
        self.steps_per_epoch = steps_per_epoch(manifest, config.split, config.training_pipeline, strategy)
        self.evaluation_split = find_evaluation_split(manifest, config.split)
        self.folder = RunDir(config.output, self.process == 0)
        self.monitor = IdleMonitor(every_steps=config.log_every_steps)
        self.epoch = self.step = self.saved_step = 0
        self.sums = np.zeros((2, _SUMS))
        self.unread: list[tf.Tensor] = []  # sums of steps, which devices may still compute

    def begin(self, build: BuildModel | None) -> None:
        """Builds the model, and restores the last checkpoint if there is one."""
        config, strategy, num_classes = self.config, self.strategy, len(self.manifest.label_names)
        # The learning rate of each step rises for some epochs, then falls along a cosine to 0.
        peak, steps = config.learning_rate * config.pipeline.batch_size / 256, config.num_epochs * self.steps_per_epoch
        warmup = round(min(5.0, config.num_epochs / 10) * self.steps_per_epoch)
        options = {"warmup_target": peak if warmup else None, "warmup_steps": warmup}
        self.schedule = tf.keras.optimizers.schedules.CosineDecay(peak / (warmup + 1), steps - warmup, **options)
        with strategy.scope():
            self.model = model = build_model(config.model, num_classes, config.evaluation_pipeline, build)
            # As in Goyal et al. 2017, "Accurate, large minibatch SGD", but Nesterov's.
            optimizer = tf.keras.optimizers.SGD(self.schedule, momentum=0.9, nesterov=True)
            optimizer.build(model.trainable_variables)
        # Saved by order, because Keras' names count the layers of the process, and are others after a restart.
        self.variables = [*model.trainable_variables, *model.non_trainable_variables, *optimizer.variables]
        self.train_step, self.evaluate_step = compile_steps(model, optimizer, strategy, config, num_classes)
        logs = self.folder.file(LOGS)
        self.curves = tf.summary.create_noop_writer() if self.process else tf.summary.create_file_writer(logs)
        saved = self.folder.restore(self._set_state)
        if self.num_processes > 1 and self._any_process(saved is not None) and saved is None:
            fault = f"All processes must see the same checkpoints; one sees none in {self.folder.path}."
            raise ConfigError(f"{fault} Share the folder.")
        if saved is not None:
            self.epoch, self.step, self.sums = saved
            self.saved_step = self.global_step
            self.observer.note(f"The run goes on at step {self.global_step:,} of {steps:,}, from a checkpoint.")

    def train(self, stop: Stop) -> Generator[Line, None, bool]:
        """Trains to the end, and yields the line of each epoch. If it is stopped before, it saves and returns False."""
        config, data, split = self.config, (self.strategy, self.manifest), self.evaluation_split
        batches = iter(distribute_dataset(*data, config.split, config.training_pipeline, self.global_step))
        evaluation = () if split is None else distribute_dataset(*data, split, config.evaluation_pipeline)
        while self.epoch < config.num_epochs:
            for batch in self.monitor.iterate(islice(batches, self.steps_per_epoch - self.step)):
                with self.monitor.step() as timed:
                    timed.result = self.train_step(batch)
                self.unread.append(timed.result)
                self.step += 1
                is_last = self.step == self.steps_per_epoch
                ends_line = is_last or self.step % config.log_every_steps == 0
                if ends_line:
                    self._log_steps()
                if self._must_stop(stop, ends_line):
                    return self._save()
                if self.global_step - self.saved_step >= config.checkpoint_every_steps and not is_last:
                    self._save()
            figures, evaluated = self.monitor.end_epoch(), np.zeros(_SUMS)
            if "images_per_second" in figures:  # which is that of this process
                figures["images_per_second"] *= self.num_processes
            for batch in evaluation:
                evaluated += self.evaluate_step(batch).numpy()
                if self._must_stop(stop, True):
                    return self._save()
            self._write_curves("tfpipe", figures)
            yield {**self._log_epoch(evaluated), **figures}
            self.epoch, self.step = self.epoch + 1, 0
            self.sums = np.zeros_like(self.sums)
            if self.global_step - self.saved_step >= config.checkpoint_every_steps or self.epoch == config.num_epochs:
                self._save()
        return True

    @property
    def global_step(self) -> int:
        """The number of steps that the run has made."""
        return self.epoch * self.steps_per_epoch + self.step

    def _must_stop(self, stop: Stop, asks_others: bool) -> bool:
        # Several processes ask each other only where they wait for each other anyway.
        return stop() if self.num_processes == 1 else asks_others and self._any_process(stop())

    def _any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is True in any process. All processes must call it in the same step."""
        value = self.strategy.experimental_distribute_values_from_function(lambda _: tf.constant(float(flag)))
        return bool(self.strategy.reduce("SUM", value, axis=None) > 0)

    def _set_state(self, state: State) -> None:
        with self.strategy.scope():
            for variable, values in zip(self.variables, state, strict=True):
                # A checkpoint holds bfloat16 as its bits.
                variable.assign(values.view(tf.as_dtype(variable.dtype).as_numpy_dtype))

    def _save(self) -> bool:
        self._read_sums()
        self.curves.flush()
        self.folder.save((self.epoch, self.step, self.sums), [variable.numpy() for variable in self.variables])
        self.saved_step = self.global_step
        self.monitor.pause()
        return False

    def _read_sums(self) -> None:
        """Adds up the sums of the last steps, which waits for the device."""
        for sums in self.unread:
            self.sums = self.sums + sums.numpy()
        self.unread.clear()
        if not np.isfinite(self.sums[:, 0]).all():
            raise DataError(f"The loss is not a number any more at step {self.global_step}. Lower the learning rate.")

    def _log_steps(self) -> None:
        self._read_sums()
        values = _compute_means(self.sums[_LINE]) | {"learning_rate": float(self.schedule(self.global_step - 1))}
        self.folder.metrics.append({"kind": "step", "epoch": self.epoch, "step": self.global_step, **values})
        self._write_curves("train", values)
        self.sums[_LINE] = 0
        position = f"Epoch {self.epoch + 1}/{self.config.num_epochs}, step {self.step}/{self.steps_per_epoch}"
        self.observer.phase(f"{position}: loss {values['loss']:.3f}")

    def _log_epoch(self, evaluated: NDArray[np.float64]) -> Line:
        line = {"kind": "epoch", "epoch": self.epoch, "step": self.global_step, **_compute_means(self.sums[_EPOCH])}
        if self.evaluation_split is not None:
            means = _compute_means(evaluated)
            line["evaluation"] = {"split": self.evaluation_split, **means, "images": round(evaluated[-1])}
            self._write_curves(self.evaluation_split, means)
        self.folder.metrics.append(line)
        return line

    def _write_curves(self, group: str, values: dict[str, float]) -> None:
        """Writes points of curves for TensorBoard, without `tf.summary.scalar`, which needs TensorBoard installed."""
        with self.curves.as_default(self.global_step):
            for name, value in values.items():
                tf.summary.write(f"{group}/{name}", tf.constant(value, tf.float32), metadata=_SCALAR)


def compile_steps(
    model: tf.keras.Model, optimizer: Any, strategy: Strategy, config: TrainConfig, num_classes: int
) -> tuple[Step, Step]:
    """Returns the functions of a step of training and of evaluation: from a global batch to sums over its images."""
    trainable, others = model.trainable_variables, model.non_trainable_variables
    replicas = strategy.num_replicas_in_sync

    def measure(logits: tf.Tensor, batch: Any, smoothing: float = 0.0) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss of each image, and the sums of the losses, the correct predictions, and the images."""
        labels = batch["label"]
        targets, options = tf.one_hot(labels, num_classes), {"from_logits": True, "label_smoothing": smoothing}
        # Images of a foreign dataset may have no class, which a number below 0 says.
        losses = tf.where(labels >= 0, tf.keras.losses.categorical_crossentropy(targets, logits, **options), 0.0)
        correct = tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels
        mask = (labels >= 0) & batch.get("mask", True)
        (loss, images), (hits, _) = masked_sum(losses, mask), masked_sum(correct, mask)
        return losses, tf.stack([loss, hits, images])

    def compute_gradients(weights: list[tf.Tensor], state: list[tf.Tensor], batch: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            inputs, options = (weights, state, batch["image"]), {"training": True, "return_losses": True}
            logits, new_state, model_losses = model.stateless_call(*inputs, **options)
            losses, sums = measure(logits, batch, config.label_smoothing)
            # Gradients are added up over replicas, so each replica has its part of the mean over the global batch.
            loss = tf.reduce_sum(losses) / config.pipeline.batch_size
            loss += tf.add_n([tf.zeros([]), *model_losses]) / replicas
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        decays = [config.weight_decay / replicas * (len(weight.shape) > 1) for weight in weights]
        gradients = [g + decay * w for g, decay, w in zip(gradients, decays, weights, strict=True)]
        return sums, gradients, new_state

    # A pure function of tensors, so that XLA meets no variable on the device of another replica.
    compiled = tf.function(compute_gradients, jit_compile=True)

    def train(batch: Any) -> tf.Tensor:
        values = [[tf.convert_to_tensor(variable.value) for variable in group] for group in (trainable, others)]
        sums, gradients, state = compiled(*values, batch)
        optimizer.apply(gradients, trainable)
        # Moving averages get their mean over replicas. The state of a random generator is the same on all.
        averages = [value for value in state if value.dtype.is_floating]
        means = iter(tf.distribute.get_replica_context().all_reduce("MEAN", averages) if averages else ())
        for variable, value in zip(others, state, strict=True):
            variable.assign(next(means) if value.dtype.is_floating else value)
        return sums

    def evaluate(batch: Any) -> tf.Tensor:
        return measure(model(batch["image"], training=False), batch)[1]

    def run(function: Step, batch: Any) -> tf.Tensor:
        sums = strategy.reduce("SUM", strategy.run(function, (batch,)), axis=None)
        # In 64 bits the sums of many steps are exact, although a resumed run adds them in other portions.
        return tf.cast(sums, tf.float64)

    return tf.function(partial(run, train)), tf.function(partial(run, evaluate))


def _compute_means(sums: NDArray[np.float64]) -> dict[str, float]:
    loss, correct, images = map(float, sums)
    return {"loss": loss / max(images, 1), "accuracy": correct / max(images, 1)}


def check_dataset(manifest: Manifest, config: TrainConfig) -> None:
    """Checks that a classifier can be trained on the split."""
    where = manifest.directory
    if manifest.image_key is None or manifest.label_key is None or not manifest.label_names:
        raise DataError(f"A classifier needs images and labels, and {where} lacks one. Shard a folder for each class.")
    if config.split in manifest.splits and not any(manifest.splits[config.split].class_counts):
        raise DataError(f"A classifier needs images with a class, and {config.split!r} of {where} has none.")
    if manifest.has_several_images and config.pipeline.images != "first":
        advice = 'Give a --config with `images = "first"`, or read them with `tfpipe.build_dataset`.'
        raise ConfigError(f"A classifier needs one image a record, and {where} has several. {advice}")


def find_begun_layer(manifest: Manifest, output: str, split: str) -> BegunLayer | None:
    """Returns the layer that the run in a folder began with; None without a run, or if its records are unchanged."""
    saved = (RunDir(output).read_options() or {}).get("dataset")
    if saved is None or split not in manifest.splits or saved == _get_fingerprint(manifest, split):
        return None
    return find_begun(manifest.address, lambda state: split in state.splits and _get_fingerprint(state, split) == saved)


def _get_fingerprint(manifest: Manifest, split: str) -> str:
    """Returns a text that changes when the records of the split or those of the evaluation change."""
    splits = filter(None, (split, find_evaluation_split(manifest, split)))
    return "-".join(manifest.splits[name].fingerprint[:16] for name in splits)
