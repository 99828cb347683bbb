"""Faults planted in DataLoaders and in Grain loaders: what the profiler must say, and the loader without the fault.

FAULTS["zero_workers"].make()      the loader with the fault
FAULTS["zero_workers"].cure        the loader without it; None where the first fix is a change of options
"""

import functools
import io
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 160


@dataclass(frozen=True)
class LoaderFault:
    """A fault."""

    make: Callable[[Path], Any]
    walls: tuple[str, ...]
    fix: str
    cure: Callable[[Path], Any] | None = None
    step_s: float = 0.001
    where: str = ""
    delay_us: int = 0
    needs: str = "torch"


def compute(ms: float) -> int:
    """Computes in Python for some milliseconds of a core, and holds Python's lock."""
    until, total = time.thread_time() + ms / 1e3, 0
    while time.thread_time() < until:
        for number in range(200):
            total += number * number
    return total


class Records:
    """A dataset of records that a function makes."""

    def __init__(self, get: Callable[[int], Any], length: int = 100_000) -> None:
        self._get, self._length = get, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Any:
        return self._get(number)


class ThreadedRecords(Records):
    """A dataset that makes the records of a batch in threads."""

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(self._get, numbers))


def make_loader(get: Callable[[int], Any], workers: int = 2, batch: int = 16, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    records = options.pop("dataset", None) or Records(get, options.pop("length", 100_000))
    return DataLoader(records, batch_size=batch, num_workers=workers, **options)


def make_pixels(number: int, side: int = SIDE, dtype: str = "uint8") -> Any:
    return np.full((side, side, 3), number % 251, dtype)


def get_slowly(number: int, ms: float = 4.0) -> Any:
    compute(ms)
    return make_pixels(number)


def get_decoded(files: list[str], number: int, draft: bool = False) -> Any:
    with Image.open(files[number % len(files)]) as image:
        if draft:
            image.draft("RGB", (SIDE, SIDE))
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.NEAREST))


def get_late(files: list[str], number: int) -> Any:
    with open(files[number % len(files)], "rb", buffering=0) as file:
        data = file.read()
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE)))


def get_from_slow_worker(number: int) -> Any:
    from torch.utils.data import get_worker_info

    info: Any = get_worker_info()
    time.sleep(0.03 if info.id == 0 else 0.003)
    return make_pixels(number)


def get_one_large(number: int) -> Any:
    if number % 150 == 149:
        data = np.random.default_rng(0).random(50_000_000 // 8)  # 50 MB
        np.sort(data)
        return make_pixels(int(data[0] * 250))
    compute(0.5)
    return make_pixels(number)


def get_by_network(number: int) -> Any:
    time.sleep(0.02)
    return make_pixels(number)


def get_objects(number: int, as_array: bool = False) -> Any:
    boxes = [{"x": number + k, "y": str(k)} for k in range(1500)]
    return np.array([box["x"] for box in boxes]) if as_array else {"image": make_pixels(number, 32), "boxes": boxes}


def keep(records: list[Any]) -> list[Any]:
    return records


def stack_and_compute(records: list[Any]) -> Any:
    compute(12)
    return np.stack(records)


class CollatesInMain:
    """A loader that collates in the trainer's process."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        for records in self._loader:
            yield stack_and_compute(records)


def list_images(folder: Path, number: int = 60, size: tuple[int, int] = (1200, 900)) -> list[str]:
    folder = folder / f"jpegs-{size[0]}"
    if not folder.exists():
        rng = np.random.default_rng(0)
        folder.mkdir(parents=True)
        for k in range(number):
            small = rng.integers(0, 255, (size[1] // 12, size[0] // 12, 3), np.uint8)
            Image.fromarray(small).resize(size).save(folder / f"{k:03}.jpg", quality=90)
    return sorted(str(path) for path in folder.glob("*.jpg"))


def make_grain(
    get: Callable[[int], Any], workers: int = 0, threads: int = 1, epoch: int = 100_000, collate: Any = None
) -> Any:
    import grain

    class Source:
        def __len__(self) -> int:
            return epoch

        def __getitem__(self, number: int) -> Any:
            return get(int(number))

    options = grain.ReadOptions(threads, max(threads, 2))
    dataset = grain.MapDataset.source(Source()).to_iter_dataset(options).batch(16, batch_fn=collate)
    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def by_grain(get: Callable[[int], Any], **options: Any) -> Callable[[Path], Any]:
    return lambda _: make_grain(get, **options)


def by_torch(get: Callable[[int], Any], **options: Any) -> Callable[[Path], Any]:
    return lambda _: make_loader(get, **options)


def of_files(
    get: Callable[..., Any], size: tuple[int, int] = (1200, 900), make: Any = make_loader, **options: Any
) -> Callable[[Path], Any]:
    return lambda folder: make(functools.partial(get, list_images(folder, size=size)), **options)


CORES = os.cpu_count() or 1
HALF, DRAFT = functools.partial(get_slowly, ms=2.0), functools.partial(get_decoded, draft=True)
WIDE, NARROW = (functools.partial(make_pixels, side=256, dtype=dtype) for dtype in ("float64", "uint8"))
ARRAYS = functools.partial(get_objects, as_array=True)
THREADED = ThreadedRecords(functools.partial(get_slowly, ms=3.0))

FAULTS: dict[str, LoaderFault] = {
    "zero_workers": LoaderFault(by_torch(get_slowly, workers=0), ("too few workers",), "num_workers="),
    "too_few_workers": LoaderFault(by_torch(get_slowly, workers=1), ("too few workers",), "num_workers="),
    "too_many_workers": LoaderFault(by_torch(get_slowly, workers=6 * CORES), ("too many workers",), "num_workers="),
    "python_function": LoaderFault(
        by_torch(get_slowly, workers=CORES), ("cores",), "Make ", by_torch(HALF), where="compute"),
    "lock": LoaderFault(
        by_torch(get_slowly, workers=0, dataset=THREADED), ("lock",), "num_workers=", where="compute"),
    "slow_worker": LoaderFault(by_torch(get_from_slow_worker, workers=4), ("slow worker",), "in_order=False"),
    "slow_record": LoaderFault(by_torch(get_one_large), ("slow record",), "in_order=False", where="record"),
    "late_storage": LoaderFault(
        of_files(get_late, (200, 150)), ("storage latency",), "num_workers=", delay_us=5000, where="get_late"),
    "network": LoaderFault(by_torch(get_by_network), ("waits",), "num_workers=", where="get_by_network"),
    "pillow": LoaderFault(
        of_files(get_decoded, workers=CORES), ("cores",), "Call `image.draft", of_files(DRAFT, workers=CORES),
        where="get_decoded"),
    "float64": LoaderFault(
        by_torch(WIDE, batch=32), ("hand-over", "cores"), "Hand over uint8", by_torch(NARROW, batch=32)),
    "objects": LoaderFault(
        by_torch(get_objects, collate_fn=keep), ("hand-over",), "Hand over tensors", by_torch(ARRAYS)),
    "collates_in_main": LoaderFault(
        lambda _: CollatesInMain(make_loader(make_pixels, 2, collate_fn=keep)), ("main process",), "Move ",
        by_torch(make_pixels, collate_fn=stack_and_compute), where="compute"),
    "restarts": LoaderFault(by_torch(get_slowly, length=96), ("restarts",), "persistent_workers=True"),
    "fed": LoaderFault(by_torch(make_pixels), ("accelerator",), "", step_s=0.05),
}  # fmt: skip
"""Every fault by its name; those of Grain loaders have names of their own below."""


def of_grain(name: str, make: Callable[[Path], Any], cure: Callable[[Path], Any] | None = None, **facts: Any) -> None:
    """Adds a fault of a DataLoader as one of a Grain loader."""
    name_there = "grain_function" if name == "python_function" else f"grain_{name}"
    FAULTS[name_there] = replace(FAULTS[name], make=make, cure=cure, needs="grain", **facts)


of_grain("zero_workers", by_grain(get_slowly))
of_grain("too_few_workers", by_grain(get_slowly, workers=1))
of_grain("too_many_workers", by_grain(get_slowly, workers=6 * CORES))
of_grain("lock", by_grain(get_slowly, threads=8))
of_grain("network", by_grain(get_by_network, workers=2), step_s=0.06)
of_grain("python_function", by_grain(get_slowly, workers=CORES), by_grain(HALF, workers=CORES))
of_grain(
    "pillow", of_files(get_decoded, make=make_grain, workers=CORES), of_files(DRAFT, make=make_grain, workers=CORES)
)
of_grain("late_storage", of_files(get_late, (200, 150), make_grain, workers=2), step_s=0.06)
of_grain("float64", by_grain(WIDE, workers=CORES), by_grain(NARROW, workers=CORES))
of_grain("objects", by_grain(get_objects, workers=CORES, collate=keep), by_grain(ARRAYS, workers=CORES))
of_grain(
    "collates_in_main",
    lambda _: CollatesInMain(make_grain(make_pixels, CORES, collate=keep)),
    by_grain(make_pixels, workers=CORES, collate=stack_and_compute),
)
of_grain("fed", by_grain(make_pixels, workers=1))
