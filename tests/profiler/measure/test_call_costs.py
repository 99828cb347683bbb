"""Own stages with a call for each image and for 32: what both cost, and whether both give the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.open_dataset import load_manifest
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Stage, Stages
from tfpipe.profiler.measure import call_costs, turns
from tfpipe.profiler.measure.call_costs import measure_behind_costs, measure_call_costs
from tfpipe.profiler.types import CallCosts

CONFIG = PipelineConfig(batch_size=4, image_size=16, order="throughput")
COSTS_US = {"images alone": 30.0, "one": 130.0, "own": 40.0, "own with vectorized_map": 35.0}

Measure = Callable[..., dict[str, CallCosts]]


@pytest.fixture
def measure(small_dataset: Path) -> Measure:
    """Returns a function that measures a map of images behind a stage, by default `augment`."""

    def run(function: Any, after: str = "augment", entry: str | None = None, **declared: Any) -> Any:
        def own(features: Any) -> Any:
            return {**features, "image": function(features["image"])}

        stage = Stage("own", lambda dataset: dataset.map(own, num_parallel_calls=-1), **{"per_image": True, **declared})
        manifest = load_manifest(str(small_dataset))

        def customize(stages: Stages) -> Stages:
            added = stages.insert_after(after, stage)
            return added if entry is None else added.vectorize(entry)

        return measure_call_costs(CONFIG, build_stages(manifest, "train", CONFIG, customize=customize))

    return run


@pytest.fixture
def fixed_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a measurement only make the datasets."""
    monkeypatch.setattr(call_costs, "measure_costs_us", lambda datasets: {name: COSTS_US[name] for name in datasets})


def in_numpy(image: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(lambda values: 255 - values, [image], tf.uint8), image.shape)


def less_its_mean(image: tf.Tensor) -> tf.Tensor:
    return image - tf.cast(tf.reduce_mean(tf.cast(image, tf.float32)), tf.uint8)


def blurred(image: tf.Tensor) -> tf.Tensor:
    floats = tf.cast(image, tf.float32)[None]
    sums = tf.nn.depthwise_conv2d(floats, tf.ones([5, 5, 3, 1]), [1, 1, 1, 1], "SAME")
    return tf.saturate_cast(sums[0] / 25, tf.uint8)


def noisy(image: tf.Tensor) -> tf.Tensor:
    return image + tf.cast(tf.random.uniform(image.shape, 0, 255, tf.int32), tf.uint8)


@pytest.mark.usefixtures("fixed_costs")
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # The way that the user's function goes by itself, unless TensorFlow's is clearly cheaper.
        (in_numpy, CallCosts(100.0, 10.0, "own", True)),
        # Of a batch as it is, it would take the mean of all images.
        (less_its_mean, CallCosts(100.0, 5.0, "own with vectorized_map", True)),
        # It refuses a batch as it is, which has a dimension too many.
        (blurred, CallCosts(100.0, 5.0, "own with vectorized_map", True)),
        (noisy, CallCosts(100.0, 5.0, "own with vectorized_map", False)),
    ],
)
def test_the_way_that_keeps_the_values_is_found(measure: Measure, function: Any, expected: CallCosts) -> None:
    assert measure(function) == {"own": expected}


@pytest.mark.usefixtures("fixed_costs")
def test_what_cannot_be_tried_is_left_out(measure: Measure) -> None:
    assert measure(in_numpy, per_image=None) == {}
    assert measure(in_numpy, per_image=False) == {}
    assert measure(in_numpy, after="batch") == {}  # it gets batches already
    assert measure(in_numpy, entry="own") == {}
    assert measure(blurred, entry="own with vectorized_map") == {}


def test_the_call_of_a_numpy_function_is_what_it_costs(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_SECONDS", 0.1)
    costs = measure(in_numpy)["own"]
    assert costs.same_values
    assert costs.many_us < costs.one_us


def test_what_is_left_behind_a_cache_is_measured_for_stages_that_are_the_same_in_each_epoch(
    small_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 4 were counted as batches of the sample's 32 images. What the stage draws proves that it is cached."""
    manifest, drawn = load_manifest(str(small_dataset)), []

    def own(features: Any) -> Any:
        return {**features, "drawn": tf.random.uniform([])}

    def add(stages: Stages) -> Stages:
        steady = Stage("steady", lambda dataset: dataset.map(own), random=False)
        return stages.insert_after("decode", steady).insert_after("augment", Stage("other", lambda dataset: dataset))

    def take_batches(datasets: dict[str, tf.data.Dataset]) -> dict[str, float]:
        batches = datasets["behind"].take(16).as_numpy_iterator()
        drawn.extend(value for batch in batches for value in batch["drawn"])
        return {"behind": 16.0}

    monkeypatch.setattr(call_costs, "measure_costs_us", take_batches)
    stages = build_stages(manifest, "train", CONFIG, customize=add)
    assert measure_behind_costs(CONFIG, stages) == {"steady": 16.0 * 32 / 4}
    assert drawn[:32] == drawn[32:]
    assert len(set(drawn)) == 32
