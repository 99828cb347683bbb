"""Times of a step end to end, beside the same step on a batch that lies on the device."""

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tfpipe.errors import ConfigError, DataError

STEP_S = 0.01


def batches(sleep_s: float = 0.0) -> tf.data.Dataset:
    """Returns batches of 16 vectors; each takes `sleep_s` to make, and nothing prefetches them."""

    def slow(x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(lambda v: (time.sleep(sleep_s), v)[1], [x], x.dtype), x.shape)

    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensors(np.ones((16, 64), np.float32)).repeat()
    return (data.map(slow) if sleep_s else data).with_options(options)


def work(batch: tf.Tensor) -> tf.Tensor:
    """Stands for a step that leaves the processor to others."""
    time.sleep(STEP_S)
    return tf.reduce_sum(batch)


def replace_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Replaces the clock by one that stands still. Returns the function that moves it on."""
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def batches_after(advance: Callable[[float], None], *waits_s: float) -> Iterator[tf.Tensor]:
    """Yields batches for ever; each takes the next of these times, which repeat."""
    batch = tf.zeros([16, 2])
    for wait_s in itertools.cycle(waits_s):
        advance(wait_s)
        yield batch


@pytest.mark.parametrize("wait_s", [0.0, STEP_S / 3, STEP_S, 9 * STEP_S])
def test_the_idle_time_that_was_planted_is_measured(monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
    advance = replace_clock(monkeypatch)
    timing = tfpipe.measure_training(lambda _: advance(STEP_S), batches_after(advance, wait_s), steps=12, warm_up=1)
    assert (timing.method, timing.steps, timing.images_per_step) == ("training", 12, 16)
    idle = timing.idle_fraction
    assert idle.median == pytest.approx(wait_s / (wait_s + STEP_S))
    assert timing.input_wait_fraction.median == pytest.approx(idle.median)
    assert (idle.low, idle.high) == pytest.approx((idle.median, idle.median))
    assert timing.step_s.median == pytest.approx(STEP_S)
    assert timing.wall_s == pytest.approx(12 * (wait_s + STEP_S))


def test_a_step_that_the_pipeline_slows_down_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    # The machine becomes slower all the while, and batches come two by two.
    advance = replace_clock(monkeypatch)
    steps_s = itertools.count(0.03, 0.0001)
    timing = tfpipe.measure_training(
        lambda _: advance(next(steps_s)), batches_after(advance, 0, 0.02), steps=40, warm_up=1
    )
    wait = timing.input_wait_fraction
    assert wait.median == pytest.approx(40 * 0.01 / timing.wall_s)
    assert timing.idle_fraction.median == pytest.approx(wait.median, abs=0.005)


def test_waits_that_come_in_bursts_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = replace_clock(monkeypatch)
    bursts = (10 * STEP_S, *[0.0] * 19)
    monitor = tfpipe.IdleMonitor(every_steps=5, warm_up=0)
    for _ in monitor.iterate(itertools.islice(batches_after(advance, *bursts), 80)):
        with monitor.step():
            advance(STEP_S)
    trained = tfpipe.measure_training(lambda _: advance(STEP_S), batches_after(advance, *bursts), steps=80)
    for timing in (monitor.result(), trained):
        assert timing.idle_fraction.median == pytest.approx(1 / 3)
        assert timing.idle_fraction.low == 0


@pytest.mark.parametrize(("make_s", "idle"), [(STEP_S / 2, 0.0), (2 * STEP_S, 0.5)], ids=["fast", "slow"])
def test_a_buffer_neither_hides_a_slow_pipeline_nor_starves_a_fast_one(make_s: float, idle: float) -> None:
    """In a second, of which a busy machine may take a part."""
    timing = tfpipe.measure_training(work, batches(make_s).prefetch(4), steps=100, warm_up=10)
    assert timing.idle_fraction.median == pytest.approx(idle, abs=0.15)


def test_a_step_and_a_dataset_of_a_strategy_are_measured() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    data = strategy.experimental_distribute_dataset(batches().take(40))

    @tf.function
    def train(batch: tf.Tensor) -> tf.Tensor:
        return strategy.run(lambda x: {"loss": tf.reduce_sum(x)}, (batch,))

    timing = tfpipe.measure_training(train, data, steps=20, warm_up=1)  # the dataset ends before
    assert (timing.steps, timing.images_per_step) == (20, 16)


def test_a_step_may_return_nothing_and_take_dictionaries() -> None:
    data = batches().map(lambda x: {"image": x, "name": tf.constant("a")})
    timing = tfpipe.measure_training(lambda batch: time.sleep(0.001), data, steps=3, warm_up=1)
    assert (timing.steps, timing.images_per_step) == (3, 16)


def test_wrong_numbers_and_an_empty_dataset_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^`steps` must be at least 1, got 0\.$"):
        tfpipe.measure_training(work, batches(), steps=0)
    with pytest.raises(ConfigError, match=r"^`warm_up` must be at least 1, .* in the first step, got 0\.$"):
        tfpipe.measure_training(work, batches(), warm_up=0)
    with pytest.raises(DataError, match=r"^The dataset has no batch to train on\.$"):
        tfpipe.measure_training(work, batches().take(0))
