"""The reference trainer in TensorFlow: one call makes a finished model from a dataset.

    strategy = tfpipe.resolve_strategy()
    config = TrainConfig(pipeline=PipelineConfig(batch_size=256), model="resnet50", output="runs/flowers")
    result = train(tfpipe.load_manifest("flowers"), config, strategy)

The same call goes on with a run that was killed. It starts at the last checkpoint, with exactly the records that come
next in the order.

```
train.py    this file: sets up and starts the run; the data under a strategy, and the compiled steps
models.py   the model
export.py   the finished model as a SavedModel;  tflite.py  as a TFLite file
```

```
train ─▶ on each replica: gradients of its part of the batch (XLA) ─▶ sum over replicas ─▶ new weights
                          sums of loss, correct images, ...        ─▶ sum over replicas ─▶ returned
```

The gradients of a replica are a pure function: weights and state go in as tensors, and the new state comes out. So the
compiled function touches no variable on another replica's device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.distribution import distribute_dataset, set_precision, steps_per_epoch
from tfpipe.distribution.devices import count_hosts, get_device_kind, get_host_index, is_remote_tpu, list_workers
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.device.augment import augment
from tfpipe.pipeline.stage import Customize, explain_customize_errors
from tfpipe.pipeline.stages.batch import masked_sum
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.training.checkpoints import State
from tfpipe.training.config import MOMENTUM, TrainConfig
from tfpipe.training.learner import TOP, Learner, RunFacts, SingleSteps, Steps
from tfpipe.training.model_files import get_form
from tfpipe.training.results import SUM_NAMES, TrainObserver, TrainResult
from tfpipe.training.run import check_dataset, hold_layer, run_training
from tfpipe.training.run_dir import MODEL, RunDir, get_tflite_name
from tfpipe.training.tensorflow.models import BuildModel, build_model

_STEPS_PER_CALL_ON_TPU = 50
_CALIBRATION_IMAGES = 256  # as the model gets them, to show the range of each layer's values
_NUM_SUMS = len(SUM_NAMES)

Batch = dict[str, tf.Tensor]
"""The features of a batch by name: image, label, and mask in evaluation."""


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

    It sets Keras' dtype policy and the random seeds of this process, and with `deterministic` TensorFlow's
    deterministic operations.

    Args:
        manifest: A dataset, from `load_manifest`.
        config: The options of the training.
        strategy: A strategy, from `resolve_strategy`. A run may go on under another strategy, if the global batch
            stays the same.
        build: A function that builds the user's own model.
        observer: An object that gets the progress of the training.
        stop: A function that is called after each step. Once it returns True, the run is saved and ends.
        customize: A function that changes the stages of the pipelines for training and evaluation. The exported model
            decodes images without it.

    Raises:
        ConfigError: The options do not fit the dataset or the replicas, or the folder holds another run.
        DataError: The dataset has no labels or cannot be read, the folder cannot be written, or the loss is not a
            number.
        FormatError: The dataset or the folder is damaged.
    """
    held = hold_layer(manifest, config.output, config.split)
    manifest = manifest if held is None else held.manifest
    check_dataset(manifest, config)
    tf.keras.utils.set_random_seed(config.pipeline.seed % 2**32)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    set_precision(config.precision, strategy)
    pipeline = config.training_pipeline
    steps = steps_per_epoch(manifest, config.split, pipeline, strategy)
    process = get_host_index(strategy), len(list_workers(strategy)) or 1
    facts = RunFacts(manifest, config, pipeline.batch_size, steps, process, held)
    stages = None if customize is None else f"{customize.__module__}:{customize.__qualname__}"
    return run_training(
        facts, lambda: TensorFlowLearner(facts, strategy, build, customize), observer or TrainObserver(), stop, stages
    )


def make_schedule(config: TrainConfig, global_batch_size: int, steps_per_epoch: int) -> Any:
    """Returns a Keras schedule of the learning rate: it rises to the peak, then falls along a cosine to 0."""
    peak = config.peak_learning_rate(global_batch_size)
    warmup_steps, steps = round(config.num_warmup_epochs * steps_per_epoch), config.num_epochs * steps_per_epoch
    if not warmup_steps:
        return tf.keras.optimizers.schedules.CosineDecay(peak, steps)
    # The warm-up begins above 0, where the first step would teach nothing.
    return tf.keras.optimizers.schedules.CosineDecay(
        peak / (warmup_steps + 1), steps - warmup_steps, warmup_target=peak, warmup_steps=warmup_steps
    )


class TensorFlowLearner(Learner):
    """A Keras model and its optimizer under a strategy, and the compiled steps.

    Attributes:
        strategy: The strategy under which everything runs.
        model: The model.
        optimizer: The model's optimizer.
        train: A function that makes one step on the batches of all replicas and returns its result, with sums float64
            [4]; see `SUM_NAMES`.
        evaluate_batch: A function that returns the sums of one evaluation batch, float64 [4]. Padding does not count.
    """

    failures = (tf.errors.OpError,)

    def __init__(
        self,
        facts: RunFacts,
        strategy: tf.distribute.Strategy,
        build: BuildModel | None = None,
        customize: Customize | None = None,
    ) -> None:
        """Builds model and optimizer, with the same weights on every replica.

        Args:
            facts: The facts of the run.
            strategy: The strategy under which everything runs.
            build: A function that builds the user's own model.
            customize: A function that changes the stages of the pipelines for training and evaluation.

        Raises:
            ConfigError: The model cannot be built, see `build_model`.
        """
        super().__init__(facts)
        self.strategy, self._build, self._customize = strategy, build, customize
        config, num_classes = facts.config, facts.num_classes
        schedule = make_schedule(config, facts.global_batch_size, facts.steps_per_epoch)
        with strategy.scope():
            self.model = build_model(config.model, num_classes, config.evaluation_pipeline, build)
            self.optimizer = tf.keras.optimizers.SGD(schedule, momentum=MOMENTUM, nesterov=True)
            self.optimizer.build(self.model.trainable_variables)
        self._gradients = tf.function(self._replica_gradients, jit_compile=True)
        self._predict = tf.function(self._replica_predict, jit_compile=True)
        self.train = tf.function(self._train_step)
        self._train_many = tf.function(self._train_steps)
        self.evaluate_batch = tf.function(self._evaluation_step)
        self._evaluation_data: Any = None

    def open_steps(self, start_step: int, run_dir: RunDir) -> Steps:
        """Opens the training data at a global step of the run."""
        config = self.facts.config
        on_tpu = get_device_kind(self.strategy) == "TPU"
        steps_per_call = config.steps_per_execution or (_STEPS_PER_CALL_ON_TPU if on_tpu else 1)
        monitor = IdleMonitor(every_steps=config.log_every_steps)
        monitor.use_strategy(self.strategy)
        # If a loop inside a call takes its batches, only a clock inside the pipeline sees it wait. The pipelines of a
        # remote TPU run on other machines, where no clock of this process can run.
        watch = monitor.watch if steps_per_call > 1 and not is_remote_tpu(self.strategy) else None
        dataset = self._open(config.split, config.training_pipeline, start_step, watch)
        if steps_per_call == 1:
            return SingleSteps(dataset, self.train, monitor)
        return _StepsInOneCall(dataset, self._train_many, monitor, steps_per_call)

    def _open(self, split: str, pipeline: PipelineConfig, start_step: int = 0, watch: Any = None) -> Any:
        with explain_customize_errors(self._customize):
            data = self.facts.manifest, split, pipeline, start_step
            return distribute_dataset(self.strategy, *data, watch=watch, customize=self._customize)

    def evaluate(self, split: str) -> Iterator[NDArray[np.float64]]:
        """Yields the sums of each evaluation batch over all replicas, float64 [4]."""
        if self._evaluation_data is None:
            self._evaluation_data = self._open(split, self.facts.config.evaluation_pipeline)
        for batch in self._evaluation_data:
            yield self.evaluate_batch(batch).numpy()

    def any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is True in any process."""
        if self._is_alone:
            return flag
        value = self.strategy.experimental_distribute_values_from_function(lambda _: tf.constant(float(flag)))
        return bool(self.strategy.reduce("SUM", value, axis=None) > 0)

    @property
    def _is_alone(self) -> bool:
        """Whether this process drives all replicas: one program drives all hosts of a TPU."""
        return count_hosts(self.strategy) == 1 or isinstance(self.strategy, tf.distribute.TPUStrategy)

    def get_state(self) -> State:
        """Returns copies of all weights, of the random generators of dropout, and of the optimizer's values."""
        return {name: variable.numpy() for name, variable in self._list_variables().items()}

    def set_state(self, state: State) -> None:
        """Takes the arrays of a checkpoint on every replica.

        Raises:
            LookupError: A value is missing.
            ValueError: A value has another shape.
        """
        with self.strategy.scope():
            for name, variable in self._list_variables().items():
                # A file has no name for bfloat16, but its bits.
                variable.assign(state[name].view(tf.as_dtype(variable.dtype).as_numpy_dtype))

    def _list_variables(self) -> dict[str, Any]:
        # Keras' own names count the layers of the process, so they may be others after a restart.
        groups = {
            "weights": self.model.trainable_variables,
            "others": self.model.non_trainable_variables,
            "optimizer": self.optimizer.variables,
        }
        return {f"{group}/{k:04}": variable for group, members in groups.items() for k, variable in enumerate(members)}

    def export(self, run_dir: RunDir) -> float | None:
        """Writes the models to serve. Returns the accuracy of the TFLite model; None without such a model."""
        from tfpipe.training.tensorflow.export import export_model

        manifest, config = self.facts.manifest, self.facts.config
        evaluation = config.evaluation_pipeline
        # A copy outside the strategy: its weights do not live on the strategy's devices.
        model = build_model(config.model, self.facts.num_classes, evaluation, self._build)
        model.set_weights(self.model.get_weights())
        export_model(model, evaluation, manifest.label_names, run_dir.file(MODEL), get_form(manifest))
        if config.tflite is None:
            return None
        from tfpipe.training.tensorflow.tflite import evaluate_tflite, export_tflite, iterate_images

        path = run_dir.file(get_tflite_name(config.tflite))
        training_images = islice(iterate_images(self._read_images(config.split)), _CALIBRATION_IMAGES)
        export_tflite(model, evaluation, config.tflite, (image for image, _ in training_images), path)
        return evaluate_tflite(path, self._read_images(self.facts.evaluation_split or config.split))

    def _read_images(self, split: str) -> tf.data.Dataset:
        """Reads a split as for evaluation, on this process alone."""
        evaluation = self.facts.config.evaluation_pipeline
        with explain_customize_errors(self._customize):
            return build_stages(self.facts.manifest, split, evaluation, customize=self._customize).dataset()

    # Functions over all replicas.

    def _train_step(self, batch: Any) -> tf.Tensor:
        return self._add_replicas(self.strategy.run(self._replica_train, (batch,)))

    def _train_steps(self, iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        sums = tf.zeros([_NUM_SUMS], tf.float64)
        for _ in tf.range(steps):
            sums += self._train_step(next(iterator))
        return sums

    def _evaluation_step(self, batch: Any) -> tf.Tensor:
        return self._add_replicas(self.strategy.run(self._replica_evaluate, (batch,)))

    def _add_replicas(self, sums: Any) -> tf.Tensor:
        # In 64 bits the sums of many steps are exact, although a resumed run adds them in other portions.
        return tf.cast(self.strategy.reduce("SUM", sums, axis=None), tf.float64)

    # Functions on one replica.

    def _replica_train(self, batch: Batch) -> tf.Tensor:
        sums, gradients, state = self._gradients(*self._read_variables(), batch)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        if state:
            self._assign_state(state)
        return sums

    def _replica_evaluate(self, batch: Batch) -> tf.Tensor:
        return self._predict(*self._read_variables(), batch)

    def _read_variables(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the weights and the state of this replica."""
        weights = [tf.convert_to_tensor(variable.value) for variable in self.model.trainable_variables]
        state = [tf.convert_to_tensor(variable.value) for variable in self.model.non_trainable_variables]
        return weights, state

    def _replica_gradients(self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch) -> Any:
        """Returns the sums, the gradients of this replica's share of the global loss, and the new state."""
        images, replicas = self._prepare_images(batch), self.strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, new_state, model_losses = self.model.stateless_call(
                weights, state, images, training=True, return_losses=True
            )
            losses = self._compute_losses(logits, batch["label"], self.facts.config.label_smoothing)
            # Gradients are added up over replicas, so each replica has its part of the mean over the global batch.
            loss = tf.reduce_sum(losses) / self.facts.global_batch_size
            loss += tf.add_n([tf.zeros([]), *model_losses]) / replicas
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        decay = self.facts.config.weight_decay / replicas
        gradients = [
            gradient + decay * weight if len(weight.shape) > 1 else gradient
            for gradient, weight in zip(gradients, weights, strict=True)
        ]
        return self._count(losses, logits, batch["label"], tf.ones_like(losses)), gradients, new_state

    def _replica_predict(self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch) -> tf.Tensor:
        logits, _ = self.model.stateless_call(weights, state, batch["image"], training=False)
        losses = self._compute_losses(logits, batch["label"], 0.0)
        return self._count(losses, logits, batch["label"], batch["mask"])

    def _prepare_images(self, batch: Batch) -> tf.Tensor:
        """Returns the images that the model takes.

        Images that the device augments become uint8 again, as the images from the host are.
        """
        config = self.facts.config.pipeline
        if config.augment != "device":
            return batch["image"]
        # With mean 0 and deviation 1/255 the pixels keep their range: the model normalizes.
        options = replace(config.augment_options, mean=(0.0,) * 3, std=(1 / 255,) * 3)
        pixels = augment(
            batch["image"], batch["seed"], batch.get("height"), batch.get("width"), config.image_size, True,
            options=options,
        )  # fmt: skip
        return tf.cast(tf.clip_by_value(tf.round(pixels), 0.0, 255.0), tf.uint8)

    def _compute_losses(self, logits: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
        """Returns the cross-entropy of each image, float32 [batch]."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if not smoothing:
            return losses
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        return (1.0 - smoothing) * losses + smoothing * spread

    def _count(self, losses: tf.Tensor, logits: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns the sums over the images of a batch, float32 [4]; see `SUM_NAMES`."""
        # XLA does not compile `in_top_k`. An image is among the best k where fewer than k classes rank before its
        # label: those with a higher logit, and those with an equal logit and a lower number.
        label_logit = tf.gather(logits, labels, axis=1, batch_dims=1)[:, None]
        has_lower_number = tf.range(self.facts.num_classes)[None] < labels[:, None]
        ranks_before = (logits > label_logit) | ((logits == label_logit) & has_lower_number)
        rank = tf.reduce_sum(tf.cast(ranks_before, tf.int32), axis=-1)
        finite = tf.math.is_finite(label_logit[:, 0])
        sums = [masked_sum(values, mask) for values in (losses, (rank < 1) & finite, (rank < TOP) & finite)]
        num_images = sums[0][1]
        return tf.stack([*(total for total, _ in sums), num_images])

    def _assign_state(self, state: list[tf.Tensor]) -> None:
        """Gives moving averages their mean over replicas. The state of a random generator is the same on all."""
        variables = [variable.value for variable in self.model.non_trainable_variables]
        averages = [value for value in state if value.dtype.is_floating]
        if averages:
            context = tf.distribute.get_replica_context()
            means = iter(context.all_reduce(tf.distribute.ReduceOp.MEAN, averages))
            state = [next(means) if value.dtype.is_floating else value for value in state]

        def assign(strategy: tf.distribute.Strategy, values: list[tf.Tensor]) -> None:
            for variable, value in zip(variables, values, strict=True):
                strategy.extended.update(variable, lambda local, new: local.assign(new), args=(value,), group=False)

        # Keras' own optimizers do it in this way: a TPU strategy has no `merge_call`.
        tf.__internal__.distribute.interim.maybe_merge_call(assign, self.strategy, state)


class _StepsInOneCall:
    """The steps that run several at once without a return to Python.

    Attributes:
        steps_per_call: The largest number of steps that run without a return to Python.
        monitor: The monitor of all steps.
    """

    def __init__(
        self, dataset: Any, train: Callable[[Iterator[Any], tf.Tensor], Any], monitor: IdleMonitor, steps_per_call: int
    ) -> None:
        """Begins with the first batch of a dataset."""
        self.steps_per_call, self.monitor = steps_per_call, monitor
        self._train, self._batches = train, iter(dataset)

    def make(self, count: int) -> tf.Tensor:
        """Makes `count` steps, at most `steps_per_call`. Returns their sums, which the device may still compute."""
        with self.monitor.step(count) as step:
            step.result = self._train(self._batches, tf.constant(count))
        return step.result

    def close(self) -> None:
        """Does nothing: the pipeline ends with its iterator."""
