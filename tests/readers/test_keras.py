"""The reader for Keras: `fit` ends by itself, and an evaluation counts each record once."""

import itertools
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.readers.keras import KerasBatches
from tfpipe.readers.numpy import NumpyBatches
from tfpipe.readers.torch import TorchBatches, data_loader

CONFIG = PipelineConfig(batch_size=4, image_size=8, seed=3, image_dtype="float32")
REPLICAS = int(os.environ.get("TEST_REPLICAS", "1"))
"""More than one run in a process of their own: devices are set up before TensorFlow does anything else."""
if REPLICAS > 1:
    devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)


class Noting(keras.callbacks.Callback):
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
    model.compile("sgd", loss, run_eagerly=True, **options)  # to compile it takes longer than to run it
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


def test_fit_takes_the_loader_of_pytorch_for_whole_epochs(small_dataset: Path) -> None:
    def put_channels_last(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "image": batch["image"].permute(0, 2, 3, 1).contiguous()}

    batches = TorchBatches(small_dataset, "train", CONFIG, as_supervised=True, batch_transform=put_channels_last)
    loader, noting = data_loader(batches), Noting()
    make_model().fit(loader, epochs=3, verbose=0, callbacks=[noting])
    assert noting.counts == [3, 3, 3]


def test_batches_are_those_of_all_readers(small_dataset: Path) -> None:
    batches, expected = KerasBatches(small_dataset, "train", CONFIG), NumpyBatches(small_dataset, "train", CONFIG)
    for epoch in range(2):
        batches.on_epoch_begin()
        for step in range(batches.num_batches):
            image, label = batches[step]
            np.testing.assert_array_equal(image, expected.read(3 * epoch + step)["image"])
            np.testing.assert_array_equal(label, expected.read(3 * epoch + step)["label"])
        np.testing.assert_array_equal(batches[1][0], expected.read(3 * epoch + 1)["image"])  # once more
    later = KerasBatches(small_dataset, "train", CONFIG, start_step=6)
    np.testing.assert_array_equal(later[1][0], expected.read(7)["image"])


def test_images_of_bfloat16_are_the_normalized_numbers(small_dataset: Path) -> None:
    model = keras.Sequential([keras.layers.GlobalAveragePooling2D(dtype="float32")])
    batches = KerasBatches(small_dataset, "validation", CONFIG, training=False, image_dtype="bfloat16")
    floats = KerasBatches(small_dataset, "validation", CONFIG, training=False)
    assert batches[0][0].dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(batches[0][0].astype(np.float32), floats[0][0], rtol=2**-8)
    np.testing.assert_allclose(model.predict(batches, verbose=0), model.predict(floats, verbose=0), atol=2**-8)


def evaluate(data: Path, size: int) -> list[Any]:
    options = {"training": False, "batch_size": size}
    return [
        KerasBatches(data, "train", CONFIG, **options),
        tfpipe.build_dataset(data, "train", CONFIG, as_supervised=True, **options),
    ]


def test_an_evaluation_is_the_mean_over_its_records_whatever_the_batch(small_dataset: Path) -> None:
    whole = NumpyBatches(small_dataset, "train", CONFIG, batch_size=12, training=False).read(0)
    model = make_model(weighted_metrics=["accuracy"])
    logits = np.asarray(model.predict(whole["image"], verbose=0), np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = {
        "loss": -np.log(shares[np.arange(12), whole["label"]]).mean(),
        "accuracy": np.mean(logits.argmax(1) == whole["label"]),
    }
    for data in (data for size in (5, 30) for data in evaluate(small_dataset, size)):
        assert model.evaluate(data, verbose=0, return_dict=True) == pytest.approx(expected, rel=1e-5)
        # Their powers, since a logit near 0 has the rounding of sums up to 3.
        np.testing.assert_allclose(np.exp(model.predict(data, verbose=0)), np.exp(logits), rtol=1e-5)


def build(data: Path, **options: Any) -> Any:
    return tfpipe.build_dataset(data, "train", CONFIG, as_supervised=True, **options)


def make_strategy() -> tf.distribute.Strategy:
    if REPLICAS == 1:
        return tf.distribute.OneDeviceStrategy("/CPU:0")
    return tf.distribute.MirroredStrategy([f"CPU:{replica}" for replica in range(REPLICAS)])


def distribute(data: Path, **options: Any) -> Any:
    """Keras looks at a batch before it trains."""
    return tfpipe.distribute_dataset(make_strategy(), data, "train", CONFIG, as_supervised=True, **options)


def open_batches(data: Path, **options: Any) -> Any:
    return KerasBatches(data, "train", CONFIG, **options)


ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
WAYS: list[Any] = [open_batches, build] if REPLICAS == 1 else []
if ON_TENSORFLOW:  # slow: each `fit` is compiled anew; the tests of `tfpipe train` resume under a strategy too
    WAYS.append(pytest.param(distribute, marks=pytest.mark.slow))


def make_decaying_model(way: Any, **options: Any) -> Any:
    """Makes a model that a step without a batch would change."""
    strategy = make_strategy() if way is distribute else tf.distribute.get_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), loss, jit_compile=False, **options)
        model.optimizer.build(model.trainable_variables)
    return model


class Saving(Noting):
    """Counts the batches of each epoch, and keeps all variables behind each step; may stop behind some."""

    def __init__(self, model: Any, steps: int = 100) -> None:
        super().__init__()
        self.states, self.steps = [get_state(model)], steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.counts[-1] = batch + 1
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        self.states.append(get_state(self.model))
        self.model.stop_training = len(self.states) > self.steps


def get_state(model: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(value).copy() for value in (*model.weights, *model.optimizer.variables)]


@dataclass
class Run:
    """A model, and all its variables behind each step of three epochs that nothing disturbed."""

    way: Any
    model: Any
    whole: Saving

    def fit(self, data: Path, begin: int, callback: bool, steps: int = 100, **options: Any) -> Saving:
        """Goes on at a step."""
        variables = (*self.model.weights, *self.model.optimizer.variables)
        for variable, value in zip(variables, self.whole.states[begin], strict=True):
            variable.assign(value)
        batches, saving = self.way(data, start_step=begin), Saving(self.model, steps)
        callbacks = [tfpipe.EndFirstEpoch(batches)] * callback + [saving]
        self.model.fit(batches, shuffle=False, verbose=0, callbacks=callbacks, **options)
        return saving


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, small_dataset: Path) -> Run:
    """One model for all tests, because compiling takes longer than training."""
    model = make_decaying_model(request.param)
    whole, train = Saving(model), request.param(small_dataset)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Your input ran out of data")
        model.fit(train, epochs=3, shuffle=False, verbose=0, callbacks=[tfpipe.EndFirstEpoch(train), whole])
    assert whole.counts == [3, 3, 3]
    return Run(request.param, model, whole)


@pytest.mark.parametrize("run", WAYS, indirect=True)
@pytest.mark.filterwarnings("error:Your input ran out of data")
def test_a_run_that_resumes_at_any_step_is_the_undisturbed_one(small_dataset: Path, run: Run) -> None:
    validation = KerasBatches(small_dataset, "validation", CONFIG, training=False)
    for done in (3, 5):
        # Keras itself cannot divide a batch of three among two replicas.
        more = {"validation_data": validation} if done == 3 and REPLICAS == 1 else {}
        saving = run.fit(small_dataset, done, callback=True, initial_epoch=done // 3, epochs=3, **more)
        assert saving.counts == [3 - done % 3, 3, 3][: 3 - done // 3]
        assert int(keras.ops.convert_to_numpy(run.model.optimizer.iterations)) == 9
        for found, expected in zip(saving.states, run.whole.states[done:], strict=True):
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("run", WAYS, indirect=True)
@pytest.mark.filterwarnings("error:Your input ran out of data")
def test_a_run_that_is_cut_three_times_is_the_undisturbed_one(small_dataset: Path, run: Run) -> None:
    """The first cut lies behind each step of two epochs in turn; the next ones one and three steps later."""
    for cut in range(1, 7):
        for begin, end in itertools.pairwise((cut, cut + 1, min(cut + 3, 8), 9)):
            saving = run.fit(small_dataset, begin, True, end - begin, initial_epoch=begin // 3, epochs=3)
            for found, expected in zip(saving.states, run.whole.states[begin : end + 1], strict=True):
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(one, other, str((cut, begin)))


@pytest.mark.parametrize("run", WAYS[:2], indirect=True)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_epochs_are_whole_without_the_callback_too(small_dataset: Path, run: Run) -> None:
    assert run.fit(small_dataset, 4, callback=False, epochs=3).counts == [2, 3, 3]


@pytest.mark.parametrize("run", WAYS[:2], indirect=True)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_epochs_of_another_length_take_the_batches_in_order(small_dataset: Path, run: Run) -> None:
    for steps, counts in ((2, [2, 1, 2, 1, 2]), (5, [3, 3, 3])):
        other = run.fit(small_dataset, 0, callback=False, epochs=len(counts), steps_per_epoch=steps)
        assert other.counts == counts
        for one, expected in zip(other.states[-1], run.whole.states[sum(counts)], strict=True):
            np.testing.assert_array_equal(one, expected)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="it takes one step an execution")
@pytest.mark.parametrize("way", [open_batches, pytest.param(build, marks=pytest.mark.slow), *WAYS[2:]])
def test_several_steps_of_an_execution_end_with_the_epoch(small_dataset: Path, way: Any) -> None:
    model = make_decaying_model(way, steps_per_execution=2)
    again = way(small_dataset, start_step=4)
    model.fit(again, epochs=3, shuffle=False, verbose=0, callbacks=[tfpipe.EndFirstEpoch(again)])
    assert int(model.optimizer.iterations) == 2 + 3 + 3


def test_the_callback_needs_passes_that_end(small_dataset: Path) -> None:
    for data in (build(small_dataset, epochs=0), build(small_dataset).prefetch(1)):
        assert refusal(ConfigError, tfpipe.EndFirstEpoch, data) == (
            "`EndFirstEpoch` needs a dataset whose passes end, as `build_dataset(..., epochs=1)` returns it before any "
            f"`map`, or KerasBatches, got {type(data).__name__}."
        )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends(backend: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not slow", __file__]
    subprocess.run(command, env={**os.environ, "KERAS_BACKEND": backend}, check=True, timeout=600)


@pytest.mark.slow
def test_replicas_resume_at_any_step_too() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow", "-k", "undisturbed", __file__]
    done = subprocess.run(
        command, env={**os.environ, "TEST_REPLICAS": "2"}, timeout=600, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("..")
