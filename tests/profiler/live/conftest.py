"""Batches that take a known time to come."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

MakeBatches = Callable[..., Any]
"""From `sleep_s` and `count`, both optional, to a `tf.data.Dataset`."""


@pytest.fixture(scope="session")
def make_batches() -> MakeBatches:
    """Returns a function that makes a dataset of 8 vectors and labels a batch; each batch takes `sleep_s` to make.

    Autotuning is off, so that no prefetch hides the time.
    """
    import tensorflow as tf

    def make(sleep_s: float = 0.0, count: int = -1) -> tf.data.Dataset:
        def slow(vectors: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            slept = tf.numpy_function(lambda value: (time.sleep(sleep_s), value)[1], [vectors], vectors.dtype)
            return tf.ensure_shape(slept, vectors.shape), labels

        batch = (np.ones((8, 4), np.float32), np.zeros((8, 1), np.float32))
        dataset = tf.data.Dataset.from_tensors(batch).repeat(count)
        options = tf.data.Options()
        options.autotune.enabled = False
        return (dataset.map(slow) if sleep_s else dataset).with_options(options)

    return make
