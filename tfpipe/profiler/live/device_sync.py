"""Answers questions about devices and the tensors on them: whether a step has ended, how many images a batch has."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def steps_are_synchronous() -> bool:
    """Returns whether a step has ended when its call returns. This is so on CPUs; GPUs and TPUs have a queue."""
    return not (tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def block_until_done(result: Any) -> None:
    """Waits until the devices have finished the work that they were given.

    Args:
        result: Values that the last step computed, in any structure, also per replica. One number of each tensor is
            fetched. None waits for GPUs alone: TensorFlow cannot wait for a TPU without a tensor of its work.
    """
    tf.test.experimental.sync_devices()
    for tensor in list_tensors(result):
        if tensor.shape.num_elements() != 0:
            tf.reshape(tensor, [-1])[:1].numpy()


def list_tensors(structure: Any) -> list[tf.Tensor]:
    """Returns all tensors in a structure, with those of all replicas of this process."""
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [value for value in flat if isinstance(value, tf.Tensor | tf.Variable)]


def count_images(batch: Any) -> int:
    """Returns the length of a batch's first tensor, summed over the replicas of this process; 1 for a scalar."""
    first = next(iter(tf.nest.flatten(batch)), None)
    parts = getattr(first, "values", None)  # a per-replica value has one for each replica
    parts = parts if isinstance(parts, tuple) else (first,)
    return sum(int(part.shape[0] or 0) if len(part.shape) else 1 for part in parts if hasattr(part, "shape"))


def count_local_replicas(strategy: tf.distribute.Strategy) -> int:
    """Returns how many replicas of a strategy run in this process; 1 without a strategy."""
    return len(strategy.extended.worker_devices) if strategy.num_replicas_in_sync > 1 else 1
