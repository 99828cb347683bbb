"""Passes that end with an epoch: `build_dataset(..., epochs=1)`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.position import count_look
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline.build import build_dataset
from tfpipe.readers.numpy import NumpyBatches

CONFIG = PipelineConfig(batch_size=4, image_size=8, seed=3, extra_features=("id",))


def take_pass(dataset: tf.data.Dataset) -> list[list[int]]:
    return [batch["id"].tolist() for batch in dataset.as_numpy_iterator()]


def list_expected(manifest: Manifest, first: int, end: int) -> list[list[int]]:
    batches = NumpyBatches(manifest, "train", CONFIG)
    return [batches.read(step)["id"].tolist() for step in range(first, end)]


def count_steps(manifest: Manifest) -> int:
    return tfpipe.steps_per_epoch(manifest, "train", CONFIG)


def test_each_pass_goes_on_with_the_next_epochs(few: Manifest) -> None:
    steps = count_steps(few)
    dataset = build_dataset(few, "train", CONFIG, epochs=1)
    assert int(dataset.cardinality()) == steps
    assert [take_pass(dataset) for _ in range(3)] == [
        list_expected(few, epoch * steps, (epoch + 1) * steps) for epoch in range(3)
    ]


def test_a_first_pass_ends_with_the_epoch_that_it_begins_in(few: Manifest) -> None:
    steps = count_steps(few)
    assert steps > 2
    dataset = build_dataset(few, "train", CONFIG, start_step=steps + 2, epochs=1)
    assert int(dataset.cardinality()) == steps  # Keras asks once, for all passes
    assert take_pass(dataset) == list_expected(few, steps + 2, 2 * steps)
    assert take_pass(dataset) == list_expected(few, 2 * steps, 3 * steps)


def test_a_look_changes_nothing_and_a_pass_that_is_left_counts(few: Manifest) -> None:
    """Also if all of its batches are ready."""
    steps = count_steps(few)
    look = count_look(2 * steps)
    assert 1 <= look < 2 * steps - 1
    dataset = build_dataset(few, "train", replace(CONFIG, prefetch_batches=100), epochs=2)
    assert int(dataset.cardinality()) == 2 * steps
    for taken in (1, look, look + 1):
        iterator = dataset.as_numpy_iterator()
        assert [next(iterator)["id"].tolist() for _ in range(taken)] == list_expected(few, 0, taken)
    assert take_pass(dataset) == list_expected(few, 2 * steps, 4 * steps)
    assert take_pass(dataset) == list_expected(few, 4 * steps, 6 * steps)


def test_hosts_and_replicas_end_together(few: Manifest, context: Callable[..., Any]) -> None:
    steps = count_steps(few)
    hosts = [build_dataset(few, "train", CONFIG, context(2, host, 4), epochs=1) for host in range(2)]
    assert [int(host.cardinality()) for host in hosts] == [2 * steps, 2 * steps]
    for epoch in range(2):
        one, other = (np.array(take_pass(host)).reshape(steps, 2) for host in hosts)
        assert np.hstack([one, other]).tolist() == list_expected(few, epoch * steps, (epoch + 1) * steps)


def test_a_strategy_counts_its_steps(few: Manifest) -> None:
    strategy, steps = tf.distribute.OneDeviceStrategy("/CPU:0"), count_steps(few)
    train = tfpipe.distribute_dataset(strategy, few, "train", CONFIG, epochs=1)
    assert int(train.cardinality) == steps
    for epoch in range(2):
        found = [batch["id"].numpy().tolist() for batch in train]
        assert found == list_expected(few, epoch * steps, (epoch + 1) * steps)


@pytest.mark.parametrize(
    ("options", "epochs", "sentence"),
    [
        ({}, -1, "`epochs` must be at least 0, got -1."),
        ({"training": False}, 1, "`epochs` is for training; evaluation is one pass, got 1."),
        (
            {"order": "throughput"},
            2,
            "`epochs` is 2: that is for batches by their steps, and `order` is throughput. Use order='exact', in which "
            "stages of your own get whole batches.",
        ),
    ],
)
def test_epochs_that_cannot_be_had(few: Manifest, options: dict[str, Any], epochs: int, sentence: str) -> None:
    assert refusal(ConfigError, build_dataset, few, "train", replace(CONFIG, **options), epochs=epochs) == sentence
