"""Runs inside every process of a loader: samples the stacks of its threads and writes what they do to a file.

Python lets another thread run every 5 ms, but every 0.2 ms in a probed process. Otherwise most samples would fall on
calls in which a thread releases Python's lock by itself, such as those that read or decode.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PERIOD_S, FLUSH_S, _SWITCH_S = 0.04, 0.25, 0.0002
_DEPTH, _MAX_FILES = 40, 1000
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")

Stack = tuple[tuple[CodeType, int], ...]
_END = "end"  # the name of the file that ends all probes of a folder


def end_probes(folder: Path) -> None:
    """Ends the probes in all processes after a last sample, so that the loader then runs as it does without them."""
    (folder / _END).touch()
    time.sleep(2 * PERIOD_S)


class Probe:
    """A sampler of this process's threads, except for `strangers`, which do not work for the loader."""

    def __init__(self, folder: Path, strangers: Iterable[threading.Thread] = ()) -> None:
        self._path, self._end = folder / f"{os.getpid()}.jsonl", folder / _END
        self._counts: Counter[tuple[int, Stack, str]] = Counter()
        self._numbers: dict[Stack, int] = {}
        self._records: list[tuple[float, str]] = []
        self._files: dict[str, None] = {}
        self._clocks = threading.local()
        self._collecting_s = self._collection_began = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfpipe-probe", daemon=True)
        self._strangers = {self._thread, *strangers} - {threading.main_thread()}

    def start(self) -> None:
        """Begins to sample, and to note the image files that are opened."""
        _add_audit_hook()
        _LISTENING.append(self)
        gc.callbacks.append(self._note_collection)
        self._old_switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()

    def stop(self) -> None:
        """Ends sampling and writes what is left."""
        self._stopped.set()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        """Whether the probe has stopped sampling."""
        return self._stopped.is_set()

    def _note_collection(self, phase: str, _: dict[str, int]) -> None:
        """Adds the time of a run of the garbage collector, which no other thread can interrupt."""
        now = time.perf_counter()
        if phase == "start":
            self._collection_began = now
        else:
            self._collecting_s += now - self._collection_began

    def note_record(self, started: float, name: str) -> None:
        """Adds the time of a record that began at `started`, by `read_clock`."""
        self._records.append((round(max(self.read_clock() - started, 0.0), 6), name))

    def read_clock(self) -> float:
        """Returns the time of this thread in seconds, which stands still while the thread waits for a core."""
        if not hasattr(self._clocks, "times"):
            self._clocks.times = None
            with contextlib.suppress(OSError):
                self._clocks.times = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
                weakref.finalize(self, os.close, self._clocks.times)
        words = (0, 0) if self._clocks.times is None else os.pread(self._clocks.times, 80, 0).split()
        return time.perf_counter() - int(words[1]) / 1e9

    def _run(self) -> None:
        """Samples until it is told to end, and writes a line from time to time."""
        with open(self._path, "w", encoding="utf-8") as file:
            self._flush(file)
            flushed = time.perf_counter()
            try:
                while not self._stopped.is_set() and not self._end.exists():
                    time.sleep(PERIOD_S)
                    self._sample()
                    if time.perf_counter() - flushed >= FLUSH_S:
                        self._flush(file)
                        flushed = time.perf_counter()
            finally:
                self._stopped.set()
                _LISTENING.remove(self)
                gc.callbacks.remove(self._note_collection)
                sys.setswitchinterval(self._old_switch_s)
            self._flush(file)

    def _sample(self) -> None:
        frames = _list_frames()
        for thread in threading.enumerate():
            frame, native = frames.get(thread.ident or 0), thread.native_id
            if thread not in self._strangers and frame is not None and native is not None:
                self._counts[native, _walk(frame), read_state(f"/proc/self/task/{native}")] += 1

    def _flush(self, file: Any) -> None:
        counts, self._counts = self._counts, Counter()
        records, self._records = self._records, []
        files, self._files = self._files, dict.fromkeys(self._files)
        stacks = {}
        for _, stack, _ in counts:
            if stack not in self._numbers:
                self._numbers[stack] = len(self._numbers)
                stacks[self._numbers[stack]] = [
                    (code.co_filename, getattr(code, "co_qualname", code.co_name), line) for code, line in stack
                ]
        line = {
            "at": time.perf_counter(),
            "cpu": time.process_time(),
            "threads": {native: read_times(f"/proc/self/task/{native}") for native in {key[0] for key in counts}},
            "collecting": self._collecting_s,
            "bytes": int((read_now("/proc/self/io") or b"rchar: 0").split()[1]),
            "main": threading.main_thread().native_id,
            "counts": [(native, self._numbers[stack], state, n) for (native, stack, state), n in counts.items()],
            "stacks": stacks,
            "records": records,
            "files": list(files),
        }
        file.write(json.dumps(line) + "\n")
        file.flush()

    def note_open(self, file: Any) -> None:
        """Keeps the name of an opened file if its ending is that of an image."""
        if len(self._files) < _MAX_FILES:
            name = os.fspath(file) if isinstance(file, (str, os.PathLike)) else b""
            if isinstance(name, str) and name.lower().endswith(IMAGE_ENDINGS):
                self._files[os.path.abspath(name)] = None


_LISTENING: list[Probe] = []  # the probes of this process that note what it opens


@functools.cache
def _add_audit_hook() -> None:
    """Adds one hook for all probes, since it cannot be removed and Python calls it for every event from then on."""

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            for probe in tuple(_LISTENING):
                probe.note_open(args[0])

    sys.addaudithook(hear)


def run_probed(target: Callable[..., Any], folder: Path, *args: Any, **kwargs: Any) -> Any:
    """Runs the target of a worker process with a probe around it."""
    probe = Probe(folder)
    probe.start()
    dataset = args[1] if getattr(target, "__name__", "") == "_worker_loop" and len(args) > 1 else None
    try:
        with timing_records(dataset, probe):
            return target(*args, **kwargs)
    finally:
        probe.stop()


@contextlib.contextmanager
def replacing(kind: type, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wraps a method of a class until the block ends; a method of a built-in type stays as it is."""
    is_own, method = name in vars(kind), getattr(kind, name)
    try:
        setattr(kind, name, functools.wraps(method)(wrap(method)))
    except TypeError:
        yield
        return
    try:
        yield
    finally:
        if is_own:
            setattr(kind, name, method)
        else:
            delattr(kind, name)


def watching_processes(folder: Path) -> AbstractContextManager[None]:
    """Puts a probe into every process that `multiprocessing` starts until `end_probes`, by any start method."""

    def wrap(start: Callable[[Any], None]) -> Callable[[Any], None]:
        def start_probed(process: Any) -> None:
            target = getattr(process, "_target", None)
            is_probed = getattr(target, "func", None) is run_probed
            if target is not None and not is_probed and not (folder / _END).exists():
                process._target = functools.partial(run_probed, target, folder)  # can be pickled if the target can
            start(process)

        return start_probed

    return replacing(BaseProcess, "start", wrap)


def timing_records(dataset: Any, probe: Probe) -> AbstractContextManager[None]:
    """Measures each record that a map-style dataset of PyTorch gives in this process, until the block ends."""
    while type(dataset).__name__ == "Subset" and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    if not hasattr(type(dataset), "__getitem__") or hasattr(type(dataset), "__getitems__"):  # whole batches at once
        return contextlib.nullcontext()

    def wrap(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def get(self: Any, key: Any) -> Any:
            if probe.is_done:
                return method(self, key)
            started = probe.read_clock()
            record = method(self, key)
            if self is dataset:
                probe.note_record(started, str(key)[:40])
            return record

        return get

    return replacing(type(dataset), "__getitem__", wrap)


def _list_frames() -> dict[int, FrameType]:
    """Returns each thread's frame. Collecting garbage meanwhile may deadlock 3.10 and 3.11 (CPython issue 106883)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()


def _walk(frame: FrameType | None) -> Stack:
    stack: list[tuple[CodeType, int]] = []
    while isinstance(frame, FrameType) and len(stack) < _DEPTH:  # in 3.11 a frame that ends may have another type
        stack.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(stack)


def read_now(path: str) -> bytes:
    """Reads the beginning of a file in /proc; empty if there is no such file, as for a thread that has just ended."""
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_RDONLY)  # a third of the cost of `open`
        try:
            return os.read(file, 256)
        finally:
            os.close(file)
    return b""


def read_state(thread: str) -> str:
    """Returns the letter of a thread's state: R runs or would like to, S and D wait; empty if unknown."""
    # The state follows the thread's name, which may hold anything.
    return read_now(f"{thread}/stat").rpartition(b") ")[2][:1].decode()


def read_times(thread: str) -> tuple[int, int]:
    """Returns the nanoseconds in which a thread ran, and in which it waited for a core; zeros if unknown."""
    words = read_now(f"{thread}/schedstat").split()
    return (int(words[0]), int(words[1])) if len(words) > 1 else (0, 0)
