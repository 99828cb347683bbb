"""Traces of TensorFlow's profiler: real ones where xprof is installed, else its answers as they were recorded.

The tables below have the columns and properties of xprof 2.24.2 for a trace of TensorFlow 2.21, cut to what is read:
`xspace_to_tool_data([path], "input_pipeline_analyzer", {})` and the same with "overview_page".
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tfpipe.errors import DataError, FormatError, MissingDependencyError
from tfpipe.profiler.trace import read_trace, timing_of


def tables(*steps: tuple[float, float], hardware: str = "CPU_ONLY") -> str:
    """Of steps of so many milliseconds, with so many of input."""
    columns = [{"id": name} for name in ("stepnum", "hostComputeTimeMs", "infeedTimeMs", "tooltip", "stepTimeMs")]
    rows = [
        {"c": [{"v": f"train {i}"}, {"v": step - wait}, {"v": wait}, {"v": ""}, {"v": step}]}
        for i, (step, wait) in enumerate(steps)
    ]
    return json.dumps([{"cols": [], "rows": []}, {"cols": columns, "rows": rows, "p": {"hardware_type": hardware}}])


OVERVIEW = json.dumps([{"cols": [], "p": {"device_idle_time_percent": "12.5%"}, "rows": []}])


def test_the_share_of_input_in_the_steps() -> None:
    timing = timing_of(tables((20, 15), (30, 15)).encode(), OVERVIEW, 8, "logs")
    assert (timing.method, timing.steps, timing.images_per_step) == ("trace", 2, 8)
    assert timing.wall_s == pytest.approx(0.05)
    assert timing.input_wait_fraction.median == pytest.approx(0.6)
    assert timing.idle_fraction == timing.input_wait_fraction
    assert timing.step_s.median == pytest.approx(0.010)


def test_a_device_of_its_own_has_idle_time_of_its_own() -> None:
    timing = timing_of(tables((20, 15), hardware="GPU"), OVERVIEW, 0, "logs")
    assert timing.idle_fraction.median == 0.125
    assert timing.input_wait_fraction.median == 0.75


def test_a_trace_without_steps() -> None:
    with pytest.raises(DataError) as caught:
        timing_of(tables(), OVERVIEW, 0, "logs")
    assert str(caught.value) == (
        "The trace in logs has no steps. Put `tf.profiler.experimental.Trace('train', step_num=step, _r=1)` around "
        "each, or let Keras take the trace."
    )


@pytest.mark.parametrize("answer", ["", "{}x", '[{"cols": [{"id": "stepnum"}], "rows": [], "p": 1}]'])
def test_answers_of_another_form(answer: str) -> None:
    with pytest.raises(FormatError, match=r"xprof's tables for logs cannot be read .*Try xprof 2.24."):
        timing_of(answer, OVERVIEW, 0, "logs")


def test_without_xprof_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "xprof.convert.raw_to_tool_data", None)
    with pytest.raises(MissingDependencyError) as caught:
        read_trace(tmp_path)
    assert str(caught.value) == "Reading a trace needs the `xprof` package. Install it with: pip install xprof"


def test_a_folder_without_a_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Fake:
        xspace_to_tool_data = None

    monkeypatch.setitem(sys.modules, "xprof", Fake)
    monkeypatch.setitem(sys.modules, "xprof.convert", Fake)
    monkeypatch.setitem(sys.modules, "xprof.convert.raw_to_tool_data", Fake)
    with pytest.raises(DataError) as caught:
        read_trace(tmp_path)
    assert str(caught.value) == (
        f"There is no trace in {tmp_path}: no *.xplane.pb under it. Take one with tf.profiler.experimental.start."
    )


@pytest.mark.skipif(importlib.util.find_spec("xprof") is None, reason="xprof is not installed: pip install xprof")
def test_a_real_trace_and_a_clock_on_the_host(tmp_path: Path) -> None:
    import tensorflow as tf

    def slow(x):
        return tf.ensure_shape(tf.numpy_function(lambda v: (time.sleep(0.02), v)[1], [x], x.dtype), x.shape)

    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensors(np.ones((64, 256), np.float32)).repeat().map(slow).with_options(options)
    weights = tf.Variable(tf.random.stateless_normal([256, 256], [1, 2]))

    @tf.function(jit_compile=True)
    def train(x):
        for _ in range(40):
            x = tf.tanh(x @ weights)
        return tf.reduce_sum(x)

    iterator = iter(data)
    train(next(iterator))
    tf.profiler.experimental.start(str(tmp_path))
    waited, begin = 0.0, time.perf_counter()
    for i in range(30):
        with tf.profiler.experimental.Trace("train", step_num=i, _r=1):
            asked = time.perf_counter()
            batch = next(iterator)
            waited += time.perf_counter() - asked
            float(train(batch))
    wall = time.perf_counter() - begin
    tf.profiler.experimental.stop()
    assert read_trace(tmp_path).input_wait_fraction.median == pytest.approx(waited / wall, abs=0.05)
