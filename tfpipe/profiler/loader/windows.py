"""Reads the files of the probes, and sums up what each process did in a window of time.

uses = read_uses(folder, begin, end, collate)   # by the number of the process
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tfpipe.profiler.loader.classify import classify, read_frame
from tfpipe.profiler.loader.types import Activity, ProcessUse

_LIVELY = 0.1  # a thread with work for a larger share of the time counts as one that can hold Python's lock
_MAX_FUNCTIONS = 20
_INTERRUPTED: tuple[Activity, ...] = ("reading", "decoding", "functions", "collating", "handing over", "other")
"""The activities that a thread is in while it waits for the lock or for a core."""


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
        lines = []
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:  # the process was ended while it wrote
                break
        use = make_use(int(path.stem), lines, begin, end, collate)
        if use is not None:
            uses[use.pid] = use
    return uses


def make_use(
    pid: int, lines: Sequence[Mapping[str, Any]], begin: float, end: float, collate: str = ""
) -> ProcessUse | None:
    """Returns what a process did, by the lines of its probe; None if the window has none of them."""
    inside = [line for line in lines if begin <= line["at"] <= end]
    if len(inside) < 2:
        return None
    first, last, window = inside[0], inside[-1], inside[1:]
    stacks: dict[str, Any] = {}
    for line in lines:
        stacks |= line["stacks"]
    do = cache(lambda number, state: classify([read_frame(*frame) for frame in stacks[str(number)]], collate, state))
    wall_s = last["at"] - first["at"]
    threads: dict[int, dict[tuple[Activity, str], int]] = defaultdict(lambda: defaultdict(int))
    for native, number, state, count in (row for line in window for row in line["counts"]):
        threads[native][do(number, state)] += count
    ran_s = {}
    for native, times in last["threads"].items():
        before = first["threads"].get(native) or (0, 0)
        ran_s[int(native)] = (times[0] - before[0]) / 1e9, (times[1] - before[1]) / 1e9
    cpu_s, records = last["cpu"] - first["cpu"], [record for line in window for record in line["records"]]
    seconds, functions = _sum_threads(threads, last["main"], wall_s, ran_s)
    return ProcessUse(
        *(pid, wall_s, cpu_s, max(cpu_s - sum(times[0] for times in ran_s.values()), 0.0), seconds, functions),
        last["bytes"] - first["bytes"],
        tuple(time for time, _ in records),
        max(records, default=(0, ""))[1],
        tuple(file for line in lines for file in line["files"]),
        last["collecting"] - first["collecting"],
    )


def _sum_threads(
    threads: Mapping[int, Mapping[tuple[Activity, str], int]],
    main: int,
    wall_s: float,
    ran_s: Mapping[int, tuple[float, float]],
) -> tuple[dict[Activity, float], tuple[tuple[str, Activity, float], ...]]:
    """Returns the seconds of all threads in each activity, and at each line of the user in each activity.

    Args:
        threads: The samples of each thread.
        main: The main thread.
        wall_s: The length of the window, in seconds.
        ran_s: The seconds in which a thread ran, and in which it waited for a core.
    """
    seconds: dict[Activity, float] = defaultdict(float)
    places: dict[tuple[str, Activity], float] = defaultdict(float)
    main_s = others_s = delegated_s = 0.0
    blocked_s = []
    for native, counts in threads.items():
        second = wall_s / sum(counts.values())
        own: dict[Activity, float] = defaultdict(float)
        for (activity, place), count in counts.items():
            own[activity] += count * second
            if place:
                places[place, activity] += count * second
        busy_s = wall_s - own.pop("idle", 0.0)
        working_s = busy_s - own["storage"] - own["waiting"]
        cpu_s, delay_s = ran_s.get(native, (0.0, 0.0))
        seconds["no core"] += min(delay_s, working_s)
        if working_s > _LIVELY * wall_s:
            blocked_s.append(max(working_s - cpu_s - delay_s, 0.0))
        if native == main:
            main_s, delegated_s = busy_s, own["waiting"]
        else:
            others_s += busy_s
        for name, value in own.items():
            seconds[name] += value
    seconds["lock"] = sum(blocked_s) if len(blocked_s) > 1 else 0.0
    seconds["waiting"] -= min(delegated_s, others_s)  # the main thread often only waits for the others
    seconds["idle"] = max(wall_s - main_s - others_s, 0.0)
    total_s = sum(seconds[name] for name in _INTERRUPTED)
    left = 1 - min(seconds["lock"] + seconds["no core"], total_s) / max(total_s, 1e-9)
    for name in _INTERRUPTED:
        seconds[name] *= left
    functions = sorted(((*key, value) for key, value in places.items()), key=lambda one: -one[2])
    return {name: value for name, value in seconds.items() if value > 0}, tuple(functions[:_MAX_FUNCTIONS])
