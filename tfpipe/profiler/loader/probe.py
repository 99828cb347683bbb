"""Runs inside every process of a loader: samples the stacks of its threads and writes what they do to a file.

    trainer ── watching_processes ──▶ Process.start ──▶ worker: Probe ──▶ FOLDER/PID.jsonl, a line each 0.2 s

A thread looks at the stacks a hundred times a second. It needs Python's lock for that, and gets it at the next bytecode
of the thread that holds the lock. So the thread is seen at the call that it came from, also if that was a long function
in C. Python hands over its lock every 5 ms only; a probed process does so within 0.2 ms. Otherwise most samples would
be taken where a thread gives the lock away by itself, in calls that read or decode.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PERIOD_S, FLUSH_S, _SWITCH_S = 0.01, 0.2, 0.0002
_DEPTH = 40  # frames of a stack, from the innermost one
_MAX_FILES = 1000
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")

Stack = tuple[tuple[CodeType, int], ...]


class Probe:
    """A sampler of this process's threads.

    Args:
        folder: The folder that gets the file.

    Attributes:
        phase: A word for what the main thread does at the moment; it is noted with its samples.
    """

    def __init__(self, folder: Path) -> None:
        self.phase = ""
        self._path = folder / f"{os.getpid()}.jsonl"
        self._counts: Counter[tuple[str, int, Stack, str]] = Counter()
        self._numbers: dict[Stack, int] = {}
        self._records: list[tuple[float, str]] = []
        self._files: dict[str, None] = {}
        self._written_files = 0
        self._states: dict[int, int] = {}  # of each thread by its native number: an open file of /proc
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfpipe-probe", daemon=True)
        self._listening = True

    def start(self) -> None:
        """Begins to sample, and to note the image files that are opened."""
        sys.addaudithook(self._hear)
        self._old_switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling and writes what is left."""
        self._listening = False  # an audit hook can be silenced and not removed
        self._stopped.set()
        self._thread.join()
        sys.setswitchinterval(self._old_switch_s)

    def note_record(self, seconds: float, name: str) -> None:
        """Adds the time that a record took."""
        self._records.append((max(seconds, 0.0), name))

    def read_clock(self) -> float:
        """Returns the time of this thread in seconds, which stands still while the thread waits for a core."""
        return time.perf_counter() - _read_delay_s(threading.get_native_id())

    def _run(self) -> None:
        flushed = time.perf_counter()
        with open(self._path, "w", encoding="utf-8") as file:
            self._flush(file)
            while not self._stopped.wait(PERIOD_S):
                self._sample()
                if time.perf_counter() - flushed >= FLUSH_S:
                    self._flush(file)
                    flushed = time.perf_counter()
            self._flush(file)
        for state in self._states.values():
            os.close(state)

    def _sample(self) -> None:
        frames = sys._current_frames()
        phase, main = self.phase, threading.main_thread().ident
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if thread is self._thread or frame is None or thread.native_id is None:
                continue
            name = "main" if thread.ident == main else thread.name
            state = self._read_state(thread.native_id)
            self._counts[f"{name}/{phase}" if name == "main" else name, thread.native_id, _walk(frame), state] += 1

    def _read_state(self, thread: int) -> str:
        """Returns the letter of a thread's state: R runs or would like to, S and D wait; empty if nobody knows."""
        try:
            if thread not in self._states:
                self._states[thread] = os.open(f"/proc/self/task/{thread}/stat", os.O_RDONLY)
            return os.pread(self._states[thread], 256, 0).rpartition(b") ")[2][:1].decode()
        except OSError:
            return ""

    def _flush(self, file: Any) -> None:
        counts, self._counts = self._counts, Counter()
        records, self._records = self._records, []
        stacks = {}
        for _, _, stack, _ in counts:
            if stack not in self._numbers:
                self._numbers[stack] = len(self._numbers)
                stacks[self._numbers[stack]] = [_describe(code, at) for code, at in stack]
        files = list(self._files)[self._written_files :]
        self._written_files += len(files)
        line = {
            "at": time.perf_counter(),
            "cpu": time.process_time(),
            "threads": {thread: _read_numbers(f"/proc/self/task/{thread}/schedstat") for thread in self._states},
            "bytes": _count_bytes(),
            "counts": [
                [name, native, self._numbers[stack], state, n] for (name, native, stack, state), n in counts.items()
            ],
            "stacks": stacks,
            "records": [[round(seconds, 6), name] for seconds, name in records],
            "files": files,
        }
        file.write(json.dumps(line) + "\n")
        file.flush()

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and self._listening and len(self._files) < _MAX_FILES:
            path, mode = args[0], args[1]
            if isinstance(path, (str, os.PathLike)) and (mode is None or "r" in mode):
                name = os.fspath(path)
                if isinstance(name, str) and name.lower().endswith(IMAGE_ENDINGS):
                    self._files[os.path.abspath(name)] = None


class ProbedTarget:
    """The target of a worker process, with a probe around it. It can be pickled if the target can.

    Args:
        target: The function that the process runs.
        folder: The folder that gets the probe's file.
    """

    def __init__(self, target: Callable[..., Any], folder: Path) -> None:
        self._target, self._folder = target, folder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the target."""
        probe = Probe(self._folder)
        probe.start()
        dataset = args[1] if getattr(self._target, "__name__", "") == "_worker_loop" and len(args) > 1 else None
        try:
            with timing_records(dataset, probe):
                return self._target(*args, **kwargs)
        finally:
            probe.stop()


@contextlib.contextmanager
def watching_processes(folder: Path) -> Iterator[None]:
    """Puts a probe into every process that `multiprocessing` starts meanwhile, by any start method."""
    start = BaseProcess.start

    def start_probed(process: Any) -> None:
        target = getattr(process, "_target", None)
        if target is not None and not isinstance(target, ProbedTarget):
            process._target = ProbedTarget(target, folder)
        start(process)

    BaseProcess.start = start_probed  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


@contextlib.contextmanager
def timing_records(dataset: Any, probe: Probe) -> Iterator[None]:
    """Measures each record that a dataset of PyTorch gives in this process, until the block ends.

    Args:
        dataset: The dataset, or None. Of a `Subset` it is the dataset below.
        probe: The probe of this process.
    """
    while type(dataset).__name__ == "Subset" and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    kind: Any = type(dataset)
    name = next((name for name in ("__getitem__", "__iter__") if hasattr(kind, name)), "")
    if not name or hasattr(kind, "__getitems__"):  # whole batches at once
        yield
        return
    own, method = name in vars(kind), getattr(kind, name)

    @functools.wraps(method)
    def get(self: Any, key: Any) -> Any:
        if self is not dataset:
            return method(self, key)
        started = probe.read_clock()
        record = method(self, key)
        probe.note_record(probe.read_clock() - started, str(key)[:40])
        return record

    @functools.wraps(method)
    def iterate(self: Any) -> Iterator[Any]:
        records, number = iter(method(self)), 0
        while self is dataset:
            started = probe.read_clock()
            try:
                record = next(records)
            except StopIteration:
                return
            probe.note_record(probe.read_clock() - started, str(number))
            yield record
            number += 1
        yield from records

    try:
        setattr(kind, name, get if name == "__getitem__" else iterate)
    except TypeError:  # a list, or another type that is built in
        yield
        return
    try:
        yield
    finally:
        if own:
            setattr(kind, name, method)
        else:
            delattr(kind, name)


def _walk(frame: FrameType | None) -> Stack:
    stack: list[tuple[CodeType, int]] = []
    while frame is not None and len(stack) < _DEPTH:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(stack)


def _describe(code: CodeType, instruction: int) -> tuple[str, str, int]:
    """Returns the file, the function and the line of a frame."""
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return code.co_filename, getattr(code, "co_qualname", code.co_name), line


@functools.cache
def _open_schedule(thread: int) -> int:
    """Returns an open file with the times of a thread of this process; -1 where there is none."""
    try:
        return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return -1


def _read_delay_s(thread: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(os.pread(_open_schedule(thread), 80, 0).split()[1]) / 1e9
    return 0.0


def _read_numbers(path: str) -> list[int]:
    try:
        with open(path, encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []


def _count_bytes() -> int:
    """Returns the bytes that this process has read so far, from files and pipes; 0 if nobody knows."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])
    return 0
