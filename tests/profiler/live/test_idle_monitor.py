"""The live monitor in loops: what it reports beside waits and steps whose times are known."""

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch

import tfpipe
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.live import idle_monitor
from tfpipe.profiler.live.idle_monitor import IdleMonitor, MonitorReport

STEP_S = 0.05  # long beside the time for which a busy machine keeps a thread waiting


def make_batches(sleep_s: float = 0.0, count: int = -1) -> tf.data.Dataset:
    """Returns 8 vectors and labels a batch; each batch takes `sleep_s` to make.

    Autotuning is off, so that no prefetch hides the time.
    """

    def slow(vectors: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        slept = tf.numpy_function(lambda value: (time.sleep(sleep_s), value)[1], [vectors], vectors.dtype)
        return tf.ensure_shape(slept, vectors.shape), labels

    batch = (np.ones((8, 4), np.float32), np.zeros((8, 1), np.float32))
    dataset = tf.data.Dataset.from_tensors(batch).repeat(count)
    options = tf.data.Options()
    options.autotune.enabled = False
    return (dataset.map(slow) if sleep_s else dataset).with_options(options)


@pytest.mark.parametrize(
    ("wait_s", "make"),
    [
        *((wait_s, lambda: tf.constant(1.0)) for wait_s in (0.0, 3 * STEP_S)),
        *((STEP_S, make) for make in (lambda: torch.ones(1) + 1, lambda: jnp.ones(1) + 1)),
        *(pytest.param(k * STEP_S, lambda: tf.constant(1.0), marks=pytest.mark.slow) for k in (1, 9)),
    ],
)
def test_a_loop_sees_the_wait_that_was_planted(wait_s: float, make: Any) -> None:
    """Compared with this test's own clock, since a busy machine waits for longer."""
    monitor, waits_s = IdleMonitor(every_steps=5, warm_up=2), list[float]()
    batches, asked_s = monitor.iterate(make_batches(wait_s, count=12)), time.perf_counter()
    while next(batches, None) is not None:
        waits_s.append(time.perf_counter() - asked_s)
        with monitor.step() as step:
            time.sleep(STEP_S)  # a step that leaves the processor to others
            step.result = make()
        asked_s = time.perf_counter()
    timing = monitor.result()
    assert (timing.method, timing.steps, timing.images_per_step) == ("monitor", 10, 8)
    assert timing.idle_fraction.median == pytest.approx(sum(waits_s[2:]) / timing.wall_s, abs=0.02)
    assert timing.step_s.median >= 0.95 * STEP_S
    assert [report.step for report in monitor.reports] == [7, 12]


def test_a_watched_iterator_inside_a_function_is_timed() -> None:
    monitor = IdleMonitor(every_steps=10, warm_up=2)
    iterator = iter(monitor.watch(make_batches(STEP_S)))

    @tf.function
    def train(iterator):
        return tf.reduce_sum(next(iterator)[0])

    for _ in range(22):
        with monitor.step() as step:
            step.result = train(iterator)
            time.sleep(STEP_S)
    assert monitor.result().idle_fraction.median == pytest.approx(0.5, abs=0.15)


def test_watching_changes_nothing_that_a_trainer_sees() -> None:
    monitor = IdleMonitor()
    dataset = tf.data.Dataset.range(7).map(lambda i: {"image": tf.fill([2, 3], i), "text": tf.as_string(i)})
    watched = monitor.watch(dataset)
    assert watched.element_spec == dataset.element_spec
    assert int(watched.cardinality()) == 7
    assert [int(element["image"][0, 0]) for element in watched] == list(range(7))
    assert int(monitor.watch(dataset.repeat()).cardinality()) == tf.data.INFINITE_CARDINALITY
    assert int(monitor.watch(dataset.filter(lambda _: True)).cardinality()) == tf.data.UNKNOWN_CARDINALITY


@pytest.mark.parametrize("autotunes", [False, True])
def test_the_clock_tells_the_consumers_wait(autotunes: bool) -> None:
    """Without autotuning it waits 10 ms a batch; else tf.data adds a prefetch, which must not wait in its place."""
    options = tf.data.Options()
    options.autotune.enabled = autotunes
    monitor = IdleMonitor()
    iterator, host_s = iter(monitor.watch(make_batches(0.01).with_options(options))), list[float]()
    for _ in range(15):
        asked_at = time.perf_counter()
        next(iterator)
        host_s.append(time.perf_counter() - asked_at)
        time.sleep(0.02)
    assert (len(monitor._deliveries), {images for _, _, images in monitor._deliveries}) == (15, {8})
    waited_s = sum(got_at - asked_at for asked_at, got_at, _ in list(monitor._deliveries)[2:])
    passed_s = sum(host_s[2:])
    if autotunes:
        assert waited_s < 0.2 * (passed_s + 13 * 0.02)
    else:
        assert 13 * 0.01 <= waited_s <= passed_s


def test_wrong_numbers_are_named_and_no_framework_is_loaded() -> None:
    assert refusal(ConfigError, IdleMonitor, every_steps=0) == "`every_steps` must be at least 1, got 0."
    assert refusal(ConfigError, IdleMonitor, warm_up=-1) == "`warm_up` must be at least 0, got -1."
    assert refusal(ConfigError, IdleMonitor().step(0).__enter__) == "`steps` must be at least 1, got 0."
    monitor = IdleMonitor()
    batches = monitor.iterate([1])
    next(batches)
    message = "`steps` must be 1 for a batch of `iterate`, got 4. Leave it out."
    assert refusal(ConfigError, monitor.step(4).__enter__) == message
    code = "import tfpipe.profiler.live.idle_monitor, sys; print({'tensorflow', 'torch', 'jax'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"set()\n"


class Loop:
    """A loop whose time moves only by the seconds that it is told: 8 images a step."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "time", lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def batches(self, count: int, wait_s: float = 0.25) -> Iterator[Any]:
        for _ in range(count):
            self.advance(wait_s)
            yield {"name": [b"a"] * 8, "image": np.zeros([8, 2])}

    def run(self, monitor: IdleMonitor, count: int, wait_s: float = 0.25, result: Any = 0.5) -> None:
        for _ in monitor.iterate(self.batches(count, wait_s)):
            with monitor.step() as step:
                self.advance(0.75)
                step.result = result


@pytest.fixture
def loop(monkeypatch) -> Loop:
    return Loop(monkeypatch)


class Device:
    """Stands for a device that works on steps whose calls have returned: 0.1 s are left when one waits for it."""

    def __init__(self, loop: Loop, monkeypatch) -> None:
        self.waited_for: list[Any] = []

        def block(framework: str, result: Any) -> None:
            self.waited_for.append(result)
            loop.advance(0.0 if len(self.waited_for) % 2 else 0.1)  # before a probe nothing is left

        monkeypatch.setattr("tfpipe.profiler.live.idle_monitor.block_until_done", block)


def test_each_period_gets_a_report_after_the_warm_up(loop: Loop) -> None:
    monitor = IdleMonitor(every_steps=4, warm_up=2)
    loop.run(monitor, 11)
    assert [report.step for report in monitor.reports] == [6, 10]
    assert monitor.reports[0] == MonitorReport(6, 4, 4.0, 0.25, 0.25, "wait", 8.0)
    timing = monitor.result()
    assert (timing.method, timing.steps, timing.images_per_step, timing.wall_s) == ("monitor", 9, 8, 9.0)
    assert timing.step_s.median == 0.75
    assert timing.idle_fraction.median == timing.input_wait_fraction.median == 0.25
    without_steps = IdleMonitor(warm_up=0)
    for _ in without_steps.iterate(loop.batches(4)):
        loop.advance(0.75)
    timing = without_steps.result()
    assert (timing.steps, timing.input_wait_fraction.median, timing.step_s.median) == (4, 0.25, 0.75)


def test_a_pause_is_left_out_and_each_epoch_has_its_own_figures(loop: Loop) -> None:
    monitor = IdleMonitor(warm_up=0)
    loop.run(monitor, 3)
    loop.advance(100)
    assert monitor.end_epoch()["input_wait_fraction"] == 0.25
    loop.advance(100)
    loop.run(monitor, 3, wait_s=0.75)
    assert monitor.end_epoch() == {
        "input_wait_fraction": 0.5,
        "idle_fraction_estimate": 0.5,
        "images_per_second": pytest.approx(16 / 3),
    }
    assert monitor.result().wall_s == 7.5


def test_a_device_that_works_ahead_is_idle_only_while_it_has_no_batch(loop: Loop, monkeypatch):
    device = Device(loop, monkeypatch)
    monitor = IdleMonitor(every_steps=5, warm_up=1)
    loop.run(monitor, 6, wait_s=0.4, result=jnp.ones(2))
    (report,) = monitor.reports
    # Of 1.25 s a step waits for 0.4 s and computes for 0.85 s.
    assert (report.input_wait_fraction, report.idle_from) == (pytest.approx(0.32), "probes")
    assert report.idle_fraction_estimate == pytest.approx(0.32)
    assert monitor.result().step_s.median == pytest.approx(0.85)
    assert len(device.waited_for) == 10
    monitor = IdleMonitor(every_steps=40, warm_up=1)
    loop.run(monitor, 41, wait_s=0.4, result=jnp.ones(2))
    # All steps but five take 1.15 s, because the device computes while the trainer waits.
    assert monitor.reports[0].input_wait_fraction == pytest.approx(16 / (40 * 1.15 + 0.5))
    assert monitor.reports[0].idle_fraction_estimate == pytest.approx(1 - 40 * 0.85 / (40 * 1.15 + 0.5))


def test_a_probe_is_made_five_times_and_then_in_every_fiftieth_step(loop: Loop, monkeypatch):
    device = Device(loop, monkeypatch)
    probed = []
    monitor = IdleMonitor(warm_up=3)
    for number, _ in enumerate(monitor.iterate(loop.batches(110))):
        before = len(device.waited_for)
        with monitor.step() as step:
            step.result = jnp.ones(1)
        if len(device.waited_for) > before:
            probed.append(number)
    assert probed == [3, 4, 5, 6, 7, 52, 102]


@pytest.mark.parametrize(
    ("result", "framework", "ends"),
    [
        (tf.constant(1.0), "tensorflow", True),
        ({"loss": [torch.ones(2)], "step": 3}, "torch", True),
        (torch.ones(2, device="meta"), "torch", False),
        ((None, jnp.ones(2)), "jax", False),
        (0.5, "", True),
        (np.ones(2), "", True),
    ],
)
def test_a_result_says_whether_a_step_ends_with_its_call(result: Any, framework: str, ends: bool) -> None:
    assert idle_monitor.find_framework(result) == framework
    assert idle_monitor.is_synchronous(framework, result) is ends
    if framework and ends:
        idle_monitor.block_until_done(framework, result)


def test_images_of_a_batch_are_counted_in_every_framework() -> None:
    for image in (np.ones([3, 2]), tf.ones([3, 2]), torch.ones([3, 2]), jnp.ones([3, 2])):
        assert idle_monitor.count_images({"text": [b"a"], "image": image, "label": np.ones(7)}) == 3
    assert idle_monitor.count_images((np.float32(1),)) == 1
    assert idle_monitor.count_images([]) == 0


def make_watched(*deliveries: tuple[float, float, int]) -> IdleMonitor:
    """Returns a monitor whose watched dataset gave elements at these times: asked for, come, images."""
    monitor = IdleMonitor(warm_up=0)
    for number, delivery in enumerate(deliveries):
        monitor._receive(number, *delivery)
    return monitor


def make_steps(monitor: IdleMonitor, loop: Loop, count: int, steps: int = 1) -> None:
    for _ in range(count):
        with monitor.step(steps) as step:
            step.result = 0.0
            loop.advance(1.0)


def test_a_clock_tells_the_waits_later(loop: Loop) -> None:
    # A thread between clock and trainer asks early: then the trainer waits from the beginning of its step.
    gots = (999.0, 1001.25, 1002.5)
    monitor = make_watched(*((900.0, got, 8) for got in gots))
    make_steps(monitor, loop, 3)
    timing = monitor.result()
    assert timing.input_wait_fraction.median == pytest.approx(0.75 / 3)
    assert timing.step_s.median == 0.75  # of 1, 0.75 and 0.5 s, without the wait in each
    assert timing.images_per_step == 8


def test_a_call_of_several_steps_waits_for_all_its_deliveries(loop: Loop) -> None:
    monitor = make_watched((1000.0, 1000.5, 3), (1000.75, 1001.0, 3))
    make_steps(monitor, loop, 1, steps=2)
    monitor._begin(loop.now)
    loop.advance(50)
    monitor._end(loop.now, counts=False)  # a step whose end nobody saw
    timing = monitor.result()
    assert (timing.steps, timing.images_per_step, timing.input_wait_fraction.median) == (2, 3, 0.75)


def test_an_epoch_begins_a_new_iterator_or_goes_on_with_the_old_one(loop: Loop) -> None:
    monitor = make_watched((900.0, 900.5, 8))  # taken to build the model
    for number in range(2):
        monitor._receive(number, 1000.0 + number, 1000.25 + number, 8)
        make_steps(monitor, loop, 1)
    assert monitor.end_epoch()["input_wait_fraction"] == 0.25
    monitor._receive(2, 1002.0, 1002.5, 8)
    make_steps(monitor, loop, 1)
    assert monitor.end_epoch()["input_wait_fraction"] == 0.5


def test_a_training_that_cannot_be_timed_is_told(loop: Loop) -> None:
    monitor = make_watched(*((1000.0, 1000.0, 4) for _ in range(160)))
    make_steps(monitor, loop, 80)
    assert monitor.end_epoch() == {}
    assert "A step must take one element of the dataset" in refusal(DataError, monitor.result)
    sentence = "No step was seen after the 1 of the warm-up; 0 were made. Train for longer."
    assert refusal(DataError, IdleMonitor(warm_up=1).result) == sentence


def small_model() -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    return model


def test_keras_logs_the_wait_of_each_epoch(caplog) -> None:
    """A wait is far longer than a step of Keras takes on a busy machine."""
    caplog.set_level(logging.INFO, logger="tfpipe")
    monitor, wait_s = tfpipe.IdleMonitor(every_steps=4, warm_up=3), 0.5
    dataset = monitor.watch(make_batches(wait_s, count=5))
    history = small_model().fit(
        dataset, epochs=2, verbose=0, callbacks=[monitor.callback()], validation_data=make_batches(count=3)
    )
    waits = history.history["input_wait_fraction"]
    assert len(waits) == 2
    assert all(0.5 < wait < 1 for wait in waits)
    assert history.history["idle_fraction_estimate"] == waits
    assert all(0.4 * 8 / wait_s < rate < 8 / wait_s for rate in history.history["images_per_second"])
    assert monitor.result().steps == 5  # of 10, less the warm-up and the last of each epoch
    assert "device idle" in caplog.text


def test_a_thread_that_asks_ahead_for_a_strategy_is_not_the_trainer() -> None:
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


def test_a_dataset_that_nobody_watches_is_told(caplog) -> None:
    monitor = tfpipe.IdleMonitor(warm_up=1)
    history = small_model().fit(make_batches(count=3), epochs=2, verbose=0, callbacks=[monitor.callback()])
    expected = (
        "3 steps were made, and the clock saw no batch of them. Train on the dataset that `IdleMonitor.watch` "
        "returned, in this process, or use `iterate`."
    )
    assert caplog.text.count(expected) == 1
    assert "input_wait_fraction" not in history.history
    assert "the clock saw no batch" in refusal(DataError, monitor.result)


BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "idle_agreement.py"
PLANTED = ("0%", "5%", "25%", "50%", "75%")


@pytest.mark.slow
@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="needs the machine for itself: run it with -n 0")
@pytest.mark.parametrize("loop", ["loop", "keras"])
def test_loop_and_monitor_agree(tmp_path: Path, loop: str) -> None:
    rows = tmp_path / "rows.json"
    options = ["--rounds", "3", "--loop", loop, "--json", str(rows)]
    for planted in PLANTED:
        options += ["--only", planted]
    subprocess.run([sys.executable, str(BENCHMARK), *options], check=True, capture_output=True)
    all_rows = json.loads(rows.read_text())
    assert {row["input"] for row in all_rows} == set(PLANTED)
    for planted in PLANTED:
        planted_rows = [row for row in all_rows if row["input"] == planted]
        assert abs(statistics.median(row["training"] - row["monitor"] for row in planted_rows)) < 0.03, planted_rows
