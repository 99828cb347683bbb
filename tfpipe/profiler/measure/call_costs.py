"""The cost of an image in stages of the user's own, by the number of images that a call of their function gets.

A call costs something whatever it computes: a Python function above all, but a small operation of TensorFlow too. So a
stage that declares `per_image` is run on a few of the records, one image in a call and 32 in a call. Nobody can read
from a function whether both give the same. So this is tried too, and values that differ by one bit count as different.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.stage import Stage, Stages
from tfpipe.profiler.measure.record_sample import RECORDS
from tfpipe.profiler.measure.stock_sample import list_records, measure_costs_us
from tfpipe.profiler.types import CallCosts

logger = logging.getLogger(__name__)

_CLEARLY = 1.25
_ALONE, _ONE = "images alone", "one"


def measure_call_costs(config: PipelineConfig, stages: Stages) -> dict[str, CallCosts]:
    """Measures the stages that declare `per_image` and are not vectorized yet.

    Args:
        config: The pipeline's options.
        stages: The stages of the pipeline, built without a cache; the first records that they read are taken.

    Returns:
        The costs by stage. A stage is left out if its images have several sizes, or if it takes no group of them.
    """
    names = [stage.name for stage in stages if stage.per_image and "images_per_call" not in stage.settings]
    if not names or config.service.workers or "parse" not in stages.names:
        return {}
    costs = {name: _measure(stages, name) for name in names}
    return {name: cost for name, cost in costs.items() if cost is not None}


def measure_behind_costs(config: PipelineConfig, stages: Stages) -> dict[str, float]:
    """Measures what is left of an image's processor time if a cache keeps what a stage gives, up to `batch`.

    Args:
        config: The pipeline's options.
        stages: The stages of the pipeline, built without a cache; the first records that they read are taken.

    Returns:
        The processor time in microseconds, by the name of each stage before `batch` that declares `random=False`. A
        stage is left out if the sample does not pass through it.
    """
    names = stages.names
    if config.service.workers or "parse" not in names or "batch" not in names:
        return {}
    parse, batch = names.index("parse"), names.index("batch")
    batch_size = config.batch_size
    costs_us: dict[str, float] = {}
    for place in range(parse, batch):
        if stages[place].random is not False:
            continue
        kept = Stages(stages[parse : place + 1]).apply_to(list_records(stages)).cache().repeat()
        left = Stages(stages[place + 1 : batch + 1]).apply_to(kept)
        try:
            cost_us = measure_costs_us({"behind": left})["behind"]
        except tf.errors.OpError as error:  # of the user's functions, or of images that make no batch
            logger.info("A cache behind the stage %s was not tried: %s", names[place], error)
            continue
        costs_us[names[place]] = cost_us * RECORDS / batch_size  # each batch was counted as one of the sample's size
    return costs_us


def _measure(stages: Stages, name: str) -> CallCosts | None:
    """Returns the costs of one stage; None if it cannot run on a group of images."""
    parse, place = stages.names.index("parse"), stages.names.index(name)
    if "batch" in stages.names[:place] or place < parse:
        return None
    before = Stages(stages[parse:place])
    try:
        sample = next(iter(before.apply_to(list_records(stages)).batch(RECORDS, drop_remainder=True)), None)
    except Exception:  # of the user's functions, or of images that make no batch
        return None
    if sample is None:  # a filter has dropped some
        return None
    images = tf.data.Dataset.from_tensor_slices(sample)
    expected = _compute(stages[place], images)
    ways = {entry: stages.vectorize(entry)[place] for entry in (name, f"{name} with vectorized_map")}
    values = {entry: _compute(stage, images) for entry, stage in ways.items()}
    possible = {entry: stage for entry, stage in ways.items() if values[entry] is not None}
    if expected is None or not possible:
        return None
    same = {entry for entry in possible if _are_same(values[entry], expected)}
    endless = images.repeat()
    datasets = {entry: stage.apply(endless).batch(RECORDS) for entry, stage in possible.items()}
    datasets |= {_ALONE: endless.batch(RECORDS), _ONE: stages[place].apply(endless).batch(RECORDS)}
    costs_us = measure_costs_us(datasets)
    # What is not clearly cheaper is not worth a function that TensorFlow makes of the user's.
    best = min(possible, key=lambda entry: (entry not in same, costs_us[entry] * (1.0 if entry == name else _CLEARLY)))
    one_us, many_us = (max(costs_us[key] - costs_us[_ALONE], 1.0) for key in (_ONE, best))
    return CallCosts(one_us, many_us, best, best in same)


def _compute(stage: Stage, images: tf.data.Dataset) -> Any:
    """Returns what a stage makes of the images of a sample; None if it cannot."""
    try:
        return next(iter(stage.apply(images).batch(RECORDS, drop_remainder=True)), None)
    except Exception as error:  # whatever the user's function raises for a group of images
        logger.info("The stage %s takes no group of images: %s", stage.name, error)
        return None


def _are_same(values: Any, expected: Any) -> bool:
    """Returns whether two batches have the same structure, types, shapes and bits."""
    try:
        tf.nest.assert_same_structure(values, expected)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(values), tf.nest.flatten(expected), strict=True)
    return all(
        one.dtype == other.dtype and np.array_equal(one.numpy(), other.numpy(), equal_nan=one.dtype.is_floating)
        for one, other in pairs
    )
