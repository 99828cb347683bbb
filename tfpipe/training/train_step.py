"""One step of training, and one of evaluation, over all replicas of a strategy.

The gradients of a replica are a pure function, compiled by XLA: weights and state go in as tensors and the new state
comes out, so that it touches no variable of another replica's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe.distribution.devices import is_chief, num_hosts
from tfpipe.pipeline.device.augment import augment
from tfpipe.pipeline.stages.batch import masked_sum
from tfpipe.training.config import MOMENTUM, TrainConfig
from tfpipe.training.models import BuildModel, build_model

NUM_SUMS = 4
"""What a step counts: loss, right ones, right ones among the best five, images."""

_TOP = 5

Batch = dict[str, tf.Tensor]


def make_schedule(config: TrainConfig, global_batch_size: int, steps_per_epoch: int) -> Any:
    """The learning rate of each step, as Keras has it: up to the peak, then along a cosine to 0 at the last step."""
    peak = config.peak_learning_rate(global_batch_size)
    warm_up, steps = round(config.num_warmup_epochs * steps_per_epoch), config.num_epochs * steps_per_epoch
    if not warm_up:
        return tf.keras.optimizers.schedules.CosineDecay(peak, steps)
    # Not from 0, at which the first step would teach nothing.
    return tf.keras.optimizers.schedules.CosineDecay(
        peak / (warm_up + 1), steps - warm_up, warmup_target=peak, warmup_steps=warm_up
    )


class Learner:
    """A model and its optimizer under a strategy, and the compiled steps."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        config: TrainConfig,
        num_classes: int,
        global_batch_size: int,
        steps_per_epoch: int,
        build: BuildModel | None = None,
    ) -> None:
        """Builds both, on every replica alike.

        Raises:
            ConfigError: As of `build_model`.
        """
        self.strategy, self.config, self.num_classes = strategy, config, num_classes
        self.global_batch_size, self.steps_per_epoch = global_batch_size, steps_per_epoch
        self.schedule = make_schedule(config, global_batch_size, steps_per_epoch)
        with strategy.scope():
            self.model = build_model(config.model, num_classes, config.evaluation_pipeline, build)
            self.optimizer = tf.keras.optimizers.SGD(self.schedule, momentum=MOMENTUM, nesterov=True)
            self.optimizer.build(self.model.trainable_variables)
        self.is_chief = is_chief(strategy)
        self._gradients = tf.function(self._replica_gradients, jit_compile=True)
        self._predict = tf.function(self._replica_predict, jit_compile=True)
        self._one = tf.function(self._step)
        self._many = tf.function(self._steps)
        self._evaluate = tf.function(self._evaluation_step)

    def train(self, batch: Any) -> tf.Tensor:
        """One step on the batches of all replicas. Returns its sums, float64 [4]; see `NUM_SUMS`."""
        return self._one(batch)

    def train_from(self, iterator: Iterator[Any], steps: int) -> tf.Tensor:
        """So many steps inside one call. Returns the sums of all."""
        return self._many(iterator, tf.constant(steps))

    def evaluate(self, batch: Any) -> tf.Tensor:
        """Sums of one batch for evaluation, what fills it up left out."""
        return self._evaluate(batch)

    def any_host(self, flag: bool) -> bool:
        """Whether it is true on any of the hosts that run this program; all must ask in the same step."""
        if num_hosts(self.strategy) == 1 or isinstance(self.strategy, tf.distribute.TPUStrategy):
            return flag  # one program drives all hosts of a TPU
        value = self.strategy.experimental_distribute_values_from_function(lambda _: tf.constant(float(flag)))
        return bool(self.strategy.reduce("SUM", value, axis=None) > 0)

    # Over all replicas.

    def _step(self, batch: Any) -> tf.Tensor:
        return self._summed(self.strategy.run(self._replica_step, (batch,)))

    def _steps(self, iterator: Any, steps: tf.Tensor) -> tf.Tensor:
        sums = tf.zeros([NUM_SUMS], tf.float64)
        for _ in tf.range(steps):
            sums += self._step(next(iterator))
        return sums

    def _evaluation_step(self, batch: Any) -> tf.Tensor:
        return self._summed(self.strategy.run(self._replica_evaluation, (batch,)))

    def _summed(self, sums: Any) -> tf.Tensor:
        # In 64 bits sums of many steps are exact: a run that was resumed adds them in other portions.
        return tf.cast(self.strategy.reduce("SUM", sums, axis=None), tf.float64)

    # On one replica.

    def _replica_step(self, batch: Batch) -> tf.Tensor:
        sums, gradients, state = self._gradients(*self._values(), batch)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        if state:
            self._keep(state)
        return sums

    def _replica_evaluation(self, batch: Batch) -> tf.Tensor:
        return self._predict(*self._values(), batch)

    def _values(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Weights and state of this replica."""
        model = self.model
        weights = [tf.convert_to_tensor(one.value) for one in model.trainable_variables]
        return weights, [tf.convert_to_tensor(one.value) for one in model.non_trainable_variables]

    def _replica_gradients(self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch) -> Any:
        """Sums, the gradients of this replica's share of the global loss, and the new state."""
        images, replicas = self._images(batch), self.strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, new_state, more = self.model.stateless_call(
                weights, state, images, training=True, return_losses=True
            )
            losses = self._losses(logits, batch["label"], self.config.label_smoothing)
            # Gradients are added up over replicas, so each has its part of the mean over the global batch.
            loss = tf.reduce_sum(losses) / self.global_batch_size + tf.add_n([tf.zeros([]), *more]) / replicas
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        decay = self.config.weight_decay / replicas
        gradients = [
            gradient + decay * weight if len(weight.shape) > 1 else gradient
            for gradient, weight in zip(gradients, weights, strict=True)
        ]
        return self._sums(losses, logits, batch["label"], tf.ones_like(losses)), gradients, new_state

    def _replica_predict(self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch) -> tf.Tensor:
        logits, _ = self.model.stateless_call(weights, state, batch["image"], training=False)
        return self._sums(self._losses(logits, batch["label"], 0.0), logits, batch["label"], batch["mask"])

    def _images(self, batch: Batch) -> tf.Tensor:
        """What the model takes. Images that the device augments become uint8 again, as those from the host are."""
        config = self.config.pipeline
        if config.augment != "device":
            return batch["image"]
        # Mean 0 and deviation 1/255: the model normalizes.
        options = replace(config.augment_options, mean=(0.0,) * 3, std=(1 / 255,) * 3)
        pixels = augment(
            batch["image"], batch["seed"], batch.get("height"), batch.get("width"), config.image_size, True,
            options=options,
        )  # fmt: skip
        return tf.cast(tf.clip_by_value(tf.round(pixels), 0.0, 255.0), tf.uint8)

    def _losses(self, logits: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
        """Cross-entropy of each image, float32 [batch]."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        if not smoothing:
            return losses
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        return (1.0 - smoothing) * losses + smoothing * spread

    def _sums(self, losses: tf.Tensor, logits: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """float32 [4], see `NUM_SUMS`."""
        # Not `in_top_k`, which XLA does not compile. An image is right where fewer logits are higher, or equal and
        # before it, than `k`.
        own = tf.gather(logits, labels, axis=1, batch_dims=1)[:, None]
        before = tf.range(self.num_classes)[None] < labels[:, None]
        higher = tf.reduce_sum(tf.cast((logits > own) | ((logits == own) & before), tf.int32), axis=-1)
        finite = tf.math.is_finite(own[:, 0])
        parts = (losses, (higher < 1) & finite, (higher < _TOP) & finite)
        sums = [masked_sum(part, mask) for part in parts]
        return tf.stack([*(total for total, _ in sums), sums[0][1]])

    def _keep(self, state: list[tf.Tensor]) -> None:
        """Gives moving averages the mean over replicas; a random generator's state is the same on all."""
        variables = [one.value for one in self.model.non_trainable_variables]
        averages = [value for value in state if value.dtype.is_floating]
        if averages:
            context = tf.distribute.get_replica_context()
            means = iter(context.all_reduce(tf.distribute.ReduceOp.MEAN, averages))
            state = [next(means) if value.dtype.is_floating else value for value in state]

        def assign(strategy: tf.distribute.Strategy, values: list[tf.Tensor]) -> None:
            for variable, value in zip(variables, values, strict=True):
                strategy.extended.update(variable, lambda one, new: one.assign(new), args=(value,), group=False)

        # As Keras' own optimizers do it: a TPU knows no `merge_call`.
        tf.__internal__.distribute.interim.maybe_merge_call(assign, self.strategy, state)
