"""Reads what TensorFlow's own profiler recorded of a training, with the `xprof` package.

tf.profiler.experimental.start("logs")              # or Keras: tf.keras.callbacks.TensorBoard(profile_batch=(10, 60))
for step in range(50):
    with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
        train_step(next(batches))
tf.profiler.experimental.stop()
print(read_trace("logs").step)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tfpipe.errors import DataError, FormatError, MissingDependencyError
from tfpipe.profiler.types import Spread, StepTiming

_INPUT, _OVERVIEW = "input_pipeline_analyzer", "overview_page"
_CPU_ONLY = "CPU_ONLY"


@dataclass(frozen=True)
class Trace:
    """What one run of the profiler has recorded."""

    step: StepTiming
    hardware: str
    """As xprof calls it: CPU_ONLY, GPU, TPU."""
    run: Path
    """The folder that was read."""
    other_runs: int = 0
    """Older ones beside it, which were not read."""
    hosts: tuple[str, ...] = ()

    @property
    def has_device(self) -> bool:
        """Whether the idle time is that of a device, and not of the host's own processor."""
        return self.hardware != _CPU_ONLY


def read_trace(log_dir: str | Path, images_per_step: int = 0) -> Trace:
    """Times of the steps in a trace, and how much of them was waiting for input.

    Args:
        log_dir: What the profiler was given, or the folder of one run; of several runs the newest is read, with the
            files of all its hosts. Nothing is written there.
        images_per_step: A trace does not know it.

    Returns:
        See `timing_of`.

    Raises:
        MissingDependencyError: `xprof` is not installed.
        DataError: There is no trace, or none with steps in it, or it is damaged.
        FormatError: This version of `xprof` answers something else.
    """
    try:
        convert = import_module("xprof.convert.raw_to_tool_data").xspace_to_tool_data
    except ImportError as error:
        raise MissingDependencyError(
            "Reading a trace needs the `xprof` package. Install it with: pip install 'tfpipe[trace]'."
        ) from error
    runs = _runs(Path(log_dir))
    paths = sorted(runs[-1].glob("*.xplane.pb"))
    with _linked(paths) as links:
        tables, overview = (_answer(convert, links, tool, runs[-1]) for tool in (_INPUT, _OVERVIEW))
    hosts = tuple(path.name.removesuffix(".xplane.pb") for path in paths)
    timing, hardware = timing_of(tables, overview, images_per_step, str(runs[-1]))
    return Trace(timing, hardware, runs[-1], len(runs) - 1, hosts)


def timing_of(
    input_tables: str | bytes, overview: str | bytes, images_per_step: int, where: str
) -> tuple[StepTiming, str]:
    """From the JSON of xprof's tools "input_pipeline_analyzer" and "overview_page".

    Returns:
        The times of the steps, and the kind of hardware. `input_wait_fraction` is the share of "input" in the step
        time. `idle_fraction` is the device's idle time as the profiler has it, for whatever reason, one number for the
        run; on CPUs alone, where the profiler knows no device, it is the share of what the profiler calls "input" and
        "all others": nothing is computed then, and a batch on its way from the pipeline to the step is in both.

    Raises:
        DataError: There are no steps.
        FormatError: The tables are not what they were with xprof 2.24.
    """
    try:
        table = _table_of_steps(json.loads(input_tables))
        hardware = str(table["p"].get("hardware_type", _CPU_ONLY))
        rows = [row for row in _rows(table) if row["stepTimeMs"] > 0]
        steps = [row["stepTimeMs"] / 1e3 for row in rows]
        waits = [row["infeedTimeMs"] / 1e3 for row in rows]
        others = [row["otherTimeMs"] / 1e3 for row in rows]
        idle = None if hardware == _CPU_ONLY else _device_idle(json.loads(overview))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"xprof's tables for {where} cannot be read ({error!r}). Try xprof 2.24.") from error
    if not rows:
        raise DataError(
            f"The trace in {where} has no steps. Put `tf.profiler.experimental.Trace('train', step_num=step, _r=1)` "
            "around each, or let Keras take the trace."
        )
    not_computing = [wait + other for wait, other in zip(waits, others, strict=True)]
    timing = StepTiming(
        method="trace",
        steps=len(rows),
        images_per_step=images_per_step,
        step_s=Spread.of([max(0.0, step - wait) for step, wait in zip(steps, waits, strict=True)]),
        wall_s=sum(steps),
        idle_fraction=_share(not_computing, steps) if idle is None else Spread(idle, idle, idle),
        input_wait_fraction=_share(waits, steps),
    )
    return timing, hardware


def _share(parts: list[float], steps: list[float]) -> Spread:
    """Of all steps together; the spread is over steps."""
    each = [min(1.0, part / step) for part, step in zip(parts, steps, strict=True)]
    return Spread.of(each, min(1.0, sum(parts) / sum(steps)))


def _runs(folder: Path) -> list[Path]:
    """The folders of all runs under a folder, the newest last: they are named for their time."""
    if not folder.is_dir():
        raise DataError(f"There is no directory {folder}. Give the one that the profiler was given.")
    runs = sorted({path.parent for path in folder.rglob("*.xplane.pb")}, key=lambda run: run.name)
    if not runs:
        raise DataError(
            f"There is no trace in {folder}: no *.xplane.pb under it. Take one with tf.profiler.experimental.start."
        )
    return runs


@contextmanager
def _linked(paths: list[Path]) -> Iterator[list[str]]:
    """The same files elsewhere: xprof keeps its results beside them, and would answer from these another time."""
    with TemporaryDirectory() as folder:
        links = [Path(folder, path.name) for path in paths]
        for link, path in zip(links, paths, strict=True):
            link.symlink_to(path.resolve())
        yield [str(link) for link in links]


def _answer(convert: Callable[..., Any], paths: list[str], tool: str, where: Path) -> str | bytes:
    try:
        answer: str | bytes | None = convert(paths, tool, {})[0]
    except Exception as error:  # of the library, whose errors this module does not know
        raise DataError(f"xprof cannot read the trace in {where}: {error}. Take it again.") from error
    if answer is None:  # it has logged why
        raise DataError(f"xprof cannot read the trace in {where}: a file is damaged or cut off. Take it again.")
    return answer


def _table_of_steps(tables: list[dict[str, Any]]) -> dict[str, Any]:
    for table in tables:
        if "stepnum" in _columns(table):
            return table
    raise KeyError("stepnum")


def _columns(table: Mapping[str, Any]) -> list[str]:
    return [column["id"] for column in table.get("cols", [])]


def _rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = _columns(table)
    return [dict(zip(names, (cell["v"] for cell in row["c"]), strict=True)) for row in table["rows"]]


def _device_idle(overview: list[dict[str, Any] | None]) -> float:
    """Share of time."""
    for table in overview:
        percent = (table or {}).get("p", {}).get("device_idle_time_percent")
        if percent is not None:
            return float(percent.rstrip("%")) / 100
    raise KeyError("device_idle_time_percent")
