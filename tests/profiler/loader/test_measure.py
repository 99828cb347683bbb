"""Real loaders, their workers, and their files."""

import itertools
import statistics
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tfpipe.errors import ConfigError, DataError
from tfpipe.profiler.loader.measure import LoaderSource, Trainer, describe_batch, measure_draft_s, measure_loader
from tfpipe.profiler.types import BatchInfo

torch_data = pytest.importorskip("torch.utils.data")


class Waits:
    """Records that take 2 ms without a core."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, number: int) -> Any:
        time.sleep(0.002)
        return np.full((4, 4, 3), number % 200, np.uint8)


def keep(records: list[Any]) -> list[Any]:
    return records


def make() -> Any:
    return torch_data.DataLoader(Waits(), batch_size=5, num_workers=0)


def make_batches() -> Iterator[Any]:
    for _ in range(3):
        time.sleep(0.001)
        yield {"image": np.zeros((2, 8, 8, 3), np.float32), "label": [1, 2]}


def test_workers_and_their_records(tmp_path: Path) -> None:
    loader = LoaderSource(make, "make").make({"num_workers": 2, "persistent_workers": True})
    assert (loader.kind, loader.options["num_workers"], loader.length) == ("PyTorch DataLoader", 2, 2000)
    assert loader.collate == ""
    own = LoaderSource(lambda: torch_data.DataLoader(Waits(), collate_fn=partial(keep)), "make").make()
    assert own.collate == "keep"
    of_numpy = LoaderSource(lambda: torch_data.DataLoader(Waits(), num_workers=np.int64(1)), "make").make()
    assert type(of_numpy.options["num_workers"]) is int
    profile = measure_loader(loader, Trainer(step_s=0.1), 0.5, tmp_path, threading.enumerate())
    assert (profile.batch.images, profile.batch.shape, len(profile.workers)) == (5, (5, 4, 4, 3), 2)
    for use in profile.workers:
        assert 0.002 <= statistics.median(use.record_s) < 0.1
        assert use.functions[0][1] == "waiting"
        assert use.functions[0][0].startswith("test_measure.py:")
    assert profile.main.sum("waiting") == 0
    assert type(Waits()).__getitem__.__name__ == "__getitem__"


def test_without_workers_this_process_is_seen(tmp_path: Path) -> None:
    loader, trainer = LoaderSource(make, "make").make(), Trainer(images_per_second=1000.0)
    profile = measure_loader(loader, trainer, 0.5, tmp_path, threading.enumerate())
    assert (profile.workers, profile.step.step_s.median) == ((), 0.005)
    assert profile.main.functions[0][0].endswith("__getitem__")
    assert profile.step.idle > 0.3
    assert "timing" not in repr(Waits.__getitem__.__code__)


def test_an_iterator_is_made_anew_for_each_epoch(tmp_path: Path) -> None:
    seen: list[Any] = []
    profile = measure_loader(
        LoaderSource(make_batches, "make_batches").make(), Trainer(train=seen.append), 0.3, tmp_path
    )
    assert profile.kind == "generator"
    assert profile.free.epochs > 2
    assert (profile.step.method, profile.batch) == ("train", BatchInfo(2, 1536, "float32", (2, 8, 8, 3), 4))
    assert seen[0]["label"] == [1, 2]


def test_idle_is_the_wait_for_batches_however_uneven_the_steps(tmp_path: Path) -> None:
    number = itertools.count()
    trainer = Trainer(train=lambda _: time.sleep(0.02 * (next(number) % 4 == 0)))
    step = measure_loader(LoaderSource(make_batches, "make").make(), trainer, 0.3, tmp_path).step
    assert step.idle == step.idle_fraction.median == step.input_wait_fraction.median
    assert step.idle == pytest.approx(1 - step.rate / step.required_rate)


def test_a_late_sleep_shortens_the_next_one(monkeypatch) -> None:
    asked: list[float] = []
    clock = SimpleNamespace(perf_counter=lambda: sum(asked) + 0.25 * len(asked), sleep=asked.append)
    monkeypatch.setattr("tfpipe.profiler.loader.measure.time", clock)
    step, step_s = Trainer(step_s=1.0).make_step(None)
    for _ in range(3):
        step(None)
    assert (asked, step_s) == ([1.0, 0.75, 0.75], 1.0)


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such folder")

    with pytest.raises(ConfigError, match=r"^--loader: fail raises RuntimeError: no such folder$"):
        LoaderSource(fail, "fail").make()
    with pytest.raises(ConfigError, match=r"^--loader: len must return a loader or an iterable of batches, got int\.$"):
        LoaderSource(lambda: 5, "len").make()
    with pytest.raises(DataError, match=r"^The loader gives no batch"):
        measure_loader(LoaderSource(list, "list").make(), Trainer(), 0.1, tmp_path)
    once = make_batches()
    with pytest.raises(DataError, match=r"^The loader ran out after 3 batches, and gives no second epoch\. Name a fun"):
        measure_loader(LoaderSource(lambda: once, "once").make(), Trainer(), 0.1, tmp_path)
    loader = torch_data.DataLoader(Waits())
    with pytest.raises(ConfigError, match="Make the DataLoader inside of the function"):
        LoaderSource(lambda: loader, "get").make({"num_workers": 2})
    with pytest.raises(ConfigError, match=r"^--train: the step raises RuntimeError: no such folder$"):
        measure_loader(LoaderSource(make_batches, "make").make(), Trainer(train=fail), 0.1, tmp_path)


@pytest.mark.parametrize(
    ("batch", "info"),
    [
        (np.zeros((4, 3, 8, 6), np.float64), BatchInfo(4, 4608, "float64", (4, 3, 8, 6))),
        ([np.zeros((8, 6, 3), np.uint8)] * 5, BatchInfo(5, 720, "uint8", (5, 8, 6, 3), 1)),
        ({"image": [np.zeros((8, 6, 3), np.uint8)] * 5, "label": [1] * 5}, BatchInfo(5, 720, "uint8", (5, 8, 6, 3), 8)),
        ({"image": [np.zeros((8, n, 3), np.uint8) for n in (6, 7)]}, BatchInfo(2, 312, "uint8", (2,), 2)),
        ([np.zeros((4, 8, 6, 3), np.uint8), np.zeros(4, np.int64)], BatchInfo(4, 608, "uint8", (4, 8, 6, 3), 1)),
        ((["a", "b"], [1, 2]), BatchInfo(2, 0, "", (), 7)),
    ],
)
def test_the_description_of_a_batch(batch: Any, info: BatchInfo) -> None:
    assert describe_batch(batch) == info
    assert info.image_size == ((8, 6) if len(info.shape) == 4 else None)


@pytest.mark.parametrize(
    ("size", "is_known"), [((25, 200), True), ((100, 800), False), ((25, 500), False), (None, False)]
)
def test_pillow_is_tried_where_a_smaller_size_is_enough(size: tuple[int, int] | None, is_known: bool, tmp_path: Path):
    """The size is a height and a width."""
    Image.new("RGB", (800, 100), "red").save(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"no image")
    seconds = measure_draft_s([str(tmp_path / name) for name in ("b.jpg", "a.jpg", "gone.jpg")], size)
    assert (seconds is not None and 0 < seconds < 1) == is_known
