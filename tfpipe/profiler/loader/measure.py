"""Runs a loader as fast as batches come, watched, then with a step behind each; diagnoses it, and tries the fixes."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tfpipe.errors import ConfigError, DataError
from tfpipe.images import jpeg
from tfpipe.images.errors import BadImage
from tfpipe.profiler.loader.diagnose import find_wall, list_fixes
from tfpipe.profiler.loader.loaders import Loader, LoaderSource, describe_batch
from tfpipe.profiler.loader.probe import FLUSH_S, IMAGE_ENDINGS, Probe, end_probes, timing_records, watching_processes
from tfpipe.profiler.loader.types import Drive, LoaderProfile, LoaderReport, ProcessUse
from tfpipe.profiler.loader.windows import read_uses
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.trials import try_changes
from tfpipe.system import host_limits
from tfpipe.system.progress import Observer

_LISTS = ("samples", "imgs", "files", "paths", "filenames", "image_paths", "images")
_DEPTH = 4
_DRAFTS, _MAX_PIXELS = 24, 1 << 28
_MAX_WARM_UP_S, _WARM_UP_BATCHES, _SETTLE_S = 2.0, 1, 1.5
_CEILING_S, _CEILING_STEPS, _MAX_STEPS = 2.0, 5, 100
_COPY_BYTES, _HASH_BYTES, _HASH_S = 8 << 20, 1 << 20, 0.05
_OBJECT_BYTES = 8  # of a number in an array


def find_files(profile: LoaderProfile, dataset: Any) -> list[str]:
    """Returns image files of the loader: those that its processes opened, or those in a list of its dataset."""
    files = {file: None for use in (*profile.workers, profile.main) for file in use.files}
    for _ in range(_DEPTH if len(files) < _DRAFTS else 0):
        for name in _LISTS:
            entries = getattr(dataset, name, None)
            for entry in entries[:_DRAFTS] if isinstance(entries, (list, tuple)) else ():
                first = entry[0] if isinstance(entry, (list, tuple)) and entry else entry
                if isinstance(first, (str, Path)) and str(first).lower().endswith(IMAGE_ENDINGS):
                    files[str(Path(first).absolute())] = None
        dataset = getattr(dataset, "dataset", None)
    return [file for file in files if Path(file).is_file()]


def measure_draft_s(files: Sequence[str], size: tuple[int, int] | None) -> float | None:
    """Measures how long Pillow takes for a JPEG in the smallest size above `size`; None if none is smaller."""
    if size is None:
        return None
    times = list[float]()
    for file in files[:_DRAFTS]:
        with contextlib.suppress(BadImage, OSError):
            started = time.thread_time()
            header = jpeg.read_header(Path(file).read_bytes(), _MAX_PIXELS)
            image, scale = jpeg.decode_jpeg(header, size[::-1])
            if scale == 1 and not times:
                return None
            image.convert("RGB")
            times.append(time.thread_time() - started)
    return statistics.fmean(times) if times else None


@dataclass(frozen=True)
class Trainer:
    """A consumer of the batches, with one step behind each."""

    step_s: float | None = None  # None if it takes `images_per_second`, or trains
    images_per_second: float | None = None
    train: Callable[[Any], Any] | None = None  # the user's own step

    @property
    def method(self) -> Literal["sleeps", "trains", "none"]:
        """The kind of step."""
        if self.train is not None:
            return "trains"
        return "none" if self.step_s is None and self.images_per_second is None else "sleeps"

    def make_step(self, batch: Any) -> tuple[Callable[[Any], Any], float]:
        """Returns the step, and its time with one batch that is given again and again, in seconds."""
        if self.train is None:
            rate = self.images_per_second
            step_s = self.step_s or (describe_batch(batch).images / rate if rate else 0.0)
            return (lambda _: time.sleep(step_s)), step_s
        train = self.train
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        has_cuda = cuda is not None and cuda.is_available()

        def step(batch: Any) -> None:
            try:
                train(batch)
            except Exception as error:
                raise ConfigError(f"--train: the step raises {type(error).__name__}: {error}") from error
            if has_cuda:
                cuda.synchronize()

        for _ in range(2):  # the first ones compile
            step(batch)
        times: list[float] = []
        until = time.perf_counter() + _CEILING_S
        while len(times) < _CEILING_STEPS or (time.perf_counter() < until and len(times) < _MAX_STEPS):
            started = time.perf_counter()
            step(batch)
            times.append(time.perf_counter() - started)
        return step, statistics.median(times)


class Batches:
    """The batches of a loader, one epoch after another."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._epoch = loader, iter(())

    def fetch(self) -> tuple[Any, bool]:
        """Returns the next batch, and whether an epoch began with it."""
        try:
            with contextlib.suppress(StopIteration):
                return next(self._epoch), False
            self._epoch = self._loader.open_epoch()
            return next(self._epoch), True
        except StopIteration:
            raise DataError("The loader gives no batch. Give one with batches for some seconds.") from None
        except Exception as error:
            raise DataError(f"The loader raises {type(error).__name__}: {error}") from error

    def warm_up(self) -> Any:
        """Takes the batches that lie in queues, so that those which follow cost what they cost; returns the first."""
        first, _ = self.fetch()
        options, until = self._loader.options, time.perf_counter() + _MAX_WARM_UP_S
        for _ in range(_WARM_UP_BATCHES + (options.get("num_workers") or 0) * (options.get("prefetch_factor") or 2)):
            if time.perf_counter() < until:
                self.fetch()
        return first

    def close(self) -> None:
        """Ends the workers of the current epoch."""
        for name in ("_shutdown_workers", "close"):
            with contextlib.suppress(Exception):
                getattr(self._epoch, name)()
        self._epoch = iter(())


def measure_loader(loader: Loader, trainer: Trainer, seconds: float, folder: Path) -> LoaderProfile:
    """Measures a loader that has given nothing yet. The empty folder gets the files of the probes."""
    num_cores, pid = host_limits.usable_cpus(), os.getpid()
    cores = measure_cores(num_cores)
    batches, probe = Batches(loader), Probe(folder, loader.strangers)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*fork.*")
        stack.enter_context(watching_processes(folder))
        stack.callback(batches.close)
        probe.start()
        stack.callback(probe.stop)
        if not loader.options.get("num_workers"):
            stack.enter_context(timing_records(loader.dataset, probe))
        started = time.perf_counter()
        batch, _ = batches.fetch()
        first_batch_s = time.perf_counter() - started
        facts = describe_batch(batch)
        if facts.images < 1:
            raise DataError("The first batch of the loader is empty. Give one with records.")
        batches.warm_up()
        before = HostTime.now()
        free = drive(batches, lambda _: None, seconds)
        after = HostTime.now()
        end_probes(folder)
        probe.stop()
        step, step_s = trainer.make_step(batch)
        if trainer.method == "none":
            paced = free
        else:
            drive(batches, step, _SETTLE_S)
            paced = drive(batches, step, seconds)
    uses = read_uses(folder, before.at, after.at + FLUSH_S, loader.collate)
    main = uses.pop(pid, ProcessUse(pid, free.wall_s))
    used_s = main.cpu_s + sum(use.cpu_s for use in uses.values())
    all_s = after.machine - before.machine if after.machine is not None and before.machine is not None else used_s
    records = None if loader.length is None else loader.length * facts.images
    with contextlib.suppress(TypeError, NotImplementedError, ValueError):
        records = len(loader.dataset)
    hop_s = _measure_hop_s(facts.bytes + _OBJECT_BYTES * facts.objects)
    torch: Any = sys.modules.get("torch")
    return LoaderProfile(
        *(loader.kind, loader.options, facts, step_s, trainer.method, first_batch_s, paced, free),
        *(tuple(uses.values()), main, loader.length, cores, num_cores, max(all_s - used_s, 0.0) / free.wall_s),
        *(_measure_copy_s(facts.bytes), hop_s, records, host_limits.available_memory_bytes()),
        1 if uses or torch is None else torch.get_num_threads(),
    )


def drive(batches: Batches, step: Callable[[Any], Any], seconds: float) -> Drive:
    """Takes batches in a plain loop for some time, two at least, with a step behind each."""
    wait_s = restart_s = 0.0
    count = epochs = 0
    started = time.perf_counter()
    while count < 2 or time.perf_counter() - started < seconds:
        asked = time.perf_counter()
        batch, is_new = batches.fetch()
        waited_s = time.perf_counter() - asked
        wait_s += waited_s
        if is_new:
            restart_s, epochs = restart_s + waited_s, epochs + 1
        step(batch)
        count += 1
    return Drive(count, time.perf_counter() - started, wait_s, restart_s, epochs)


def measure_cores(cores: int) -> float:
    """Measures the cores that threads get: fewer than `cores` where two share one, or where others compute."""

    def count(threads: int) -> int:
        counts, until, data = [0] * threads, time.perf_counter() + _HASH_S, bytes(_HASH_BYTES)

        def run(number: int) -> None:
            while time.perf_counter() < until:
                hashlib.sha256(data).digest()  # without Python's lock
                counts[number] += 1

        workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return max(sum(counts), 1)

    gains = [count(cores) / count(1) for _ in range(5)]
    return min(max(statistics.median(gains), 1.0), float(cores))


def _measure_copy_s(num_bytes: int) -> float:
    """Returns the time to copy the bytes of a batch into new memory, in seconds."""
    source = np.ones(min(num_bytes, _COPY_BYTES) or 1, np.uint8)
    return _time(lambda: np.array(source), time.perf_counter) * num_bytes / source.nbytes


def _measure_hop_s(num_bytes: int) -> float:
    """Returns the processor time to hand the bytes of an array to another process, by shared memory."""
    source = np.ones(min(num_bytes, _COPY_BYTES) or 1, np.uint8)

    def share() -> None:
        with mmap.mmap(-1, source.nbytes) as memory:
            memory.write(source.data)
            memory[:]

    return _time(share, time.process_time) * num_bytes / source.nbytes


def _time(function: Callable[[], Any], clock: Callable[[], float]) -> float:
    times = []
    for _ in range(5):
        started = clock()
        function()
        times.append(clock() - started)
    return statistics.median(times)


def profile_loader(
    source: LoaderSource, trainer: Trainer, seconds: float, applies: bool, observer: Observer
) -> tuple[LoaderReport, dict[str, Any]]:
    """Profiles a loader, and returns the options that were kept if fixes are tried."""
    loader = source.make()
    observer.phase("Measuring the loader")
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
        profile = measure_loader(loader, trainer, seconds, Path(folder))
    wall = find_wall(profile)
    files = find_files(profile, loader.dataset)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    has_cuda = cuda is not None and cuda.is_available()
    fixes = list_fixes(profile, wall, has_cuda, measure_draft_s(files, profile.batch.image_size))
    kept: dict[str, Any] = {}
    if applies:
        run = partial(run_turn, source, trainer, seconds / 2)
        trials, kept = try_changes(run, [(fix.name, fix.changes) for fix in fixes], observer)
        fixes = tuple(
            fix if trial is None else replace(fix, measured_gain=trial.gain, kept=trial.kept)
            for fix, trial in zip(fixes, trials, strict=True)
        )
    return LoaderReport(profile, wall, fixes), kept


def run_turn(source: LoaderSource, trainer: Trainer, seconds: float, changes: Mapping[str, Any]) -> float:
    """Returns the batches per second of the loader with some options changed, after its queues ran empty."""
    batches = Batches(source.make(changes))
    try:
        step, _ = trainer.make_step(batches.warm_up())
        done = drive(batches, step, seconds)
    finally:
        batches.close()
    return done.batches / done.wall_s
