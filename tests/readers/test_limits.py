"""The limits that the options set for threads and waiting batches, in every reader without TensorFlow."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.readers.test_transforms import ALL, Open, open_jax, open_keras, open_numpy, open_torch
from tests.refusals import refusal
from tfpipe.engine.batch import BatchMaker
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.readers.grain import GrainBatches
from tfpipe.readers.torch import TorchBatches, data_loader
from tfpipe.system import host_limits

OPTIONS: dict[str, Any] = {"batch_size": 2, "image_size": 8, "as_supervised": True}


@pytest.mark.parametrize("waiting", [0, 1, 4])
@pytest.mark.parametrize("open_face", [open_numpy, open_jax, open_keras, open_torch])
def test_so_many_finished_batches_wait(small_dataset: Path, open_face: Open, waiting: int) -> None:
    made = []
    config = PipelineConfig(**OPTIONS, prefetch_batches=waiting)
    batches = open_face(small_dataset, config, batch_transform=lambda batch: made.append(1) or batch)
    next(batches)
    deadline = time.monotonic() + 10
    while len(made) < 1 + waiting and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert len(made) == 1 + waiting
    batches.close()


def test_workers_share_the_waiting_batches(small_dataset: Path) -> None:
    def count(workers: int, waiting: int | None, **functions: Any) -> Any:
        images = TorchBatches(small_dataset, "train", PipelineConfig(**OPTIONS, prefetch_batches=waiting), **functions)
        return data_loader(images, workers).prefetch_factor

    assert [count(0, 3), count(2, None), count(2, 5), count(2, 1)] == [None, 2, 3, 1]
    with pytest.raises(ConfigError, match=r"^`prefetch_batches` 0 needs `num_workers` 0: a batch of each"):
        count(2, 0)
    with pytest.raises(ConfigError, match=r"^`prefetch_batches` 3 needs workers with a `transform`"):
        count(0, 3, transform=lambda image: image)


def test_batches_that_others_make_ahead_are_not_counted_here(small_dataset: Path) -> None:
    config = PipelineConfig(**OPTIONS, prefetch_batches=3)
    assert refusal(ConfigError, GrainBatches, small_dataset, "train", config) == (
        "`prefetch_batches` 3 is decided by Grain: give `grain.ReadOptions(prefetch_buffer_size=...)`, and leave it "
        "out here."
    )


@pytest.mark.parametrize("open_face", ALL)
def test_threads_are_those_that_the_budget_leaves(small_dataset: Path, open_face: Open, monkeypatch):
    monkeypatch.setattr(host_limits, "usable_cpus", lambda: 10)
    given: set[tuple[float | None, int]] = set()
    decode = BatchMaker.decode

    def note(self: BatchMaker, stored: Any, threads: int = 1, *more: Any) -> Any:
        given.add((self.plan.config.cpu_budget, threads))
        return decode(self, stored, threads, *more)

    monkeypatch.setattr(BatchMaker, "decode", note)
    expected = {(None, 10), (0.35, 3), (0.01, 1)}
    has_number = open_face in (open_numpy, open_jax)
    for budget in (None, 0.35, 0.01):
        options = {"num_threads": None} if has_number else {}
        batches = open_face(small_dataset, PipelineConfig(**OPTIONS, cpu_budget=budget), **options)
        next(batches)
        batches.close()
    if has_number:  # one that the program gives stands
        expected.add((0.02, 5))
        next(open_face(small_dataset, PipelineConfig(**OPTIONS, cpu_budget=0.02), num_threads=5))
    assert given == expected
