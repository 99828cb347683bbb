"""Reads the files of the probes, tells from stacks what threads do, and sums up each process in a window of time."""

from __future__ import annotations

import json
import linecache
import os
import re
import sysconfig
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.profiler.types import Activity, ProcessUse

_LIVELY = 0.1  # waits for Python's lock count if threads but the busiest have work for a larger share of the time
_MAX_FUNCTIONS = 20
_INTERRUPTED: tuple[Activity, ...] = ("reading", "decoding", "functions", "collating", "handing over", "other")
"""The activities in whose samples a thread may also wait for Python's lock or for a core."""
_OWN = os.path.dirname(__file__) + os.sep
_LIBRARIES = (
    str(Path(__file__).parents[2]) + os.sep,  # tfpipe, also from a checkout
    *(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_OUTSIDE = ("site-packages", "dist-packages", "<frozen", "/grain/_src/")
_PROBE, _TAKES = _OWN + "probe.py", _OWN + "measure.py"
"""The files of two kinds of own frames: the probe's clocks, which count as the activity that they interrupt, and the
loop that takes batches, whose own time is spent on freeing the last batch."""
_CLOCK = re.compile(r"\b(read_clock|note_record)$")
_WAITS = re.compile(
    r"(/threading|/queue|/selectors|/multiprocessing/(connection|synchronize|popen_\w+|queues|pool)"
    r"|/concurrent/futures/\w+|/subprocess)\.py$"
)
_PIPES = re.compile(r"/multiprocessing/(connection|reductions?|resource_sharer|queues)\.py$")
_LISTENS = re.compile(r"\b_?accept\(")
_MOVES = re.compile(r"\b(loads|dumps|dump|load|_?send(_bytes)?|_?recv(_bytes)?|write|_write|read)\(")
_BLOCKS = re.compile(r"\b(sleep|acquire|wait|join|result)\(|^\s*with [\w.]*lock\w*:", re.IGNORECASE)
_READS = re.compile(r"\b(open|read|readinto|read_bytes|readline|recv|recv_into|pread|get_object|fromfile|memmap)\(")
_DECODES = re.compile(r"\b(imdecode|imread|decode_(jpeg|png|image|webp|gif)|read_image|Image\.open|decode)\(")
_FILES: Mapping[Activity, re.Pattern[str]] = {
    "handing over": re.compile(
        r"/(multiprocessing/heap|shared_memory(_array)?|pin_memory|spawn|(ring|variable_size)_queue)\.py$"
    ),
    "collating": re.compile(r"/torch/utils/data/_utils/collate\.py$|/transformations/batch\.py$"),
    "decoding": re.compile(
        r"/PIL/(ImageFile|\w+ImagePlugin)\.py$|/torchvision/io/|/(cv2|imageio|simplejpeg|turbojpeg)\b"
    ),
    "reading": re.compile(
        r"/(zipfile|tarfile|gzip|pathlib|socket|ssl|mmap)(/\w+)?\.py$"
        r"|/(fsspec|s3fs|gcsfs|h5py|lmdb|urllib|urllib3|requests|http|botocore|boto3|pyarrow|array_record)/"
    ),
}
_LOADERS = re.compile(r"/torch/utils/data/|/grain/|/multiprocessing/|/keras/src/trainers/data_adapters/")


class Frame(NamedTuple):
    """A frame of a stack: its file, its function, and the number and the text of its line."""

    file: str
    function: str
    line: int
    text: str


Doing = tuple[Activity, str]
"""The activity of a thread, and the line of user code that caused it; empty if there is none."""


def is_clock(stack: Sequence[Frame]) -> bool:
    """Returns whether a thread is in the probe's own clock of records, where Python often switches threads."""
    return bool(stack) and stack[0].file == _PROBE and _CLOCK.search(stack[0].function) is not None


def classify(stack: Sequence[Frame], collate: str = "", state: str = "") -> Doing:
    """Tells what a thread does, by its stack (innermost first) and its state: S and D wait, empty is unknown."""
    activity, line = _classify(stack, collate)
    pipes = [number for number, frame in enumerate(stack) if _PIPES.search(frame.file)]
    if state == "S" and pipes and (pipes[0] == 0 or not line):  # it waits for the other end of the pipe
        return "idle", ""
    return "storage" if state == "D" or (state == "S" and activity == "reading") else activity, line


def _classify(stack: Sequence[Frame], collate: str) -> Doing:
    stack = list(dropwhile(lambda frame: frame.file == _PROBE, stack))
    own = next((number for number, frame in enumerate(stack) if frame.file.startswith(_OWN)), len(stack))
    if own == 0:
        return "handing over" if stack and stack[0].file == _TAKES else "other", ""
    stack = stack[:own]
    library = list(takewhile(lambda frame: not is_users(frame.file), stack))
    user = stack[len(library)] if len(library) < len(stack) else None
    line = "" if user is None else f"{os.path.basename(user.file)}:{user.line} {user.function.rpartition('.')[2]}"
    leaf = stack[0]
    if _LISTENS.search(leaf.text) or (_WAITS.search(leaf.file) and not _MOVES.search(leaf.text)):
        return "idle" if user is None else "waiting", line
    if leaf is user and _BLOCKS.search(leaf.text):
        return "waiting", line
    if any(_PIPES.search(frame.file) for frame in library):  # even in a call that reads a socket
        return "handing over", line
    if not _LOADERS.search(leaf.file) and _READS.search(leaf.text) and "Image.open" not in leaf.text:
        return "reading", line
    if leaf is user and _DECODES.search(leaf.text):
        return "decoding", line
    for number, frame in enumerate(stack):
        if collate and frame.function.rpartition(".")[2] == collate and is_users(frame.file):
            return "collating", line
        for activity, files in _FILES.items() if number < len(library) else ():
            if files.search(frame.file):
                return activity, line
        if frame.file.endswith("/PIL/Image.py") and frame.function in ("open", "preinit", "_open_core"):
            return "decoding", line
    return "other" if user is None else "functions", line


@cache
def is_users(file: str) -> bool:
    """Returns whether a file belongs to the user, not to Python, a library or this profiler."""
    if file.startswith(("<", *_LIBRARIES)) or any(name in file for name in _OUTSIDE):
        return False
    package = Path(file).parent
    while (package.parent / "__init__.py").exists():
        package = package.parent
    return not any(package.parent.glob(f"{package.name}-*.dist-info"))  # next to it after `pip install --target`


def read_uses(folder: Path, begin: float, end: float, collate: str = "") -> dict[int, ProcessUse]:
    """Returns the work of each probed process between two times, by process id."""
    uses = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = []
        with suppress(ValueError):  # the process was ended while it wrote
            for text in path.read_text(encoding="utf-8").splitlines():
                lines.append(json.loads(text))
        use = make_use(int(path.stem), lines, begin, end, collate)
        if use is not None:
            uses[use.pid] = use
    return uses


def make_use(
    pid: int, lines: Sequence[Mapping[str, Any]], begin: float, end: float, collate: str = ""
) -> ProcessUse | None:
    """Sums up a process by the lines of its probe; None if fewer than two lines are in the window."""
    inside = [line for line in lines if begin <= line["at"] <= end]
    if len(inside) < 2:
        return None
    first, last, window = inside[0], inside[-1], inside[1:]
    stacks: dict[str, Any] = {}
    for line in lines:
        stacks |= line["stacks"]

    @cache
    def do(number: int, state: str) -> Doing | None:
        lines = stacks[str(number)]
        stack = [Frame(file, name, line, linecache.getline(file, line).strip()) for file, name, line in lines]
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
    """Sums up threads: the seconds by activity, those by line of user code, and those of threads without Python."""
    seconds: dict[Activity, float] = defaultdict(float)
    line_s: dict[tuple[str, Activity], float] = defaultdict(float)
    owns: defaultdict[int, dict[Activity, float]] = defaultdict(lambda: defaultdict(float))
    working_s: dict[int, float] = {}
    tick_s = wall_s / max((sum(counts.values()) for counts in threads.values()), default=1)
    for native, counts in threads.items():
        own = owns[native]
        known = {doing: count for doing, count in counts.items() if doing is not None}
        second = tick_s * sum(counts.values()) / max(sum(known.values()), 1)
        for (activity, line), count in known.items():
            if activity != "idle":
                own[activity] += count * second
            if line:
                line_s[line, activity] += count * second
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
        # A thread that waits for the lock or for a core is sampled at the line where it will go on.
        left_s = max(working_s[native] - own["lock"] - own["no core"], ran_s.get(native, (0.0, 0.0))[0])
        left = left_s / max(working_s[native], 1e-9)
        for name, value in own.items():
            seconds[name] += value * left if name in _INTERRUPTED else value
    delegated_s = owns[main]["waiting"] if main in owns else 0.0
    seconds["waiting"] -= min(delegated_s, others_s)  # the main thread often only waits for the others
    seconds["idle"] = max(wall_s - main_s - others_s, 0.0)
    functions = sorted(((*key, value) for key, value in line_s.items()), key=lambda one: -one[2])
    used = {name: value for name, value in seconds.items() if value > 0}
    return used, tuple(functions[:_MAX_FUNCTIONS]), unread_s - ran * short_s
