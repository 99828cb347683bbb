"""A step end to end beside the same step on a batch that lies on the device."""

import time

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tfpipe.errors import ConfigError, DataError

STEP_S = 0.01


def batches(sleep_s: float = 0.0) -> tf.data.Dataset:
    """Batches of 16 vectors, each of which takes a while to make while nobody works on it ahead."""

    def slow(x):
        return tf.ensure_shape(tf.numpy_function(lambda v: (time.sleep(sleep_s), v)[1], [x], x.dtype), x.shape)

    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensors(np.ones((16, 64), np.float32)).repeat()
    return (data.map(slow) if sleep_s else data).with_options(options)


def work(batch: tf.Tensor) -> tf.Tensor:
    """A step that leaves the processor to others."""
    time.sleep(STEP_S)
    return tf.reduce_sum(batch)


@pytest.mark.parametrize("wait_s", [0.0, STEP_S / 3, STEP_S, 9 * STEP_S])
def test_the_idle_time_that_was_planted(wait_s: float) -> None:
    timing = tfpipe.measure_training(work, batches(wait_s), steps=12, warm_up=1)
    assert (timing.method, timing.steps, timing.images_per_step) == ("training", 12, 16)
    assert timing.idle_fraction.median == pytest.approx(wait_s / (wait_s + STEP_S), abs=0.1)
    assert timing.input_wait_fraction.median == pytest.approx(timing.idle_fraction.median, abs=0.1)
    assert timing.idle_fraction.low <= timing.idle_fraction.median <= timing.idle_fraction.high
    assert timing.step_s.median == pytest.approx(STEP_S, rel=0.3)


@pytest.mark.parametrize(("make_s", "idle"), [(STEP_S / 2, 0.0), (2 * STEP_S, 0.5)])
def test_a_buffer_neither_hides_a_slow_pipeline_nor_starves_a_fast_one(make_s: float, idle: float) -> None:
    timing = tfpipe.measure_training(work, batches(make_s).prefetch(8), steps=60, warm_up=15)
    assert timing.idle_fraction.median == pytest.approx(idle, abs=0.12)


def test_a_compiled_step_and_the_monitor_agree() -> None:
    weights = tf.Variable(tf.random.stateless_normal([64, 64], [1, 2]))

    @tf.function(jit_compile=True)
    def train(batch):
        with tf.GradientTape() as tape:
            x = tf.tile(batch, [64, 1])
            for _ in range(20):
                x = tf.tanh(x @ weights)
            loss = tf.reduce_sum(x)
        weights.assign_sub(1e-3 * tape.gradient(loss, weights))
        return loss

    plain = tfpipe.measure_training(train, batches(), steps=20)
    data = batches(plain.step_s.median)
    before = tfpipe.measure_training(train, data, steps=40)
    monitor = tfpipe.IdleMonitor(every_steps=10)
    for batch in monitor.iterate(data.take(50)):
        with monitor.step() as step:
            step.result = train(batch)
    # The machine is shared; on a quiet one they lie within 3 points.
    assert monitor.result().idle_fraction.median == pytest.approx(before.idle_fraction.median, abs=0.2)
    assert 0.2 < before.idle_fraction.median < 0.8


def test_a_strategy_and_its_dataset() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    data = strategy.experimental_distribute_dataset(batches().take(40))

    @tf.function
    def train(batch):
        return strategy.run(lambda x: {"loss": tf.reduce_sum(x)}, (batch,))

    timing = tfpipe.measure_training(train, data, steps=20, warm_up=1)  # and the dataset ends within
    assert (timing.steps, timing.images_per_step) == (20, 16)


def test_a_step_that_returns_nothing_and_batches_of_dictionaries() -> None:
    data = batches().map(lambda x: {"image": x, "name": tf.constant("a")})
    timing = tfpipe.measure_training(lambda batch: time.sleep(0.001), data, steps=3, warm_up=1)
    assert (timing.steps, timing.images_per_step) == (3, 16)


def test_messages() -> None:
    with pytest.raises(ConfigError, match=r"^`steps` must be at least 1, got 0\.$"):
        tfpipe.measure_training(work, batches(), steps=0)
    with pytest.raises(ConfigError, match=r"^`warm_up` must be at least 1, .* in the first step, got 0\.$"):
        tfpipe.measure_training(work, batches(), warm_up=0)
    with pytest.raises(DataError, match=r"^The dataset has no batch to train on\.$"):
        tfpipe.measure_training(work, batches().take(0))
