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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfpipe.errors import ConfigError, DataError
from tfpipe.images import jpeg
from tfpipe.images.errors import BadImage
from tfpipe.profiler.diagnose.diagnosis import make_report
from tfpipe.profiler.loader.loaders import Loader, LoaderSource, describe_batch
from tfpipe.profiler.loader.probe import FLUSH_S, IMAGE_ENDINGS, Probe, end_probes, timing_records, watching_processes
from tfpipe.profiler.loader.windows import read_uses
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.measure.simulated_accelerator import Accelerator, compute_step_timing
from tfpipe.profiler.trials import try_fixes
from tfpipe.profiler.types import Drive, HostUse, LoaderProfile, ProcessUse, Report, Step
from tfpipe.profiler.types import Trainer as Method
from tfpipe.system import host_limits
from tfpipe.system.progress import Observer

_LISTS = ("samples", "imgs", "files", "paths", "filenames", "image_paths", "images")
_DEPTH = 4
_DRAFTS, _MAX_PIXELS = 24, 1 << 28
_MAX_WARM_UP_S, _WARM_UP_BATCHES, _SETTLE_S = 2.0, 1, 1.5
_CEILING_S, _CEILING_STEPS, _MAX_STEPS = 2.0, 5, 100
_COPY_BYTES, _HASH_BYTES, _HASH_S = 8 << 20, 1 << 20, 0.05
_OBJECT_BYTES = 8  # of a number in an array


def find_files(uses: Iterable[ProcessUse], dataset: Any) -> list[str]:
    """Returns image files of the loader: those that its processes opened, or those in a list of its dataset."""
    files = {file: None for use in uses for file in use.files}
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
    def method(self) -> Method:
        """The kind of step."""
        if self.train is not None:
            return "train"
        return "none" if self.step_s is None and self.images_per_second is None else "loop"

    def make_step(self, batch: Any) -> tuple[Callable[[Any], Any], float]:
        """Returns the step, and its time with one batch that is given again and again, in seconds."""
        if self.train is None:
            rate = self.images_per_second
            step_s = self.step_s or (describe_batch(batch).images / rate if rate else 0.0)
            return (lambda _: time.sleep(step_s)), step_s
        train = self.train
        has_cuda = _has_cuda()

        def step(batch: Any) -> None:
            try:
                train(batch)
            except Exception as error:
                raise ConfigError(f"--train: the step raises {type(error).__name__}: {error}") from error
            if has_cuda:
                sys.modules["torch"].cuda.synchronize()

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
    num_cores, pid, earlier_peak = host_limits.usable_cpus(), os.getpid(), host_limits.peak_memory_bytes()
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
    every = (*uses.values(), main)
    used_s, all_s = sum(use.cpu_s for use in every), 0.0
    if after.machine is not None and before.machine is not None:
        all_s = after.machine - before.machine
    records = None if loader.length is None else loader.length * facts.images
    with contextlib.suppress(TypeError, NotImplementedError, ValueError):
        records = len(loader.dataset)
    timing = compute_step_timing(paced.steps, Accelerator(step_s, facts.images, trainer.method))
    restarts = (one.restart_s / one.epochs for one in (paced, free) if one.epochs)  # no probe starts with the former
    torch: Any = sys.modules.get("torch")
    return LoaderProfile(
        step=timing,
        host=HostUse(
            cores=num_cores,
            cpu_fraction=used_s / free.wall_s / num_cores,
            other_cpu_fraction=max(all_s - used_s, 0.0) / free.wall_s / num_cores,
            peak_memory_bytes=host_limits.peak_memory_bytes_since(earlier_peak),
            memory_limit_bytes=host_limits.memory_limit_bytes(),
            storage_bytes_per_second=sum(use.bytes for use in every) / free.wall_s,
        ),
        images_per_second=timing.rate,
        first_batch_s=first_batch_s,
        kind=loader.kind,
        options=loader.options,
        batch=facts,
        free=free,
        workers=tuple(uses.values()),
        main=main,
        restart_s=next(restarts, first_batch_s) if uses and not loader.options.get("persistent_workers", True) else 0.0,
        steps_per_epoch=loader.length,
        cores=cores,
        copy_s=_measure_copy_s(facts.bytes),
        hop_s=_measure_hop_s(facts.bytes + _OBJECT_BYTES * facts.objects),
        draft_s=measure_draft_s(find_files(every, loader.dataset), facts.image_size),
        records=records,
        free_memory_bytes=host_limits.available_memory_bytes(),
        torch_threads=1 if uses or torch is None else torch.get_num_threads(),
        has_cuda=_has_cuda(),
    )


def drive(batches: Batches, step: Callable[[Any], Any], seconds: float) -> Drive:
    """Takes batches in a plain loop for some time, two at least, with a step behind each."""
    steps: list[Step] = []
    restart_s, epochs = 0.0, 0
    started = free_at = time.perf_counter()
    while len(steps) < 2 or time.perf_counter() - started < seconds:
        asked_at = time.perf_counter()
        batch, is_new = batches.fetch()
        got_at = time.perf_counter()
        steps.append(Step(got_at, got_at - free_at, got_at - asked_at))
        if is_new:
            restart_s, epochs = restart_s + got_at - asked_at, epochs + 1
        step(batch)
        free_at = time.perf_counter()
    return Drive(len(steps), free_at - started, restart_s, epochs, tuple(steps))


def _has_cuda() -> bool:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_available())


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
    source: LoaderSource,
    trainer: Trainer,
    seconds: float,
    applies: bool,
    observer: Observer,
    price_per_hour: float | None = None,
) -> tuple[Report, dict[str, Any]]:
    """Profiles a loader, and returns the options that were kept if fixes are tried."""
    observer.phase("Measuring the loader")
    with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
        report = make_report(measure_loader(source.make(), trainer, seconds, Path(folder)), price_per_hour)
    if not applies:
        return report, {}
    return try_fixes(report, partial(run_turn, source, trainer, seconds / 2), observer)


def run_turn(source: LoaderSource, trainer: Trainer, seconds: float, changes: Mapping[str, Any]) -> float:
    """Returns the images per second of the loader with some options changed, after its queues ran empty."""
    batches = Batches(source.make(changes))
    try:
        first = batches.warm_up()
        step, _ = trainer.make_step(first)
        done = drive(batches, step, seconds)
    finally:
        batches.close()
    return done.batches / done.wall_s * describe_batch(first).images
