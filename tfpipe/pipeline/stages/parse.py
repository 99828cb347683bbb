"""The stage `parse`: named features out of encoded records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import BatchPlan
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.pipeline.stage import Stage
from tfpipe.system.hash_permutation import EXAMPLE, key_of

Features = dict[str, tf.Tensor]

_TF_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}


def parse_records(plan: BatchPlan) -> Stage:
    """Parses the features that the pipeline needs out of each record, and adds a seed if a crop is drawn next."""
    draws = _draws(plan) and not caches_whole(plan.config)

    def parse(payload: tf.Tensor, seed: tf.Tensor | None = None) -> Features:
        features = parse_example(plan, payload)
        return features if seed is None else {**features, "seed": seed}

    def apply(records: tf.data.Dataset) -> tf.data.Dataset:
        return map_in_parallel(plan, tf.data.Dataset.zip((records, _draw_seeds(plan))) if draws else records, parse)

    return Stage("parse", apply, parallel_settings(plan), "only the features that are needed")


def caches_whole(config: PipelineConfig) -> bool:
    """Returns whether a cache keeps whole decoded images, to be augmented anew every epoch."""
    return config.cache == "decoded" and config.training


def keeps_order(config: PipelineConfig) -> bool:
    """Returns whether elements keep their order, although a slow one then holds up the next."""
    chosen = config.tf_data.deterministic
    return not config.training if chosen is None else chosen


def add_seeds(plan: BatchPlan, images: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "seed", int32 [2], to the features of images that come from a cache, if the augmentation draws numbers."""
    if not _draws(plan):
        return images
    return tf.data.Dataset.zip((images, _draw_seeds(plan))).map(lambda features, seed: {**features, "seed": seed})


def _draws(plan: BatchPlan) -> bool:
    """Returns whether the augmentation draws random numbers."""
    return plan.config.training and plan.source.has_images and plan.config.augment != "none"


def _draw_seeds(plan: BatchPlan) -> tf.data.Dataset:
    """Draws a seed for each image, int32 [2], without end."""
    key = key_of(EXAMPLE, plan.config.seed, plan.host.start_step, plan.host.index) >> 1
    numbers = tf.data.Dataset.random(seed=key).batch(2, drop_remainder=True)
    return numbers.map(lambda pair: tf.cast(pair, tf.int32))


def parse_example(plan: BatchPlan, payload: tf.Tensor) -> Features:
    """Parses one `tf.train.Example`, a scalar string.

    It gives "encoded" (string), "label" (int64) where there are labels, "height" and "width" (int64, of the original)
    where the manifest vouches for them, and each further feature under its own name.
    """
    source = plan.source
    keys = {} if source.image_key is None else {"encoded": source.image_key}
    if source.label_key is not None:
        keys["label"] = source.label_key
    if source.has_sizes:
        keys |= {"height": IMAGE_HEIGHT, "width": IMAGE_WIDTH}
    keys |= {feature.name: feature.name for feature in plan.features}
    specs = {key: source.schema[key] for key in keys.values()}
    parsers = {key: tf.io.FixedLenFeature(spec.shape, _TF_DTYPES[spec.dtype]) for key, spec in specs.items()}
    example = tf.io.parse_single_example(payload, parsers)
    features = {name: example[key] for name, key in keys.items()}
    if source.label_base:
        features["label"] -= source.label_base
    return features


def map_in_parallel(plan: BatchPlan, dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Maps a function over a dataset with as many parallel calls as the config asks for."""
    calls = plan.config.tf_data.num_parallel_calls
    if calls is None:
        # Without autotuning, AUTOTUNE would mean at most 16 threads.
        calls = tf.data.AUTOTUNE if plan.config.autotunes else plan.config.max_threads
    return dataset.map(function, num_parallel_calls=calls, deterministic=keeps_order(plan.config))


def parallel_settings(plan: BatchPlan) -> dict[str, object]:
    """Returns what `map_in_parallel` is built with, for the settings of a stage."""
    return {"num_parallel_calls": plan.config.tf_data.num_parallel_calls, "deterministic": keeps_order(plan.config)}
