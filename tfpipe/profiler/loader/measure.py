"""Runs a loader under probes as fast as batches come, then with a step after each, and measures it."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
import mmap
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tfpipe.errors import ConfigError, DataError, naming
from tfpipe.images import jpeg
from tfpipe.images.errors import BadImage
from tfpipe.profiler.loader.probe import FLUSH_S, Probe, end_probes, replacing, timing_records, watching_processes
from tfpipe.profiler.loader.windows import read_uses
from tfpipe.profiler.measure.clocks import HostTime
from tfpipe.profiler.measure.simulated_accelerator import Accelerator, compute_step_timing
from tfpipe.profiler.trials import Changes
from tfpipe.profiler.types import BatchInfo, Drive, HostUse, IdleMethod, LoaderProfile, ProcessUse, Step
from tfpipe.system import host_limits
from tfpipe.system.units import human_count

_DRAFTS, _MAX_PIXELS = 24, 1 << 28
_MAX_WARM_UP_S, _WARM_UP_BATCHES, _SETTLE_S = 2.0, 1, 1.5
_COPY_BYTES, _HASH_BYTES, _HASH_S = 8 << 20, 1 << 20, 0.05
_OBJECT_BYTES = 8  # of a Python number when it is stored in an array


_TORCH = ("num_workers", "prefetch_factor", "persistent_workers", "in_order", "batch_size")
_KERAS = ("workers", "use_multiprocessing", "max_queue_size")
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


@dataclass
class Loader:
    """A loader as its user's function made it, and its batches, one epoch after another."""

    kind: str
    open_epoch: Callable[[], Iterator[Any]]
    options: Changes = field(default_factory=dict)  # those that `LoaderSource.make` can change
    dataset: Any = None  # of PyTorch
    collate: str = ""  # the user's function that makes a batch of records; empty if it is not theirs
    length: int | None = None  # batches of an epoch, if the loader has a length
    _epoch: Iterator[Any] = field(default=iter(()), init=False)
    _given: int = field(default=0, init=False)  # batches

    def __post_init__(self) -> None:
        self.options = {name: x.item() if isinstance(x, np.generic) else x for name, x in self.options.items()}

    def fetch(self) -> tuple[Any, bool]:
        """Returns the next batch, and whether an epoch began with it."""
        try:
            for is_new in (False, True):
                with contextlib.suppress(StopIteration):
                    self._epoch = self.open_epoch() if is_new else self._epoch
                    batch = next(self._epoch)
                    self._given += 1
                    return batch, is_new
        except Exception as error:
            raise DataError(f"The loader raises {type(error).__name__}: {error}") from error
        if not self._given:
            raise DataError("The loader gives no batch. Give one with batches for some seconds.")
        fault = f"The loader ran out after {human_count(self._given, 'batch', 'batches')}"
        raise DataError(f"{fault}, and gives no second epoch. Name a function that makes it anew for each.")

    def warm_up(self) -> Any:
        """Takes the batches that lie in queues, so that later ones take as long as in a long run; returns the first."""
        first, _ = self.fetch()
        options, until = self.options, time.perf_counter() + _MAX_WARM_UP_S
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


class LoaderSource:
    """A user's function that returns a loader."""

    def __init__(self, make: Callable[[], Any], name: str) -> None:
        self._make, self._name = make, name

    def make(self, changes: Changes | None = None) -> Loader:
        """Makes the loader, with `changes` of the options of the DataLoader, PyDataset or Grain loader in it."""
        changes, made = changes or {}, list[Any]()
        with _overriding(changes, made), naming(f"--loader: {self._name}"):
            loader = self._make()
        if changes and not made:
            if not _is_a(loader, "keras.utils", "PyDataset"):
                fault = f"--apply makes the loader anew, and {self._name} returns one that was made before."
                raise ConfigError(f"{fault} Make the DataLoader inside of the function.")
            for name, value in changes.items():
                setattr(loader, name, value)
        return self._describe(loader, made)

    def _describe(self, loader: Any, made: list[Any]) -> Loader:
        length = None
        with contextlib.suppress(TypeError, NotImplementedError, ValueError):
            length = len(loader)
        # An iterator gives one epoch only; the user's function makes the next one.
        remade = itertools.chain([loader], iter(self._make, None))
        epochs = remade if hasattr(loader, "__next__") else itertools.repeat(loader)

        def open_epoch() -> Iterator[Any]:
            return iter(next(epochs))

        package, _, _ = type(loader).__module__.partition(".")
        name = f"{package} {type(loader).__qualname__}".removeprefix("builtins ")
        inner = next((one for one in (loader, *made) if _is_a(one, "torch.utils.data", "DataLoader")), None)
        if inner is not None:
            function = getattr(inner.collate_fn, "func", inner.collate_fn)  # unwraps a `partial`
            own = not (function.__module__ or "").startswith("torch.")
            collate = getattr(function, "__name__", "__call__") if own else ""
            options = {option: getattr(inner, option) for option in _TORCH if hasattr(inner, option)}
            kind = "PyTorch DataLoader" if inner is loader else f"{name} around a PyTorch DataLoader"
            return Loader(kind, open_epoch, options, inner.dataset, collate, length)
        if _is_a(loader, "keras.utils", "PyDataset"):
            adapter: Any = sys.modules["keras.src.trainers.data_adapters.py_dataset_adapter"].PyDatasetAdapter
            options = {option: getattr(loader, option) for option in _KERAS}
            batches = lambda: iter(adapter(loader, shuffle=False).get_numpy_iterator())  # noqa: E731
            return Loader("Keras PyDataset", batches, options, length=loader.num_batches)
        if not hasattr(loader, "__iter__"):
            raise ConfigError(f"--loader: {self._name} must return a loader or an iterable of batches, got {name}.")
        options = {"num_workers": made[-1]} if made and isinstance(made[-1], (int, np.integer)) else {}
        if "grain" in sys.modules and "absl.flags" in sys.modules:
            sys.modules["absl.flags"].FLAGS.mark_as_parsed()  # as Grain's users do; its workers need it
        return Loader("Grain loader" if name.startswith("grain ") else name, open_epoch, options, length=length)


_Array = tuple[int, str, tuple[int, ...]]
"""The bytes of an array, its dtype, and its shape."""


def describe_batch(batch: Any) -> BatchInfo:
    """Describes the arrays and other objects of a batch, in dictionaries, tuples and lists at any depth."""
    arrays: list[_Array] = []
    objects = _collect(batch, arrays)
    first = next((shape for _, _, shape in arrays if shape), None)
    if first is None or _is_list_of_records(batch):
        entries = next(iter(batch.values())) if isinstance(batch, Mapping) and batch else batch
        if isinstance(entries, tuple) and not _is_list_of_records(entries) and entries:
            entries = entries[0]
        images = len(entries) if isinstance(entries, (list, tuple)) else 1
    else:
        images = first[0]
    _, dtype, shape = max(arrays, key=lambda array: array[0], default=(0, "", ()))
    return BatchInfo(images, sum(size for size, _, _ in arrays), dtype, shape, objects)


def _is_list_of_records(batch: Any) -> bool:
    """Returns whether a batch is a list of equal records, not a list such as `[images, labels]`."""
    if not isinstance(batch, (list, tuple)) or len(batch) < 2 or isinstance(batch[0], list):
        return False
    first, second = (tuple(getattr(one, "shape", ())) for one in batch[:2])
    are_images = len(first) == len(second) == 3  # of any sizes
    return type(batch[0]) is type(batch[1]) and (first == second or are_images)


def _collect(value: Any, arrays: list[_Array]) -> int:
    """Appends the arrays in a value to a list, and returns the number of other objects."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape = tuple(int(side) for side in value.shape)
        arrays.append((int(getattr(value, "nbytes", 0) or 0), str(value.dtype).rpartition(".")[2], shape))
        return 0
    if not isinstance(value, (Mapping, list, tuple)):
        return 1
    inner: list[_Array] = []
    objects = 1 + sum(_collect(one, inner) for one in (value.values() if isinstance(value, Mapping) else value))
    if inner and len(inner) == len(value) and _is_list_of_records(value):
        sizes, (dtype, *_), shapes = zip(*inner, strict=True)
        inner = [(sum(sizes), dtype, (len(value), *(shapes[0] if len(set(shapes)) == 1 else ())))]
    arrays += inner
    return objects


def _is_a(loader: Any, module: str, name: str) -> bool:
    return isinstance(loader, getattr(sys.modules.get(module), name, ()))


@contextlib.contextmanager
def _overriding(changes: Changes, made: list[Any]) -> Iterator[None]:
    """Changes options of every loader made in the block; adds DataLoaders and Grain's worker counts to `made`."""

    def change_torch(bound: inspect.BoundArguments) -> None:
        made.append(bound.arguments["self"])
        bound.arguments.update({name: value for name, value in changes.items() if name in bound.signature.parameters})
        if not bound.arguments.get("num_workers"):
            for name in _NEED_WORKERS:
                bound.arguments.pop(name, None)

    def change_grain(bound: inspect.BoundArguments) -> None:
        if "num_workers" in changes:
            bound.arguments["options"] = grain.MultiprocessingOptions(num_workers=changes["num_workers"])
        made.append(bound.arguments.get("options", grain.MultiprocessingOptions(10)).num_workers)

    grain: Any = sys.modules.get("grain")
    torch: Any = sys.modules.get("torch.utils.data")
    with contextlib.ExitStack() as stack:
        if torch is not None:
            stack.enter_context(_patching(torch.DataLoader, "__init__", change_torch))
        if grain is not None:
            stack.enter_context(_patching(grain.IterDataset, "mp_prefetch", change_grain))
        yield


def _patching(kind: Any, name: str, change: Callable[[inspect.BoundArguments], None]) -> AbstractContextManager[None]:
    signature = inspect.signature(getattr(kind, name))

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            change(bound)
            return method(*bound.args, **bound.kwargs)

        return changed

    return replacing(kind, name, wrap)


def measure_draft_s(files: Sequence[str], size: tuple[int, int] | None) -> float | None:
    """Measures the seconds to decode a JPEG at the smallest scale that covers `size`; None if that is the full size."""
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
    """A consumer of the batches, with one step after each."""

    step_s: float | None = None  # None if another field gives it, or without steps
    images_per_second: float | None = None
    train: Callable[[Any], Any] | None = None  # the user's own step

    @property
    def method(self) -> IdleMethod:
        """The kind of step."""
        if self.train is not None:
            return "train"
        return "none" if self.step_s is None and self.images_per_second is None else "loop"

    def make_step(self, batch: Any) -> tuple[Callable[[Any], Any], float | None]:
        """Returns the step and the seconds that it takes, None if it is the user's own; batches are like `batch`."""
        if self.train is None:
            rate, late_s = self.images_per_second, 0.0
            step_s = self.step_s or (describe_batch(batch).images / rate if rate else 0.0)

            def pause(_: Any) -> None:
                nonlocal late_s  # sleeping takes longer than asked for, so later steps sleep less
                began = time.perf_counter()
                time.sleep(max(step_s - late_s, 0.0))
                late_s += time.perf_counter() - began - step_s

            return pause, step_s
        train = self.train
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        has_cuda = cuda is not None and bool(cuda.is_available())

        def step(batch: Any) -> None:
            with naming("--train: the step"):
                train(batch)
            if has_cuda:
                cuda.synchronize()

        for _ in range(2):  # the first ones compile
            step(batch)
        return step, None


def measure_loader(
    loader: Loader, trainer: Trainer, seconds: float, folder: Path, strangers: Iterable[threading.Thread] = ()
) -> LoaderProfile:
    """Measures a loader that has given no batch yet; the probes write their files to `folder`, which must be empty.

    The threads `strangers` ran before the loader's code was loaded.
    """
    num_cores, pid, earlier_peak = host_limits.usable_cpus(), os.getpid(), host_limits.peak_memory_bytes()
    cores = measure_cores(num_cores)
    probe = Probe(folder, strangers)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=".*fork.*")
        stack.enter_context(watching_processes(folder))
        stack.callback(loader.close)
        probe.start()
        stack.callback(probe.stop)
        if not loader.options.get("num_workers"):
            stack.enter_context(timing_records(loader.dataset, probe))
        started = time.perf_counter()
        batch, _ = loader.fetch()
        first_batch_s = time.perf_counter() - started
        info = describe_batch(batch)
        if info.images < 1:
            raise DataError("The first batch of the loader is empty. Give one with records.")
        loader.warm_up()
        before = HostTime.now()
        free = drive(loader, lambda _: None, seconds)
        after = HostTime.now()
        end_probes(folder)
        probe.stop()
        step, step_s = trainer.make_step(batch)
        paced = free
        if trainer.method != "none":
            drive(loader, step, _SETTLE_S)
            paced = drive(loader, step, seconds)
    uses = read_uses(folder, before.at, after.at + FLUSH_S, loader.collate)
    main = uses.pop(pid, ProcessUse(pid, free.wall_s))
    every = (*uses.values(), main)
    used_s = sum(use.cpu_s for use in every)
    all_s = used_s if after.machine is None or before.machine is None else after.machine - before.machine
    if step_s is None:
        first, *others = paced.steps
        step_s = (others[-1].begins_s - first.begins_s - sum(one.idle_s for one in others)) / len(others)
    timing = compute_step_timing(paced.steps, Accelerator(step_s, info.images, trainer.method))
    restarts = (one.restart_s / one.epochs for one in (paced, free) if one.epochs)  # `paced` has no probes
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
        batch=info,
        free=free,
        workers=tuple(uses.values()),
        main=main,
        restart_s=next(restarts, first_batch_s) if uses and not loader.options.get("persistent_workers", True) else 0.0,
        steps_per_epoch=loader.length,
        cores=cores,
        hop_s=_measure_hop_s(info.bytes + _OBJECT_BYTES * info.objects),
        draft_s=measure_draft_s([file for use in every for file in use.files], info.image_size),
        torch_threads=1 if uses or torch is None else torch.get_num_threads(),
    )


def drive(loader: Loader, step: Callable[[Any], Any], seconds: float) -> Drive:
    """Takes batches in a plain loop for some time, at least two, with a step after each."""
    steps: list[Step] = []
    restart_s, epochs = 0.0, 0
    started = free_at = time.perf_counter()
    while len(steps) < 2 or time.perf_counter() - started < seconds:
        batch, is_new = loader.fetch()
        got_at = time.perf_counter()
        wait_s = got_at - free_at
        steps.append(Step(got_at, wait_s, wait_s))
        if is_new:
            restart_s, epochs = restart_s + wait_s, epochs + 1
        step(batch)
        free_at = time.perf_counter()
    return Drive(len(steps), free_at - started, restart_s, epochs, tuple(steps))


def measure_cores(cores: int) -> float:
    """Measures the speedup of many threads over one: less than `cores` if two share one, or if other programs run."""

    def count(threads: int) -> int:
        until, data = time.perf_counter() + _HASH_S, bytes(_HASH_BYTES)

        def run(_: int) -> int:
            done = 0
            while time.perf_counter() < until:
                hashlib.sha256(data).digest()  # releases Python's lock
                done += 1
            return done

        with ThreadPoolExecutor(threads) as pool:
            return max(sum(pool.map(run, range(threads))), 1)

    gains = [count(cores) / count(1) for _ in range(5)]
    return min(max(statistics.median(gains), 1.0), float(cores))


def _measure_hop_s(num_bytes: int) -> float:
    """Measures the processor time to write an array to shared memory and read it, as between two processes."""
    source = np.ones(min(num_bytes, _COPY_BYTES) or 1, np.uint8)

    times = []
    for _ in range(5):
        started = time.process_time()
        with mmap.mmap(-1, source.nbytes) as memory:
            memory.write(source.data)
            memory[:]
        times.append(time.process_time() - started)
    return statistics.median(times) * num_bytes / source.nbytes


def run_trial(source: LoaderSource, trainer: Trainer, seconds: float, changes: Mapping[str, Any]) -> float:
    """Returns the images per second of the loader with some options changed, after a warm-up."""
    loader = source.make(changes)
    try:
        first = loader.warm_up()
        step, _ = trainer.make_step(first)
        done = drive(loader, step, seconds)
    finally:
        loader.close()
    return done.batches / done.wall_s * describe_batch(first).images
