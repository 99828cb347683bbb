"""The reader for Keras: `fit` ends by itself, and an evaluation counts each record once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.readers.keras import KerasBatches
from tfpipe.readers.numpy import NumpyBatches

CONFIG = PipelineConfig(batch_size=4, image_size=8, seed=3, image_dtype="float32")


class Noting(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the batches of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.counts.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.counts[-1] += 1


def make_model(**options: Any) -> Any:
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, **options)
    return model


def test_fit_ends_by_itself(small_dataset: Path) -> None:
    train, noting = KerasBatches(small_dataset, "train", CONFIG), Noting()
    validation = KerasBatches(small_dataset, "validation", replace(CONFIG, training=False))
    model = make_model(weighted_metrics=["accuracy"])
    history = model.fit(
        train, epochs=2, shuffle=False, validation_data=validation, verbose=0, callbacks=[noting]
    ).history
    assert noting.counts == [3, 3]
    assert len(history["val_accuracy"]) == 2
    assert train.epoch == 1
    model.fit(train, epochs=1, shuffle=False, verbose=0)
    assert train.epoch == 2


def test_batches_are_those_of_all_readers(small_dataset: Path) -> None:
    batches, expected = KerasBatches(small_dataset, "train", CONFIG), NumpyBatches(small_dataset, "train", CONFIG)
    for epoch in range(2):
        batches.on_epoch_begin()
        for step in range(len(batches)):
            image, label = batches[step]
            np.testing.assert_array_equal(image, expected.read(3 * epoch + step)["image"])
            np.testing.assert_array_equal(label, expected.read(3 * epoch + step)["label"])
        np.testing.assert_array_equal(batches[1][0], expected.read(3 * epoch + 1)["image"])  # once more
    later = KerasBatches(small_dataset, "train", CONFIG, start_step=6)
    np.testing.assert_array_equal(later[1][0], expected.read(7)["image"])


def test_an_evaluation_counts_each_record_once(small_dataset: Path) -> None:
    evaluation = KerasBatches(small_dataset, "validation", replace(CONFIG, training=False))
    assert [weights.tolist() for _, _, weights in (evaluation[0],)] == [[1.0, 1.0, 1.0, 0.0]]
    model = make_model(weighted_metrics=["accuracy"])
    accuracy = model.evaluate(evaluation, verbose=0, return_dict=True)["accuracy"]
    image, label, _ = evaluation[0]
    predicted = np.asarray(model(image)).argmax(axis=1)
    assert accuracy == pytest.approx(np.mean(predicted[:3] == label[:3]), abs=1e-6)


def test_a_step_within_an_epoch_is_refused(small_dataset: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        KerasBatches(small_dataset, "train", CONFIG, start_step=4)
    assert str(caught.value) == ("`start_step` must begin an epoch of 3 steps, as Keras does, got 4. Use 3 or 6.")
