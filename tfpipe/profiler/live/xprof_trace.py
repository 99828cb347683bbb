"""Reads the trace that TensorFlow's own profiler took of a training, with the `xprof` package.

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

from tfpipe.errors import DataError, FormatError
from tfpipe.profiler.types import Spread, StepTiming
from tfpipe.system.extras import importing

_INPUT, _OVERVIEW = "input_pipeline_analyzer", "overview_page"
_CPU_ONLY = "CPU_ONLY"


@dataclass(frozen=True)
class Trace:
    """The record of one run of the profiler.

    Attributes:
        step: The timing of the steps.
        hardware: The kind of hardware, as xprof calls it: CPU_ONLY, GPU or TPU.
        run: The folder that was read.
        other_runs: The number of older runs beside it, which were not read.
        hosts: The names of the hosts in the trace.
    """

    step: StepTiming
    hardware: str
    run: Path
    other_runs: int = 0
    hosts: tuple[str, ...] = ()

    @property
    def has_device(self) -> bool:
        """Whether the idle time is that of a device and not of the host's processor."""
        return self.hardware != _CPU_ONLY


def read_trace(log_dir: str | Path, images_per_step: int = 0) -> Trace:
    """Reads the times of the steps in a trace, and the share that was waiting for input.

    Args:
        log_dir: The folder that the profiler was given, or the folder of one run. If there are several runs, the
            newest is read, with the files of all its hosts. Nothing is written there.
        images_per_step: The number of images in a step, which a trace does not know.

    Returns:
        The trace; `parse_timing` says what its figures mean.

    Raises:
        MissingDependencyError: `xprof` is not installed.
        DataError: There is no trace, or it has no steps, or it is damaged.
        FormatError: This version of `xprof` answers in another form.
    """
    with importing("Reading a trace", "the `xprof` package", "tfpipe[trace]"):
        convert = import_module("xprof.convert.raw_to_tool_data").xspace_to_tool_data
    *older_runs, newest_run = _find_runs(Path(log_dir))
    paths = sorted(newest_run.glob("*.xplane.pb"))
    with _link_elsewhere(paths) as links:
        tables, overview = (_ask_xprof(convert, links, tool, newest_run) for tool in (_INPUT, _OVERVIEW))
    hosts = tuple(path.name.removesuffix(".xplane.pb") for path in paths)
    timing, hardware = parse_timing(tables, overview, images_per_step, str(newest_run))
    return Trace(timing, hardware, newest_run, len(older_runs), hosts)


def parse_timing(
    input_tables: str | bytes, overview: str | bytes, images_per_step: int, where: str
) -> tuple[StepTiming, str]:
    """Parses the JSON of xprof's tools "input_pipeline_analyzer" and "overview_page".

    Args:
        input_tables: The answer of "input_pipeline_analyzer".
        overview: The answer of "overview_page".
        images_per_step: The number of images in a step, which a trace does not know.
        where: The trace's name in error messages.

    Returns:
        The times of the steps, and the kind of hardware. `input_wait_fraction` is the share of "input" in the step
        time. `idle_fraction` is the device's idle time, for whatever reason, as the profiler has it: one number for
        the run. On CPUs the profiler knows no device. There it is the share of the profiler's "input" and "all
        others", in which nothing is computed. A batch on its way from the pipeline to the step is in both figures.

    Raises:
        DataError: There are no steps.
        FormatError: The tables do not have the columns of xprof 2.24.
    """
    try:
        table = _find_step_table(json.loads(input_tables))
        hardware = str(table["p"].get("hardware_type", _CPU_ONLY))
        rows = [row for row in _read_rows(table) if row["stepTimeMs"] > 0]
        steps = [row["stepTimeMs"] / 1e3 for row in rows]
        waits = [row["infeedTimeMs"] / 1e3 for row in rows]
        others = [row["otherTimeMs"] / 1e3 for row in rows]
        idle = None if hardware == _CPU_ONLY else _read_device_idle(json.loads(overview))
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
        step_s=Spread.from_values([max(0.0, step - wait) for step, wait in zip(steps, waits, strict=True)]),
        wall_s=sum(steps),
        idle_fraction=_get_share(not_computing, steps) if idle is None else Spread(idle, idle, idle),
        input_wait_fraction=_get_share(waits, steps),
    )
    return timing, hardware


def _get_share(parts: list[float], steps: list[float]) -> Spread:
    """Returns the share of parts in all steps together, with its spread over steps."""
    shares = [min(1.0, part / step) for part, step in zip(parts, steps, strict=True)]
    return Spread.from_values(shares, min(1.0, sum(parts) / sum(steps)))


def _find_runs(folder: Path) -> list[Path]:
    """Returns the folders of all runs under a folder, the newest last: they are named for their time."""
    if not folder.is_dir():
        raise DataError(f"There is no directory {folder}. Give the one that the profiler was given.")
    runs = sorted({path.parent for path in folder.rglob("*.xplane.pb")}, key=lambda run: run.name)
    if not runs:
        raise DataError(
            f"There is no trace in {folder}: no *.xplane.pb under it. Take one with tf.profiler.experimental.start."
        )
    return runs


@contextmanager
def _link_elsewhere(paths: list[Path]) -> Iterator[list[str]]:
    """Yields links to files in another folder, because xprof stores results beside the files and reads them again."""
    with TemporaryDirectory() as folder:
        links = [Path(folder, path.name) for path in paths]
        for link, path in zip(links, paths, strict=True):
            link.symlink_to(path.resolve())
        yield [str(link) for link in links]


def _ask_xprof(convert: Callable[..., Any], paths: list[str], tool: str, where: Path) -> str | bytes:
    try:
        answer: str | bytes | None = convert(paths, tool, {})[0]
    except Exception as error:  # xprof does not document its errors
        raise DataError(f"xprof cannot read the trace in {where}: {error}. Take it again.") from error
    if answer is None:  # it has logged why
        raise DataError(f"xprof cannot read the trace in {where}: a file is damaged or cut off. Take it again.")
    return answer


def _find_step_table(tables: list[dict[str, Any]]) -> dict[str, Any]:
    for table in tables:
        if "stepnum" in _list_columns(table):
            return table
    raise KeyError("stepnum")


def _list_columns(table: Mapping[str, Any]) -> list[str]:
    return [column["id"] for column in table.get("cols", [])]


def _read_rows(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = _list_columns(table)
    return [dict(zip(names, (cell["v"] for cell in row["c"]), strict=True)) for row in table["rows"]]


def _read_device_idle(overview: list[dict[str, Any] | None]) -> float:
    """Returns the share of the time for which the device was idle."""
    for table in overview:
        percent = (table or {}).get("p", {}).get("device_idle_time_percent")
        if percent is not None:
            return float(percent.rstrip("%")) / 100
    raise KeyError("device_idle_time_percent")
