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

from tfpipe.profiler.loader.classify import Doing, classify, is_clock, read_frame
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

    @cache
    def do(number: int, state: str) -> Doing | None:
        stack = [read_frame(*frame) for frame in stacks[str(number)]]
        return None if is_clock(stack) else classify(stack, collate, state)

    wall_s = last["at"] - first["at"]
    threads: dict[int, dict[Doing | None, int]] = defaultdict(lambda: defaultdict(int))
    for native, number, state, count in (row for line in window for row in line["counts"]):
        threads[native][do(number, state)] += count
    ran_s = {}
    for native, times in (one for line in window for one in line["threads"].items() if any(one[1])):
        before = first["threads"].get(native) or (0, 0)
        ran_s[int(native)] = (times[0] - before[0]) / 1e9, (times[1] - before[1]) / 1e9
    cpu_s, records = last["cpu"] - first["cpu"], [record for line in window for record in line["records"]]
    unread_s = max(cpu_s - sum(times[0] for times in ran_s.values()), 0.0)
    seconds, functions, pool_s = _sum_threads(threads, last["main"], wall_s, ran_s, unread_s)
    return ProcessUse(
        *(pid, wall_s, cpu_s, pool_s, seconds, functions),
        last["bytes"] - first["bytes"],
        tuple(time for time, _ in records),
        max(records, default=(0, ""))[1],
        tuple(file for line in lines for file in line["files"]),
        last["collecting"] - first["collecting"],
    )


def _sum_threads(
    threads: Mapping[int, Mapping[Doing | None, int]],
    main: int,
    wall_s: float,
    ran_s: Mapping[int, tuple[float, float]],
    unread_s: float,
) -> tuple[dict[Activity, float], tuple[tuple[str, Activity, float], ...], float]:
    """Returns the seconds of all threads in each activity, at each line of the user, and of threads without Python.

    Args:
        threads: The samples of each thread; None while it reads the clock of a record.
        main: The main thread.
        wall_s: The length of the window, in seconds.
        ran_s: The seconds in which a thread ran, and in which it waited for a core.
        unread_s: The seconds in which the process ran beside that: in threads that know no Python, or live shortly.
    """
    seconds: dict[Activity, float] = defaultdict(float)
    places: dict[tuple[str, Activity], float] = defaultdict(float)
    owns: defaultdict[int, dict[Activity, float]] = defaultdict(lambda: defaultdict(float))
    working_s: dict[int, float] = {}
    tick_s = wall_s / max((sum(counts.values()) for counts in threads.values()), default=1)
    for native, counts in threads.items():
        own = owns[native]
        known = {doing: count for doing, count in counts.items() if doing is not None}
        second = tick_s * sum(counts.values()) / max(sum(known.values()), 1)
        for doing, count in known.items():
            if doing.activity != "idle":
                own[doing.activity] += count * second
            if doing.place:
                places[doing.place, doing.activity] += count * second
        working_s[native] = sum(own[name] for name in _INTERRUPTED)
    short_s = sum(working_s[native] for native in threads if native not in ran_s)
    ran = min(unread_s / max(short_s, 1e-9), 1.0)
    blocked_s: dict[int, float] = {}
    main_s = sum(owns.get(main, {}).values())
    others_s = sum(sum(own.values()) for own in owns.values()) - main_s
    for native, own in owns.items():
        cpu_s, delay_s = ran_s.get(native, (ran * working_s[native], 0.0))
        own["no core"] = min(delay_s, working_s[native])
        blocked_s[native] = max(working_s[native] - cpu_s - delay_s, 0.0)
    lively_s = sum(working_s.values()) - max(working_s.values(), default=0.0)
    for native, own in owns.items():
        own["lock"] = blocked_s[native] if lively_s > _LIVELY * wall_s else 0.0
        # A thread that waits for the lock or for a core is seen where it goes on.
        left_s = max(working_s[native] - own["lock"] - own["no core"], ran_s.get(native, (0.0, 0.0))[0])
        left = left_s / max(working_s[native], 1e-9)
        for name, value in own.items():
            seconds[name] += value * left if name in _INTERRUPTED else value
    delegated_s = owns[main]["waiting"] if main in owns else 0.0
    seconds["waiting"] -= min(delegated_s, others_s)  # the main thread often only waits for the others
    seconds["idle"] = max(wall_s - main_s - others_s, 0.0)
    functions = sorted(((*key, value) for key, value in places.items()), key=lambda one: -one[2])
    used = {name: value for name, value in seconds.items() if value > 0}
    return used, tuple(functions[:_MAX_FUNCTIONS]), unread_s - ran * short_s
