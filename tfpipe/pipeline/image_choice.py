"""Chooses the images of a record that a batch holds, where records have several; and gives each image a seed.

The choice and the seeds follow from the record's seed, so they are the same in every reader:
`tfpipe.engine.crops` computes them without TensorFlow.

    the choice          the images with the smallest of as many random numbers, in the order of the record
    the seed of image k the record's seed, whose first word is changed by k; that of image 0 is the record's own
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.crops import CHOICE_KEY, list_image_words
from tfpipe.engine.plan import BatchPlan, draws_images

_LISTS = ("encoded", "height", "width")


def choose_images(
    plan: BatchPlan, features: Mapping[str, Any], seed: tf.Tensor
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Chooses the images of a record.

    Args:
        plan: The plan of the pipeline.
        features: The features: "encoded", and "height" and "width" if they are there, have a value for each image.
        seed: The seed of the record, int32 [2].

    Returns:
        The features with `num_images` values each, or without an axis for them if a batch holds the first image; and
        a seed for each image, int32 [images, 2], or the record's own.
    """
    lists = {name: features[name] for name in _LISTS if name in features}
    number, counts = plan.num_images, plan.source.per_record
    assert counts is not None
    chosen = tf.range(number or 1)
    if draws_images(plan):
        assert number is not None
        chosen = _draw(seed, tf.size(lists["encoded"]), number, counts.largest)
    taken = {name: tf.gather(values, chosen) for name, values in lists.items()}
    if number is None:
        return {**features, **{name: values[0] for name, values in taken.items()}}, seed
    words = tf.gather(tf.constant(list_image_words(counts.largest)), chosen)
    seeds = tf.stack([tf.bitwise.bitwise_xor(seed[:1], words), tf.zeros_like(words) + seed[1:]], axis=-1)
    return {**features, **taken}, seeds


def _draw(seed: tf.Tensor, count: tf.Tensor, number: int, most: int) -> tf.Tensor:
    """Draws images without repetition: their numbers in the record, int32 [number]."""
    key = tf.bitwise.bitwise_xor(seed, tf.constant(CHOICE_KEY, tf.int32))
    numbers = tf.random.stateless_uniform([most], key, minval=None, maxval=None, dtype=tf.int32)
    ranks = tf.where(tf.range(most) < count, tf.cast(numbers, tf.int64), np.iinfo(np.int64).max)
    return tf.sort(tf.argsort(ranks, stable=True)[:number])
