"""Reads the files of the probes, and says what each process did in a window of time.

uses = read_uses(folder, begin, end, collate)   # by the number of the process
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tfpipe.profiler.loader.classify import Doing, classify, read_frame
from tfpipe.profiler.loader.types import Activity, FunctionUse, ProcessUse

_LIVELY = 0.1  # a thread with work for a larger share of the time counts as one that can hold Python's lock
_MAX_FUNCTIONS = 12


def read_uses(folder: Path, begin: float, end: float, collate: str = "") -> dict[int, ProcessUse]:
    """Returns what each process with a probe did, by its number.

    Args:
        folder: The folder with the probes' files.
        begin: The beginning of the window, by `time.perf_counter`.
        end: Its end.
        collate: The name of the user's function that makes a batch of records; empty if it is not theirs.
    """
    uses = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = [line for line in map(_parse, path.read_text(encoding="utf-8").splitlines()) if line is not None]
        use = make_use(int(path.stem), lines, begin, end, collate)
        if use is not None:
            uses[use.pid] = use
    return uses


def _parse(text: str) -> dict[str, Any] | None:
    try:
        line: dict[str, Any] = json.loads(text)
    except ValueError:  # the process was ended while it wrote
        return None
    return line


def make_use(
    pid: int, lines: Sequence[Mapping[str, Any]], begin: float, end: float, collate: str = ""
) -> ProcessUse | None:
    """Returns what a process did, by the lines of its probe; None if the window has none of them."""
    inside = [k for k, line in enumerate(lines) if begin <= line["at"] <= end]
    if len(inside) < 2:
        return None
    first, last = lines[inside[0]], lines[inside[-1]]
    window = [lines[k] for k in inside[1:]]
    wall_s = last["at"] - first["at"]
    stacks: dict[str, Any] = {}
    for line in lines:
        stacks |= line["stacks"]
    do = cache(lambda number: classify([read_frame(*frame) for frame in stacks[str(number)]], collate))
    threads = _Threads(wall_s, first, last)
    for line in window:
        for name, native, number, state, count in line["counts"]:
            threads.add(name, native, do(number), state, count)
    records = [record for line in window for record in line["records"]]
    cpu_s = last["cpu"] - first["cpu"]
    return ProcessUse(
        pid,
        wall_s,
        cpu_s=cpu_s,
        pool_s=max(cpu_s - threads.count_cpu_s(), 0.0),
        bytes=last["bytes"] - first["bytes"],
        record_s=tuple(seconds for seconds, _ in records),
        slowest=max(records, default=(0, ""))[1],
        files=tuple(file for line in lines for file in line["files"]),
        **threads.conclude(),
    )


class _Threads:
    """The threads of a process.

    Args:
        wall_s: The length of the window, in seconds.
        first: The line at its beginning.
        last: The line at its end.
    """

    def __init__(self, wall_s: float, first: Mapping[str, Any], last: Mapping[str, Any]) -> None:
        self._wall_s, self._first, self._last = wall_s, first["threads"], last["threads"]
        self._counts: dict[int, Counter[tuple[Doing, bool]]] = defaultdict(Counter)
        self._main = 0

    def add(self, name: str, native: int, doing: Doing, state: str, count: int) -> None:
        """Adds samples. Those of the main thread outside of its fetches are left out."""
        if name.startswith("main/"):
            self._main = native
            if name == "main/step":
                doing = Doing("idle", "")
        on_storage = state == "D" or (state == "S" and doing.activity == "reading")
        self._counts[native][doing, on_storage] += count

    def conclude(self) -> dict[str, Any]:
        """Returns the times of a `ProcessUse`, by name."""
        seconds: dict[Activity, float] = defaultdict(float)
        places: dict[tuple[str, Activity], float] = defaultdict(float)
        busy: dict[int, float] = {}
        storage_s = lock_s = delay_s = 0.0
        lively, delegated = [], 0.0
        for native, counts in self._counts.items():
            second = self._wall_s / max(sum(counts.values()), 1)
            own: dict[Activity, float] = defaultdict(float)
            for (doing, on_storage), count in counts.items():
                if on_storage:
                    storage_s += count * second
                    places[doing.place, "reading"] += count * second
                    continue
                own[doing.activity] += count * second
                if doing.activity != "idle" and doing.place:
                    places[doing.place, doing.activity] += count * second
            working_s = sum(own.values()) - own["idle"] - own["waiting"]
            cpu_s, thread_delay_s = self._count_core_time(native)
            delay_s += min(thread_delay_s, working_s)
            busy[native] = self._wall_s - own["idle"]
            if working_s > _LIVELY * self._wall_s:
                lively.append(working_s - cpu_s - thread_delay_s)
            if native == self._main:
                delegated = own["waiting"]
            for name, value in own.items():
                seconds[name] += value if name != "idle" else 0.0
        if len(lively) > 1:
            lock_s = sum(max(value, 0.0) for value in lively)
        others_s = sum(value for native, value in busy.items() if native != self._main)
        # The main thread of a process often only waits for its other threads.
        seconds["waiting"] -= min(delegated, others_s)
        idle_s = max(self._wall_s - busy.get(self._main, 0.0) - others_s, 0.0)
        functions = tuple(
            FunctionUse(*key, places[key]) for key in sorted(places, key=lambda key: -places[key])[:_MAX_FUNCTIONS]
        )
        return {
            "seconds": dict(seconds),
            "functions": functions,
            "storage_s": storage_s,
            "lock_s": lock_s,
            "delay_s": delay_s,
            "idle_s": idle_s,
        }

    def count_cpu_s(self) -> float:
        """Returns the processor time of all threads that run Python, in seconds."""
        return sum(self._count_core_time(int(native))[0] for native in self._last)

    def _count_core_time(self, native: int) -> tuple[float, float]:
        """Returns the seconds in which a thread ran, and in which it waited for a core."""
        after = self._last.get(str(native)) or [0, 0, 0]
        before = self._first.get(str(native)) or [0, 0, 0]
        return max(after[0] - before[0], 0) / 1e9, max(after[1] - before[1], 0) / 1e9
