"""The live monitor in loops: the wait that it reports beside a planted one."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.profiler.live.conftest import MakeBatches
from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.live.idle_monitor import IdleMonitor, measure_training

STEP_S = 0.05  # long beside the time for which a busy machine keeps a thread waiting


def work(_: object = None) -> tf.Tensor:
    """Stands for a step that leaves the processor to others."""
    time.sleep(STEP_S)
    return tf.constant(1.0)


@pytest.mark.parametrize(
    "wait_s", [0.0, 3 * STEP_S, *(pytest.param(k * STEP_S, marks=pytest.mark.slow) for k in (1, 9))]
)
def test_a_loop_sees_the_wait_that_was_planted(make_batches: MakeBatches, wait_s: float) -> None:
    monitor = IdleMonitor(every_steps=5, warm_up=2)
    for batch in monitor.iterate(make_batches(wait_s, count=22)):
        with monitor.step() as step:
            step.result = work(batch)
    timing = monitor.result()
    assert (timing.method, timing.steps, timing.images_per_step) == ("monitor", 20, 8)
    assert timing.idle_fraction.median == pytest.approx(wait_s / (wait_s + STEP_S), abs=0.1)
    assert timing.idle_fraction == timing.input_wait_fraction  # on a CPU
    assert timing.step_s.median == pytest.approx(STEP_S, rel=0.3)
    assert [report.step for report in monitor.reports] == [7, 12, 17, 22]


def test_a_watched_iterator_inside_a_function_is_timed(make_batches: MakeBatches) -> None:
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


def test_a_pause_is_left_out(make_batches: MakeBatches) -> None:
    monitor = IdleMonitor(warm_up=0)
    for _ in range(2):
        for batch in monitor.iterate(make_batches(count=5)):
            with monitor.step():
                work(batch)
        time.sleep(0.3)
    timing = monitor.result()
    assert timing.steps == 10
    assert timing.wall_s < 10 * STEP_S + 0.25


def test_each_report_is_a_point_in_tensorboard(make_batches: MakeBatches, tmp_path: Path) -> None:
    monitor = IdleMonitor(every_steps=3, warm_up=0, log_dir=tmp_path)
    for _ in monitor.iterate(make_batches(count=6)):
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


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^`every_steps` must be at least 1, got 0\.$"):
        IdleMonitor(every_steps=0)
    with pytest.raises(ConfigError, match=r"^`warm_up` must be at least 0, got -1\.$"):
        IdleMonitor(warm_up=-1)
    with pytest.raises(DataError) as caught:
        IdleMonitor().result()
    assert str(caught.value) == "No step was seen after the 10 of the warm-up; 0 were made. Train for longer."


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.09])
def test_a_training_of_some_steps_is_measured_in_one_call(monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
    """By a clock that moves only when a step or a batch takes time; the dataset ends before the steps do."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    class Batches:
        """Five batches of 16; each takes `wait_s` to come."""

        def __iter__(self) -> Iterator[tf.Tensor]:
            for _ in range(5):
                advance(wait_s)
                yield tf.zeros([16, 2])

    timing = measure_training(lambda _: advance(0.01), Batches(), steps=12, warm_up=1)
    assert (timing.method, timing.steps, timing.images_per_step) == ("monitor", 12, 16)
    assert timing.idle_fraction.median == pytest.approx(wait_s / (wait_s + 0.01))
    assert timing.input_wait_fraction.median == pytest.approx(wait_s / (wait_s + 0.01))


def test_a_measurement_needs_steps_and_batches(make_batches: MakeBatches) -> None:
    with pytest.raises(ConfigError, match=r"^`steps` must be at least 1, got 0\.$"):
        measure_training(work, make_batches(), steps=0)
    with pytest.raises(ConfigError, match=r"^`warm_up` must be at least 1, .* in the first step, got 0\.$"):
        measure_training(work, make_batches(), warm_up=0)
    with pytest.raises(DataError, match=r"^The dataset has no batch to train on\.$"):
        measure_training(work, make_batches(count=1).take(0))
