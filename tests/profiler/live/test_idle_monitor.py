"""The live monitor: what its clock says beside a planted wait, and what it leaves untouched."""

import logging
import time

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.live.graph_clock import Delivery, GraphClock
from tfpipe.profiler.live.idle_monitor import IdleMonitor
from tfpipe.profiler.live.step_recorder import Ledger, Step, Sums
from tfpipe.profiler.types import Spread

STEP_S = 0.01


def as_written(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def batches(sleep_s: float = 0.0, count: int = 1000) -> tf.data.Dataset:
    """Batches of 8 vectors and labels, each of which takes a while to make."""

    def slow(x, y):
        return tf.ensure_shape(tf.numpy_function(lambda v: (time.sleep(sleep_s), v)[1], [x], x.dtype), x.shape), y

    data = tf.data.Dataset.from_tensors((np.ones((8, 4), np.float32), np.zeros((8, 1), np.float32))).repeat(count)
    return as_written(data.map(slow) if sleep_s else data)


def work(_: object = None) -> tf.Tensor:
    """A step that leaves the processor to others."""
    time.sleep(STEP_S)
    return tf.constant(1.0)


# Watching


def test_watching_changes_nothing_that_a_trainer_sees() -> None:
    data = tf.data.Dataset.range(7).map(lambda i: {"image": tf.fill([2, 3], i), "text": tf.as_string(i)})
    watched = IdleMonitor().watch(data)
    assert watched.element_spec == data.element_spec
    assert int(watched.cardinality()) == 7
    assert [int(one["image"][0, 0]) for one in watched] == list(range(7))
    assert int(IdleMonitor().watch(data.repeat()).cardinality()) == tf.data.INFINITE_CARDINALITY
    assert int(IdleMonitor().watch(data.filter(lambda _: True)).cardinality()) == tf.data.UNKNOWN_CARDINALITY


def test_the_clock_tells_the_consumers_wait() -> None:
    clock = GraphClock()
    iterator = iter(clock.watch(batches(0.01)))
    host_s = 0.0
    for i in range(10):
        asked = time.perf_counter()
        next(iterator)
        host_s += time.perf_counter() - asked if i else 0  # the first one starts the iterator
        time.sleep(0.02)
    seen = clock.take()
    assert [one.index for one in seen] == list(range(10))
    assert {one.images for one in seen} == {8}
    assert sum(one.got - one.asked for one in seen[1:]) == pytest.approx(host_s, rel=0.25)
    assert clock.take() == []


def test_the_prefetch_that_tf_data_adds_does_not_hide_the_trainer() -> None:
    # Left alone, tf.data puts a prefetch behind the clock, which waits all the time.
    data = batches(0.01).with_options(tf.data.Options())
    options = tf.data.Options()
    options.autotune.enabled = True
    clock = GraphClock()
    iterator = iter(clock.watch(data.with_options(options)))
    begin = time.time()
    for _ in range(15):
        next(iterator)
        time.sleep(0.02)
    waited = sum(one.got - one.asked for one in clock.take()[2:])
    assert waited / (time.time() - begin) < 0.2


def test_the_clock_is_a_plain_variable_inside_a_strategy_too() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    with strategy.scope():
        clock = GraphClock()
    data = strategy.distribute_datasets_from_function(lambda _: clock.watch(batches(count=5)))
    assert len(list(data)) == 5
    assert len(clock.take()) == 5


# Loops


@pytest.mark.parametrize("wait_s", [0.0, STEP_S, 9 * STEP_S])
def test_a_loop_sees_the_wait_that_was_planted(wait_s: float) -> None:
    monitor = IdleMonitor(every_steps=5, warm_up=2)
    for batch in monitor.iterate(batches(wait_s, count=22)):
        with monitor.step() as step:
            step.result = work(batch)
    timing = monitor.result()
    assert (timing.method, timing.steps, timing.images_per_step) == ("monitor", 20, 8)
    assert timing.idle_fraction.median == pytest.approx(wait_s / (wait_s + STEP_S), abs=0.1)
    assert timing.idle_fraction == timing.input_wait_fraction  # on a CPU
    assert timing.step_s.median == pytest.approx(STEP_S, rel=0.3)
    assert [report.step for report in monitor.reports] == [7, 12, 17, 22]


def test_a_watched_iterator_inside_a_function() -> None:
    monitor = IdleMonitor(every_steps=10, warm_up=2)
    iterator = iter(monitor.watch(batches(STEP_S)))

    @tf.function
    def train(iterator):
        return tf.reduce_sum(next(iterator)[0])

    for _ in range(22):
        with monitor.step() as step:
            step.result = train(iterator)
            time.sleep(STEP_S)
    assert monitor.result().idle_fraction.median == pytest.approx(0.5, abs=0.15)


def test_a_pause_is_left_out() -> None:
    monitor = IdleMonitor(warm_up=0)
    for _ in range(2):
        for batch in monitor.iterate(batches(count=5)):
            with monitor.step():
                work(batch)
        time.sleep(0.3)
    timing = monitor.result()
    assert timing.steps == 10
    assert timing.wall_s < 10 * STEP_S + 0.25


def test_scalars_for_tensorboard(tmp_path) -> None:
    monitor = IdleMonitor(every_steps=3, warm_up=0, log_dir=tmp_path)
    for _ in monitor.iterate(batches(count=6)):
        pass
    events = [
        (event.step, value.tag, value.metadata.plugin_data.plugin_name)
        for path in tmp_path.iterdir()
        for record in tf.data.TFRecordDataset(str(path))
        for event in [tf.compat.v1.Event.FromString(record.numpy())]
        for value in event.summary.value
    ]
    names = ("input_wait_fraction", "idle_fraction_estimate", "images_per_second")
    assert events == [(step, f"tfpipe/{name}", "scalars") for step in (3, 6) for name in names]


# Keras


def small_model() -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    return model


def test_keras_logs_the_wait_of_each_epoch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tfpipe")
    monitor = tfpipe.IdleMonitor(every_steps=10, warm_up=3)
    data = monitor.watch(batches(0.03, count=12))
    history = small_model().fit(
        data, epochs=2, verbose=0, callbacks=[monitor.callback()], validation_data=batches(count=3)
    )
    waits = history.history["input_wait_fraction"]
    assert len(waits) == 2
    assert all(0.6 < wait < 1 for wait in waits)
    assert history.history["idle_fraction_estimate"] == waits
    assert all(100 < rate < 8 / 0.03 for rate in history.history["images_per_second"])
    assert monitor.result().steps == 19  # of 24, less the warm-up and the last of each epoch
    assert "device idle" in caplog.text


def test_keras_under_a_strategy_whose_thread_asks_ahead() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    monitor = IdleMonitor(every_steps=5, warm_up=3)

    class Slow(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            time.sleep(0.06)

    with strategy.scope():
        model = small_model()
    data = strategy.distribute_datasets_from_function(lambda _: monitor.watch(batches(0.02, count=15)))
    # The thread that feeds the device waits 20 ms for each batch, the trainer never: it takes longer itself.
    model.fit(data, epochs=1, verbose=0, callbacks=[Slow(), monitor.callback()])
    assert monitor.result().input_wait_fraction.median < 0.15


def test_keras_without_a_watched_dataset_is_told(caplog: pytest.LogCaptureFixture) -> None:
    monitor = IdleMonitor(warm_up=1)
    history = small_model().fit(batches(count=3), verbose=0, callbacks=[monitor.callback()])
    expected = (
        "3 steps were made, and the clock saw no batch of them. Train on the dataset that `IdleMonitor.watch` "
        "returned, in this process, or take batches from `IdleMonitor.iterate`."
    )
    assert expected in caplog.text
    assert "input_wait_fraction" not in history.history
    with pytest.raises(DataError, match="the clock saw no batch"):
        monitor.result()


# Messages


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^`every_steps` must be at least 1, got 0\.$"):
        IdleMonitor(every_steps=0)
    with pytest.raises(ConfigError, match=r"^`warm_up` must be at least 0, got -1\.$"):
        IdleMonitor(warm_up=-1)
    with pytest.raises(DataError) as caught:
        IdleMonitor().result()
    assert str(caught.value) == "No step was seen after the 10 of the warm-up; 0 were made. Train for longer."


# The ledger, with numbers written by hand


def test_idle_is_what_compute_leaves_and_no_more_than_the_wait() -> None:
    sums = Sums(steps=10, images=80, wall_s=1.0, wait_s=0.6)
    assert sums.input_wait_fraction == 0.6
    assert sums.idle_fraction(None) == 0.6
    assert sums.idle_fraction(0.08) == pytest.approx(0.2)  # dispatched ahead: busy while the trainer waited
    assert sums.idle_fraction(0.01) == 0.6
    assert sums.idle_fraction(0.2) == 0.0
    assert sums.images_per_second == 80


def step(begin: float, end: float, since: float | None = None, steps: int = 1) -> Step:
    return Step(begin=begin, asks=begin, end=end, since=since, steps=steps)


def test_a_thread_in_between_waits_for_itself() -> None:
    ledger = Ledger()
    ledger.waiting.extend([step(10, 11), step(11, 12)])
    done = ledger.settle([Delivery(0, 8.0, 9.5, 4), Delivery(1, 9.5, 11.25, 4), Delivery(2, 11.25, 12.5, 4)])
    assert [one.wait_s for one in done] == [0, 0.25]


def test_an_epoch_begins_a_new_iterator_or_goes_on() -> None:
    ledger = Ledger()
    ledger.waiting.extend([step(1, 2, since=1), step(2, 3)])
    # The first element was taken to build the model.
    seen = [Delivery(0, 0, 0.5, 1), Delivery(0, 1, 1.5, 1), Delivery(1, 2, 2.5, 1), Delivery(2, 2.5, 4, 1)]
    assert [one.wait_s for one in ledger.settle(seen)] == [0.5, 0.5]
    ledger.waiting.append(step(3, 5, since=3))
    assert [one.wait_s for one in ledger.settle([])] == [1.0]
    ledger.waiting.append(step(6, 7, since=6))
    assert [one.wait_s for one in ledger.settle([Delivery(3, 4, 6.5, 1), Delivery(0, 6, 6.25, 1)])] == [0.25]


@pytest.mark.parametrize("per_step", [1, 2])
def test_replicas_take_a_batch_each_or_one_together(per_step: int) -> None:
    ledger = Ledger(replicas=2)
    ledger.waiting.extend(step(i, i + 1) for i in range(8))
    done = ledger.settle([Delivery(i, i / per_step, i / per_step + 0.25, 4) for i in range(8 * per_step + 2)])
    assert ledger.per_step == per_step
    assert [one.images for one in done] == [4 * per_step] * 8
    assert [one.wait_s for one in done] == [0.25 * per_step] * 8


def test_a_step_whose_deliveries_are_lost_is_given_up() -> None:
    ledger = Ledger()
    ledger.waiting.extend([step(0, 1), step(1, 2)])
    assert ledger.settle([]) == []
    assert ledger.forget_waiting() == 2
    ledger.waiting.append(step(2, 3))
    assert len(ledger.settle([Delivery(2, 2, 2.5, 1)])) == 1


def test_spread() -> None:
    assert Spread.of([3.0]).median == 3
    found = Spread.of([float(i) for i in range(11)])
    assert (found.low, found.median, found.high) == (1, 5, 9)
