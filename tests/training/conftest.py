"""Fixtures: a small dataset of six colors, and short trainings on it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tfpipe.dataset.load import load_manifest
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.training.config import TrainConfig

TRAIN, VALIDATION = 50, 27  # neither is a multiple of the batch
COLORS = {
    "blue": (40, 40, 220),
    "cyan": (40, 220, 220),
    "green": (40, 220, 40),
    "gray": (130, 130, 130),
    "red": (220, 40, 40),
    "yellow": (220, 220, 40),
}


@pytest.fixture(scope="session")
def colors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a dataset of noisy JPEGs of 24 x 24, each in the color of its class. Copy it before you change it."""
    from beam_jobs import shard_job
    from beam_jobs.config import ShardConfig

    folder, rng = tmp_path_factory.mktemp("colors"), np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("validation", VALIDATION)):
        for i in range(count):
            name = list(COLORS)[i % len(COLORS)]
            path = folder / "images" / split / name / f"{i:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.asarray(COLORS[name]) + rng.integers(-35, 36, (24, 24, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    shard_job.run(ShardConfig(input=str(folder / "images"), output=str(folder / "data"), num_shards=2, workers=1))
    return folder / "data"


MakeConfig = Callable[..., Any]
"""From options of TrainConfig and PipelineConfig, by their names, to a TrainConfig."""

Train = Callable[..., Any]
"""From options of a run, by their names, to a TrainResult."""


def build_config(folder: Path, **options: Any) -> TrainConfig:
    """Builds the config of a short run, whose exported model gets the pixels of its evaluation: those of Pillow."""
    pipeline = PipelineConfig(batch_size=8, image_size=16, block_records=4, decoder="pillow")
    train_names = {field.name for field in fields(TrainConfig)}
    pipeline_options = {name: value for name, value in options.items() if name not in train_names}
    train_options = {name: value for name, value in options.items() if name in train_names}
    defaults = {"output": str(folder), "epochs": 3, "log_every_steps": 1, "checkpoint_every_steps": 4}
    return TrainConfig(pipeline=replace(pipeline, **pipeline_options), **{**defaults, **train_options})


def train_short(config: TrainConfig, dataset: Path, build: Any = None, stop: Callable[[], bool] = lambda: False) -> Any:
    """Trains in this process, on one device."""
    import tensorflow as tf

    from tfpipe.training.train import train

    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    return train(load_manifest(str(dataset)), config, strategy, build, stop=stop)


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """Returns a function that makes the TrainConfig of a short run."""
    return partial(build_config, tmp_path / "run")


@pytest.fixture
def train(colors: Path, make_config: MakeConfig) -> Train:
    """Returns a function that trains in this process, on one device."""

    def run(dataset: Path = colors, build: Any = None, stop: Callable[[], bool] = lambda: False, **options: Any) -> Any:
        return train_short(make_config(**options), dataset, build, stop)

    return run


def read_lines(folder: str | Path) -> list[dict[str, Any]]:
    """Reads the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def stop_after(steps: int) -> Callable[[], bool]:
    """Returns a `stop` that is True from its call number `steps` on."""
    calls = itertools.count(1)
    return lambda: next(calls) >= steps
