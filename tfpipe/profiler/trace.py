"""Reads what TensorFlow's own profiler recorded of a training, with the `xprof` package.

tf.profiler.experimental.start("logs")              # or Keras: tf.keras.callbacks.TensorBoard(profile_batch=(10, 60))
for step in range(50):
    with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
        train_step(next(batches))
tf.profiler.experimental.stop()
print(read_trace("logs"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tfpipe.errors import DataError, FormatError, MissingDependencyError
from tfpipe.profiler.ledger import spread
from tfpipe.profiler.model import Spread, StepTiming

_INPUT, _OVERVIEW = "input_pipeline_analyzer", "overview_page"


def read_trace(log_dir: str | Path, images_per_step: int = 0) -> StepTiming:
    """Times of the steps in a trace, and how much of them was waiting for input.

    Args:
        log_dir: What the profiler was given, or the folder of one run; of several runs the last one is read. `xprof`
            leaves a file with its results beside the trace.
        images_per_step: A trace does not know it.

    Returns:
        `input_wait_fraction` is the share of "input" in the step time; its spread is over steps. `idle_fraction` is
        the device's idle time as the profiler has it, for whatever reason, one number for the run; on CPUs alone, where
        the profiler knows no device, it is the input's share.

    Raises:
        MissingDependencyError: `xprof` is not installed.
        DataError: There is no trace, or none with steps in it.
        FormatError: This version of `xprof` answers something else.
    """
    try:
        convert = import_module("xprof.convert.raw_to_tool_data").xspace_to_tool_data
    except ImportError as error:
        raise MissingDependencyError(
            "Reading a trace needs the `xprof` package. Install it with: pip install xprof"
        ) from error
    paths = [str(path) for path in _last_run(Path(log_dir))]
    answers = {tool: convert(paths, tool, {})[0] for tool in (_INPUT, _OVERVIEW)}
    return timing_of(answers[_INPUT], answers[_OVERVIEW], images_per_step, str(log_dir))


def timing_of(input_tables: str | bytes, overview: str | bytes, images_per_step: int, where: str) -> StepTiming:
    """From the JSON of xprof's tools "input_pipeline_analyzer" and "overview_page".

    Raises:
        DataError: There are no steps.
        FormatError: The tables are not what they were with xprof 2.24.
    """
    try:
        table = _table_of_steps(json.loads(input_tables))
        rows = [(row["stepTimeMs"] / 1e3, row["infeedTimeMs"] / 1e3) for row in _rows(table)] if table else []
        idle = None if table is None else _device_idle(table["p"], json.loads(overview))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"xprof's tables for {where} cannot be read ({error!r}). Try xprof 2.24.") from error
    rows = [(step, wait) for step, wait in rows if step > 0]
    if not rows:
        raise DataError(
            f"The trace in {where} has no steps. Put `tf.profiler.experimental.Trace('train', step_num=step, _r=1)` "
            "around each, or let Keras take the trace."
        )
    wall_s = sum(step for step, _ in rows)
    shares = spread([min(1.0, wait / step) for step, wait in rows])
    # The middle is that of all steps together, as everywhere.
    wait_fraction = Spread(sum(wait for _, wait in rows) / wall_s, shares.low, shares.high)
    return StepTiming(
        method="trace",
        steps=len(rows),
        images_per_step=images_per_step,
        step_s=spread([max(0.0, step - wait) for step, wait in rows]),
        wall_s=wall_s,
        idle_fraction=wait_fraction if idle is None else Spread(idle, idle, idle),
        input_wait_fraction=wait_fraction,
    )


def _last_run(folder: Path) -> list[Path]:
    """The trace files of all hosts in the newest run under a folder."""
    runs = sorted({path.parent for path in folder.rglob("*.xplane.pb")}, key=lambda run: run.name)
    if not runs:
        raise DataError(
            f"There is no trace in {folder}: no *.xplane.pb under it. Take one with tf.profiler.experimental.start."
        )
    return sorted(runs[-1].glob("*.xplane.pb"))


def _table_of_steps(tables: list[dict[str, Any]]) -> dict[str, Any] | None:
    for table in tables:
        if "stepnum" in _columns(table):
            return table
    return None


def _columns(table: Mapping[str, Any]) -> list[str]:
    return [column["id"] for column in table.get("cols", [])]


def _rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = _columns(table)
    return [dict(zip(names, (cell["v"] for cell in row["c"]), strict=True)) for row in table["rows"]]


def _device_idle(properties: Mapping[str, str], overview: list[dict[str, Any]]) -> float | None:
    """Share of time, from the overview; None where there is no device but the CPU."""
    if properties.get("hardware_type", "CPU_ONLY") == "CPU_ONLY":
        return None
    for table in overview:
        percent = table.get("p", {}).get("device_idle_time_percent")
        if percent is not None:
            return float(percent.rstrip("%")) / 100
    raise KeyError("device_idle_time_percent")
