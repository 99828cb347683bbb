"""The Keras callback in short trainings of `model.fit`."""

import logging
import time

import pytest
import tensorflow as tf

import tfpipe
from tests.profiler.live.conftest import MakeBatches
from tfpipe.errors import DataError


def small_model() -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    return model


def test_keras_logs_the_wait_of_each_epoch(make_batches: MakeBatches, caplog) -> None:
    caplog.set_level(logging.INFO, logger="tfpipe")
    monitor = tfpipe.IdleMonitor(every_steps=10, warm_up=3)
    dataset = monitor.watch(make_batches(0.03, count=12))
    history = small_model().fit(
        dataset, epochs=2, verbose=0, callbacks=[monitor.callback()], validation_data=make_batches(count=3)
    )
    waits = history.history["input_wait_fraction"]
    assert len(waits) == 2
    assert all(0.6 < wait < 1 for wait in waits)
    assert history.history["idle_fraction_estimate"] == waits
    assert all(100 < rate < 8 / 0.03 for rate in history.history["images_per_second"])
    assert monitor.result().steps == 19  # of 24, less the warm-up and the last of each epoch
    assert "device idle" in caplog.text


def test_a_thread_that_asks_ahead_for_a_strategy_is_not_the_trainer(make_batches: MakeBatches) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    monitor = tfpipe.IdleMonitor(every_steps=5, warm_up=3)

    class Slow(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
            time.sleep(0.06)

    with strategy.scope():
        model = small_model()
    dataset = strategy.distribute_datasets_from_function(lambda _: monitor.watch(make_batches(0.02, count=15)))
    # The thread that feeds the device waits 20 ms for each batch. The trainer never waits: it takes longer itself.
    model.fit(dataset, epochs=1, verbose=0, callbacks=[Slow(), monitor.callback()])
    assert monitor.result().input_wait_fraction.median < 0.15


def test_a_dataset_that_nobody_watches_is_told(make_batches: MakeBatches, caplog) -> None:
    monitor = tfpipe.IdleMonitor(warm_up=1)
    history = small_model().fit(make_batches(count=3), verbose=0, callbacks=[monitor.callback()])
    expected = (
        "3 steps were made, and the clock saw no batch of them. Train on the dataset that `IdleMonitor.watch` "
        "returned, in this process, or take batches from `IdleMonitor.iterate`."
    )
    assert expected in caplog.text
    assert "input_wait_fraction" not in history.history
    with pytest.raises(DataError, match="the clock saw no batch"):
        monitor.result()
