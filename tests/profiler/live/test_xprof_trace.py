"""Traces of TensorFlow's profiler: a real one where xprof is installed, else answers in xprof's form.

The tables below have the columns and properties of xprof 2.24.2 for a trace of TensorFlow 2.21, and only those that are
read: `xspace_to_tool_data([path], "input_pipeline_analyzer", {})` and the same with "overview_page".
"""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tfpipe.errors import DataError, FormatError, MissingDependencyError
from tfpipe.profiler.live.xprof_trace import parse_timing, read_trace


def tables(*steps: tuple[float, float], other: float = 0.0, hardware: str = "CPU_ONLY") -> str:
    """Returns xprof's answer for some steps, as JSON.

    Args:
        steps: The duration of each step, and the part of it that was input, in milliseconds.
        other: The part of each step that was neither input nor compute, in milliseconds.
        hardware: The kind of hardware, as xprof calls it.
    """
    names = ("stepnum", "hostComputeTimeMs", "infeedTimeMs", "otherTimeMs", "tooltip", "stepTimeMs")
    columns = [{"id": name} for name in names]
    rows = [
        {"c": [{"v": value} for value in (f"train {i}", step - wait - other, wait, other, "", step)]}
        for i, (step, wait) in enumerate(steps)
    ]
    return json.dumps([{"cols": [], "rows": []}, {"cols": columns, "rows": rows, "p": {"hardware_type": hardware}}])


OVERVIEW = json.dumps([{"cols": [], "p": {"device_idle_time_percent": "12.5%"}, "rows": []}])


def test_input_wait_is_the_share_of_input_in_the_steps() -> None:
    timing, hardware = parse_timing(tables((20, 15), (30, 15)).encode(), OVERVIEW, 8, "logs")
    assert (timing.method, timing.steps, timing.images_per_step, hardware) == ("trace", 2, 8, "CPU_ONLY")
    assert timing.wall_s == pytest.approx(0.05)
    assert timing.input_wait_fraction.median == pytest.approx(0.6)
    assert timing.step_s.median == pytest.approx(0.010)


def test_a_cpu_is_idle_while_it_neither_computes_nor_waits_for_input() -> None:
    timing, _ = parse_timing(tables((20, 5), (30, 5), other=5), OVERVIEW, 0, "logs")
    assert timing.input_wait_fraction.median == pytest.approx(0.2)
    assert timing.idle_fraction.median == pytest.approx(0.4)
    assert timing.idle_fraction.high == pytest.approx(0.5, abs=0.02)


def test_a_device_of_its_own_has_idle_time_of_its_own() -> None:
    timing, hardware = parse_timing(tables((20, 15), other=2, hardware="GPU"), OVERVIEW, 0, "logs")
    assert timing.idle_fraction.median == 0.125
    assert timing.input_wait_fraction.median == 0.75
    assert hardware == "GPU"


def test_a_trace_without_steps_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        parse_timing(tables(), OVERVIEW, 0, "logs")
    assert str(caught.value) == (
        "The trace in logs has no steps. Put `tf.profiler.experimental.Trace('train', step_num=step, _r=1)` around "
        "each, or let Keras take the trace."
    )


@pytest.mark.parametrize("answer", ["", "{}x", '[{"cols": [{"id": "stepnum"}], "rows": [], "p": 1}]'])
def test_answers_of_another_form_are_refused(answer: str) -> None:
    with pytest.raises(FormatError, match=r"xprof's tables for logs cannot be read .*Try xprof 2.24."):
        parse_timing(answer, OVERVIEW, 0, "logs")


def test_without_xprof_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "xprof.convert.raw_to_tool_data", None)
    with pytest.raises(MissingDependencyError) as caught:
        read_trace(tmp_path)
    assert str(caught.value) == (
        "Reading a trace needs the `xprof` package. Install it with: pip install '.[trace]' in a checkout of tfpipe."
    )


Xprof = Callable[..., list[list[str]]]


@pytest.fixture
def xprof(monkeypatch: pytest.MonkeyPatch) -> Xprof:
    """Returns a function that replaces xprof by given answers, and returns the paths that xprof is then asked for."""

    def replace_xprof(input_tables: str | Exception | None, overview: str | None = OVERVIEW) -> list[list[str]]:
        asked_paths: list[list[str]] = []

        def convert(paths: list[str], tool: str, _: object) -> tuple[str | None, str]:
            asked_paths.append([Path(path).resolve().as_posix() for path in paths])
            Path(paths[0]).with_name("ALL_HOSTS.op_stats_v2.pb").touch()  # as xprof does
            if isinstance(input_tables, Exception):
                raise input_tables
            return (input_tables if tool == "input_pipeline_analyzer" else overview), "application/json"

        for name in ("xprof", "xprof.convert", "xprof.convert.raw_to_tool_data"):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(xspace_to_tool_data=convert))
        return asked_paths

    return replace_xprof


def make_run(folder: Path, name: str, *hosts: str) -> Path:
    """Makes empty files where the profiler puts those of a run. Returns the run's folder."""
    run = folder / "plugins" / "profile" / name
    run.mkdir(parents=True)
    for host in hosts:
        (run / f"{host}.xplane.pb").touch()
    return run


def test_the_newest_run_is_read_with_all_its_hosts(xprof: Xprof, tmp_path: Path) -> None:
    asked_paths = xprof(tables((20, 15)))
    make_run(tmp_path, "2026_01_02_03_04_05", "b")
    newest = make_run(tmp_path, "2026_01_12_03_04_05", "b", "a")
    trace = read_trace(tmp_path, 8)
    assert (trace.run, trace.other_runs, trace.hosts, trace.hardware) == (newest, 1, ("a", "b"), "CPU_ONLY")
    assert trace.step.images_per_step == 8
    assert asked_paths == [[str(newest / f"{host}.xplane.pb") for host in "ab"]] * 2
    assert sorted(path.name for path in newest.iterdir()) == ["a.xplane.pb", "b.xplane.pb"]  # nothing is left there


def test_a_folder_without_a_trace_is_refused(xprof: Xprof, tmp_path: Path) -> None:
    xprof(None)
    with pytest.raises(DataError) as caught:
        read_trace(tmp_path)
    assert str(caught.value) == (
        f"There is no trace in {tmp_path}: no *.xplane.pb under it. Take one with tf.profiler.experimental.start."
    )
    with pytest.raises(DataError) as caught:
        read_trace(tmp_path / "none")
    assert str(caught.value) == (
        f"There is no directory {tmp_path / 'none'}. Give the one that the profiler was given."
    )


@pytest.mark.parametrize(
    ("answer", "why"), [(None, ": a file is damaged or cut off"), (RuntimeError("no such plane"), ": no such plane")]
)
def test_a_damaged_trace_is_refused(xprof: Xprof, tmp_path: Path, answer: Exception | None, why: str) -> None:
    xprof(answer)
    run = make_run(tmp_path, "2026_01_02_03_04_05", "a")
    with pytest.raises(DataError) as caught:
        read_trace(tmp_path)
    assert str(caught.value) == f"xprof cannot read the trace in {run}{why}. Take it again."


# The command


def test_the_command_says_which_figure_is_which(xprof: Xprof, tmp_path: Path, tfpipe) -> None:
    xprof(tables((20, 5), (20, 5), other=5))
    run = make_run(tmp_path, "2026_01_02_03_04_05", "a")
    done = tfpipe("profile", "--trace", tmp_path, "--price-per-hour", 10)
    assert done.code == 0
    assert done.lines == [
        "Input wait: 25 % (25 % to 25 %) of the step time, in which the trainer waited for a batch; 20.0 ms a step.",
        "Idle: 50 % (50 % to 50 %) of the step time, in which the CPU did not compute the step: input wait, handing "
        "over, Python. No other device was traced.",
        "The idle time costs 120.00 a day.",
        f"2 steps in 0.0 s, of host a, from {run}.",
    ]


def test_the_command_on_a_device_with_several_hosts_and_runs(xprof: Xprof, tmp_path: Path, tfpipe) -> None:
    xprof(tables((2000, 500), hardware="TPU"))
    for day in range(3):
        run = make_run(tmp_path, f"2026_01_0{day}_03_04_05", "a", "b")
    done = tfpipe("profile", "--trace", tmp_path, "--max-idle", "12%")
    assert done.code == 1
    assert done.lines[1:] == [
        "Device idle: 12 % of the time, as the TPU reports it, for any reason.",
        f"1 steps in 2.0 s, of 2 hosts, taken together, from {run}. 2 older runs beside it were not read.",
    ]
    assert done.err == "The accelerator is idle for 12.5%, more than 12.0%.\n"


def test_the_command_prints_json(xprof: Xprof, tmp_path: Path, tfpipe) -> None:
    xprof(tables((20, 5), hardware="GPU"))
    run = make_run(tmp_path, "2026_01_02_03_04_05", "a")
    done = tfpipe("profile", "--trace", tmp_path, "--json", "--max-idle", "20%")
    assert done.code == 0
    assert done.json == {
        **{"version": 3, "method": "trace", "steps": 1, "images_per_step": 0},
        **{"idle_fraction": 0.125, "idle_fraction_spread": {"low": 0.125, "high": 0.125}},
        **{"input_wait_fraction": 0.25, "input_wait_fraction_spread": {"low": 0.25, "high": 0.25}},
        **{"step_s": 0.015, "wall_s": 0.02, "price_per_day": None},
        "trace": {"run": str(run), "other_runs": 0, "hosts": ["a"], "hardware": "GPU"},
    }


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "Name the DATASET to measure, or a trace to read with --trace LOGDIR."),
        (("data", "--trace", "t", "--step-ms", "5"), 2, "reads an earlier measurement. Leave out DATASET, --step-ms."),
        (("--trace", "t", "--max-idle", "7"), 2, "--max-idle must be a share from 0% to 100%, got 7."),
        (("--trace", "t"), 1, "There is no directory t. Give the one that the profiler was given."),
    ],
)
def test_what_the_command_refuses(xprof: Xprof, tfpipe, args: tuple[str, ...], code: int, message: str) -> None:
    xprof(None)
    done = tfpipe("profile", *args)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err


# With the real one


@pytest.mark.skipif(importlib.util.find_spec("xprof") is None, reason="xprof is not installed: pip install xprof")
def test_a_real_trace_agrees_with_a_clock_on_the_host(tmp_path: Path) -> None:
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
    trace = read_trace(tmp_path)
    assert (trace.hardware, len(trace.hosts), trace.step.steps) == ("CPU_ONLY", 1, 28)  # less the first and the last
    assert trace.step.input_wait_fraction.median == pytest.approx(waited / wall, abs=0.05)
    assert trace.step.idle_fraction.median >= trace.step.input_wait_fraction.median
    cut = tmp_path / "cut"
    cut.mkdir()
    whole = next(trace.run.glob("*.xplane.pb")).read_bytes()
    (cut / "a.xplane.pb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"Take it again\."):
        read_trace(cut)
