"""The model and its optimizer on the replicas of a strategy, and the compiled steps.

The gradients of a replica, which XLA compiles, are a pure function: weights and state go in as tensors, and the new
state comes out. So the compiled function touches no variable on another replica's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from tfpipe.pipeline.device.augment import augment
from tfpipe.pipeline.stages.batch import masked_sum
from tfpipe.training.config import TrainConfig
from tfpipe.training.models import BuildModel, build_model
from tfpipe.training.run_dir import State

SUMS = ("loss", "correct", "top5_correct", "images")
"""The sums over its images that each step returns, float64 [4] in this order."""

TOP = 5
"""The number of the classes with the highest logits among which an image counts as nearly correct."""

Batch = dict[str, tf.Tensor]
"""The features of a batch by name: image, label, and mask in evaluation."""


class Replicas:
    """A Keras model and its optimizer under a strategy, with the same weights on every replica.

    `train` makes a step on a batch of all replicas, `train_many` several steps on those of an iterator, and `evaluate`
    looks at a batch, whose padding does not count. Each returns the sums over its images.
    """

    def __init__(
        self,
        config: TrainConfig,
        strategy: tf.distribute.Strategy,
        num_classes: int,
        schedule: Any,
        build: BuildModel | None,
    ) -> None:
        """Builds model and optimizer; raises the errors of `build_model`."""
        self._config, self._strategy, self._num_classes = config, strategy, num_classes
        with strategy.scope():
            self.model = build_model(config.model, num_classes, config.evaluation_pipeline, build)
            # As in Goyal et al. 2017, "Accurate, large minibatch SGD", but Nesterov's.
            self._optimizer = tf.keras.optimizers.SGD(schedule, momentum=0.9, nesterov=True)
            self._optimizer.build(self.model.trainable_variables)
        self._gradients = tf.function(self._replica_gradients, jit_compile=True)
        self._predict = tf.function(self._replica_predict, jit_compile=True)
        self.train = tf.function(partial(self._run, self._replica_train))
        self.train_many = tf.function(self._train_steps)
        self.evaluate = tf.function(partial(self._run, self._replica_evaluate))

    def any_process(self, flag: bool) -> bool:
        """Returns whether `flag` is True in any process. All processes must call it in the same step."""
        value = self._strategy.experimental_distribute_values_from_function(lambda _: tf.constant(float(flag)))
        return bool(self._strategy.reduce("SUM", value, axis=None) > 0)

    def get_state(self) -> State:
        """Returns copies of all weights, of the random generators of dropout, and of the optimizer's values."""
        return {name: variable.numpy() for name, variable in self._list_variables().items()}

    def set_state(self, state: State) -> None:
        """Takes the arrays of a checkpoint on every replica. Raises an error if one is missing or has another shape."""
        with self._strategy.scope():
            for name, variable in self._list_variables().items():
                # A file has no name for bfloat16, but its bits.
                variable.assign(state[name].view(tf.as_dtype(variable.dtype).as_numpy_dtype))

    def _list_variables(self) -> dict[str, Any]:
        # Keras' own names count the layers of the process, so they may be others after a restart.
        groups = {
            "weights": self.model.trainable_variables,
            "others": self.model.non_trainable_variables,
            "optimizer": self._optimizer.variables,
        }
        return {f"{group}/{k:04}": variable for group, members in groups.items() for k, variable in enumerate(members)}

    # Functions over all replicas.

    def _train_steps(self, iterator: Iterator[Any], steps: tf.Tensor) -> tf.Tensor:
        sums = tf.zeros([len(SUMS)], tf.float64)
        for _ in tf.range(steps):
            sums += self._run(self._replica_train, next(iterator))
        return sums

    def _run(self, function: Any, batch: Any) -> tf.Tensor:
        sums = self._strategy.reduce("SUM", self._strategy.run(function, (batch,)), axis=None)
        # In 64 bits the sums of many steps are exact, although a resumed run adds them in other portions.
        return tf.cast(sums, tf.float64)

    # Functions on one replica.

    def _replica_train(self, batch: Batch) -> tf.Tensor:
        sums, gradients, state = self._gradients(*self._read_variables(), batch)
        self._optimizer.apply(gradients, self.model.trainable_variables)
        if state:
            self._assign_state(state)
        return sums

    def _replica_evaluate(self, batch: Batch) -> tf.Tensor:
        return self._predict(*self._read_variables(), batch)

    def _read_variables(self) -> list[list[tf.Tensor]]:
        groups = self.model.trainable_variables, self.model.non_trainable_variables
        return [[tf.convert_to_tensor(variable.value) for variable in group] for group in groups]

    def _replica_gradients(self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch) -> Any:
        """Returns the sums, the gradients of this replica's share of the global loss, and the new state."""
        config, replicas = self._config, self._strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits, new_state, model_losses = self.model.stateless_call(
                weights, state, self._prepare_images(batch), training=True, return_losses=True
            )
            losses = _compute_losses(logits, batch["label"], config.label_smoothing)
            # Gradients are added up over replicas, so each replica has its part of the mean over the global batch.
            loss = tf.reduce_sum(losses) / config.pipeline.batch_size
            loss += tf.add_n([tf.zeros([]), *model_losses]) / replicas
        gradients = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        decay = config.weight_decay / replicas
        gradients = [
            gradient + decay * weight if len(weight.shape) > 1 else gradient
            for gradient, weight in zip(gradients, weights, strict=True)
        ]
        return self._count(losses, logits, batch["label"], tf.ones_like(losses)), gradients, new_state

    def _replica_predict(self, weights: list[tf.Tensor], state: list[tf.Tensor], batch: Batch) -> tf.Tensor:
        logits, _ = self.model.stateless_call(weights, state, batch["image"], training=False)
        return self._count(_compute_losses(logits, batch["label"]), logits, batch["label"], batch["mask"])

    def _prepare_images(self, batch: Batch) -> tf.Tensor:
        """Returns the images for the model: those that the device augments become uint8 again, as the host's are."""
        config = self._config.pipeline
        if config.augment != "device":
            return batch["image"]
        # With mean 0 and deviation 1/255 the pixels keep their range: the model normalizes.
        options = replace(config.augment_options, mean=(0.0,) * 3, std=(1 / 255,) * 3)
        sizes = batch.get("height"), batch.get("width")
        pixels = augment(batch["image"], batch["seed"], *sizes, config.image_size, True, options=options)
        return tf.cast(tf.clip_by_value(tf.round(pixels), 0.0, 255.0), tf.uint8)

    def _count(self, losses: tf.Tensor, logits: tf.Tensor, labels: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Returns the sums over the images of a batch, float32 [4]."""
        # XLA does not compile `in_top_k`. An image is among the best k where fewer than k classes rank before its
        # label: those with a higher logit, and those with an equal logit and a lower number.
        label_logit = tf.gather(logits, labels, axis=1, batch_dims=1)[:, None]
        has_lower_number = tf.range(self._num_classes)[None] < labels[:, None]
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
        tf.__internal__.distribute.interim.maybe_merge_call(assign, self._strategy, state)


def _compute_losses(logits: tf.Tensor, labels: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Returns the cross-entropy of each image, float32 [batch]."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not smoothing:
        return losses
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1.0 - smoothing) * losses + smoothing * spread
