"""The stage `repeat`: epochs without end, in front of the files or behind a cache.

A cache in memory can be read in any order. `cache().shuffle()` of `tf.data` would either repeat the first epoch's order
or shuffle decoded images. But its cache also gives the element at a position (`GetElementAtIndex`), and fills itself up
to there. So records are cached in the order of the first epoch, which then runs at the speed of reading. Every later
epoch fetches positions in another order, for about 100 us of a core for an image of 256 x 256.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages import _exact_order
from tfpipe.pipeline.stages._order_ops import make_seeds
from tfpipe.pipeline.stages.list import first_use_numbers
from tfpipe.pipeline.stages.parse import Features, add_seed, map_in_parallel


def repeat_epochs(plan: ReadPlan) -> Stage:
    """Counts epochs without end, in front of the files."""
    reason = "each epoch has an order of its own, so epochs come before files"
    return Stage("repeat", lambda _: _exact_order.list_epochs(plan), {"first_epoch": plan.start[0]}, reason)


def repeat_steps(plan: ReadPlan) -> Stage:
    """Counts the steps of all epochs without end, or takes those that a worker makes."""

    def apply(steps: tf.data.Dataset | None) -> tf.data.Dataset:
        return tf.data.Dataset.counter(np.int64(plan.start_step)) if steps is None else steps

    reason = "a step says its epoch and its records, so each worker counts its own steps"
    return Stage("repeat", apply, {"first_step": plan.start_step}, reason)


def repeat_cached(plan: ReadPlan) -> Stage:
    """Fetches every epoch from the cache in its exact order."""

    def take_payload(element: Any, record: tf.Tensor, seed: tf.Tensor) -> tuple[Any, Any]:
        # Each epoch counts from another record. A hole stays one.
        (place, payload), _ = element
        place = tf.where(place < 0, place, place % plan.order.num_records)
        number = (record % plan.order.num_records, seed)
        # With the third value of records that are chosen, as `read` gives the others.
        return (place, payload), number if plan.chosen is None else (*number, tf.constant(True))

    def apply(cached: tf.data.Dataset) -> tf.data.Dataset:
        records = _exact_order.list_records(plan, _exact_order.list_epochs(plan), chosen_only=True)
        fetched = _fetch(plan, cached, records)
        if plan.config.cache == "bytes":
            return fetched.map(take_payload)
        return fetched.map(lambda features, _, seed: add_seed(plan, features, seed))

    settings = {"order": "exact", "seed": plan.order.seed, "start_step": plan.start_step}
    return Stage("repeat", apply, settings, "positions in the cache are permuted, images are not moved")


def repeat_uncounted(plan: ReadPlan) -> Stage:
    """Reads a cache of uncounted records again and again."""
    seed = plan.config.seed

    def apply(cached: tf.data.Dataset) -> tf.data.Dataset:
        def read_again(epoch: tf.Tensor) -> tf.data.Dataset:
            def add_epoch_seed(features: Features) -> Features:
                return add_seed(plan, features, make_seeds(seed, epoch, features.pop("number")))

            if plan.config.cache == "bytes":
                return cached.map(lambda read, number: (read, (number[0], make_seeds(seed, epoch, number[0]))))
            return cached.map(add_epoch_seed)

        return _exact_order.list_epochs(plan).flat_map(read_again)

    reason = "nobody counted the records, so they come in the order in which they were cached"
    return Stage("repeat", apply, {}, reason)


def _fetch(plan: ReadPlan, cached: tf.data.Dataset, records: tf.data.Dataset) -> tf.data.Dataset:
    """Fetches the cached elements of records.

    Args:
        plan: The read plan.
        cached: A dataset that ends with `cache()`; its i-th element is the i-th record of `first_use_numbers(plan)`.
        records: The number and the seed of each record that comes next, from `list_records`.

    Returns:
        A dataset of (element, record, seed).
    """
    numbers = np.concatenate(first_use_numbers(plan)) % plan.order.num_records
    positions = np.full(plan.order.num_records, -1, np.int64)
    positions[numbers] = np.arange(len(numbers))
    position_of_record = tf.constant(positions)
    flat = tf.nest.flatten(cached.element_spec)
    variant = tf.data.experimental.to_variant(cached)

    def get(record: tf.Tensor, seed: tf.Tensor) -> tuple[object, tf.Tensor, tf.Tensor]:
        tensors = tf.raw_ops.GetElementAtIndex(
            dataset=variant,
            index=tf.gather(position_of_record, record % len(positions)),
            output_types=[spec.dtype for spec in flat],
            output_shapes=[spec.shape for spec in flat],
        )
        return tf.nest.pack_sequence_as(cached.element_spec, tensors), record, seed

    return map_in_parallel(plan, records, get)
