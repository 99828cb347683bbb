"""One step of training, and one of evaluation, over all replicas of a strategy.

```
train ─▶ on each replica: gradients of its part of the batch (XLA) ─▶ sum over replicas ─▶ new weights
                          sums of loss, correct images, ...        ─▶ sum over replicas ─▶ returned
```

The gradients of a replica are a pure function: weights and state go in as tensors, and the new state comes out. So the
compiled function touches no variable on another replica's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe.distribution.devices import count_hosts
from tfpipe.pipeline.device.augment import augment
from tfpipe.pipeline.stages.batch import masked_sum
from tfpipe.training.config import MOMENTUM, TrainConfig
from tfpipe.training.learner import TOP, RunFacts
from tfpipe.training.results import SUM_NAMES
from tfpipe.training.tensorflow.models import BuildModel, build_model

_NUM_SUMS = len(SUM_NAMES)

Batch = dict[str, tf.Tensor]
"""The features of a batch by name: image, label, and mask in evaluation."""


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


class StrategyModel:
    """A model and its optimizer under a strategy, and the compiled steps.

    Attributes:
        strategy: The strategy under which everything runs.
        facts: The facts of the run.
        config: The options of the training.
        schedule: The learning rate of each step.
        model: The model.
        optimizer: The model's optimizer.
    """

    def __init__(self, strategy: tf.distribute.Strategy, facts: RunFacts, build: BuildModel | None = None) -> None:
        """Builds model and optimizer, with the same weights on every replica.

        Args:
            strategy: The strategy under which everything runs.
            facts: The facts of the run.
            build: A function that builds the user's own model.

        Raises:
            ConfigError: The model cannot be built, see `build_model`.
        """
        self.strategy, self.facts, self.config = strategy, facts, facts.config
        config, num_classes = facts.config, facts.num_classes
        self.schedule = make_schedule(config, facts.global_batch_size, facts.steps_per_epoch)
        with strategy.scope():
            self.model = build_model(config.model, num_classes, config.evaluation_pipeline, build)
            self.optimizer = tf.keras.optimizers.SGD(self.schedule, momentum=MOMENTUM, nesterov=True)
            self.optimizer.build(self.model.trainable_variables)
        self._gradients = tf.function(self._replica_gradients, jit_compile=True)
        self._predict = tf.function(self._replica_predict, jit_compile=True)
        self._train_once = tf.function(self._train_step)
        self._train_many = tf.function(self._train_steps)
        self._evaluate_once = tf.function(self._evaluation_step)

    def train(self, batch: Any) -> tf.Tensor:
        """Makes one step on the batches of all replicas. Returns its sums, float64 [4]; see `SUM_NAMES`."""
        return self._train_once(batch)

    def train_from(self, iterator: Iterator[Any], steps: int) -> tf.Tensor:
        """Makes several steps inside one call. Returns the sums of all, float64 [4]."""
        return self._train_many(iterator, tf.constant(steps))

    def evaluate(self, batch: Any) -> tf.Tensor:
        """Returns the sums of one evaluation batch, float64 [4]. Padding does not count."""
        return self._evaluate_once(batch)

    def any_host(self, flag: bool) -> bool:
        """Returns whether `flag` is True on any host of this program. All hosts must call it in the same step."""
        if count_hosts(self.strategy) == 1 or isinstance(self.strategy, tf.distribute.TPUStrategy):
            return flag  # one program drives all hosts of a TPU
        value = self.strategy.experimental_distribute_values_from_function(lambda _: tf.constant(float(flag)))
        return bool(self.strategy.reduce("SUM", value, axis=None) > 0)

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
            losses = self._compute_losses(logits, batch["label"], self.config.label_smoothing)
            # Gradients are added up over replicas, so each replica has its part of the mean over the global batch.
            loss = tf.reduce_sum(losses) / self.facts.global_batch_size
            loss += tf.add_n([tf.zeros([]), *model_losses]) / replicas
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        decay = self.config.weight_decay / replicas
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
        config = self.config.pipeline
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
