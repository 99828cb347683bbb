"""Runs a loader with and without a trainer behind it, and measures what it and its processes do.

    first batch ─▶ queues run empty ─▶ free: as fast as batches come, watched ─▶ paced: a step behind each, not watched

A step sleeps, or is the user's own. The loop is a plain one: fetch, step, fetch. So its idle time is that of a training
whose step is waited for; a framework that runs steps ahead of the host hides a part of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.loader.loaders import Loader, describe_batch
from tfpipe.profiler.loader.probe import FLUSH_S, Probe, end_probes, timing_records, watching_processes
from tfpipe.profiler.loader.types import Drive, LoaderProfile, ProcessUse
from tfpipe.profiler.loader.windows import read_uses
from tfpipe.profiler.measure.host_usage import HostTime
from tfpipe.system import host_limits

_MAX_WARM_UP_S, _WARM_UP_BATCHES, _SETTLE_S = 2.0, 1, 1.5
_CEILING_S, _CEILING_STEPS, _MAX_STEPS = 2.0, 5, 100
_COPY_BYTES, _HASH_BYTES, _HASH_S = 8 << 20, 1 << 20, 0.05
_OBJECT_BYTES = 8  # of a number in an array


@dataclass(frozen=True)
class Trainer:
    """A consumer of the batches, with one step behind each.

    Attributes:
        step_s: The seconds that a step sleeps; None if it takes `images_per_second`, or trains.
        images_per_second: The rate that the accelerator takes; None if it is not known.
        train: The user's own step, which takes a batch; None if none is run.
    """

    step_s: float | None = None
    images_per_second: float | None = None
    train: Callable[[Any], Any] | None = None

    @property
    def method(self) -> Literal["sleeps", "trains", "none"]:
        """The kind of step."""
        if self.train is not None:
            return "trains"
        return "none" if self.step_s is None and self.images_per_second is None else "sleeps"

    def make_step(self, batch: Any) -> tuple[Callable[[Any], Any], float]:
        """Returns the step, and its time with one batch that is given again and again, in seconds.

        Raises:
            ConfigError: The user's step raises an error.
        """
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
        """Returns the next batch, and whether an epoch began with it.

        Raises:
            DataError: The loader gives nothing, or raises an error.
        """
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
    """Measures a loader.

    Args:
        loader: The loader, which has given nothing yet.
        trainer: The consumer of the batches.
        seconds: The length of each of the two loops, at least.
        folder: An empty folder for the files of the probes.

    Raises:
        DataError: The loader gives nothing, or raises an error.
        ConfigError: The user's step raises an error.
    """
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
    """Takes batches in a plain loop for some time, with a step behind each.

    Args:
        batches: The batches.
        step: The step.
        seconds: The duration, at least; there are at least two batches.
    """
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
    """Returns the median time of five calls, in seconds."""
    times = []
    for _ in range(5):
        started = clock()
        function()
        times.append(clock() - started)
    return statistics.median(times)
