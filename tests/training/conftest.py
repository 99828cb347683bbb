"""A small dataset of six colours, and short trainings on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

TRAIN, VALIDATION = 50, 27  # neither is a multiple of the batch
COLOURS = {
    "blue": (40, 40, 220),
    "cyan": (40, 220, 220),
    "green": (40, 220, 40),
    "grey": (130, 130, 130),
    "red": (220, 40, 40),
    "yellow": (220, 220, 40),
}


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of noisy JPEGs of 24 x 24, each in its class' colour. Not to be changed: copy it."""
    from beam_jobs import shard_job
    from beam_jobs.config import ShardConfig

    folder, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for split, count in (("train", TRAIN), ("validation", VALIDATION)):
        for i in range(count):
            name = list(COLOURS)[i % len(COLOURS)]
            path = folder / "images" / split / name / f"{i:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.asarray(COLOURS[name]) + rng.integers(-35, 36, (24, 24, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    shard_job.run(ShardConfig(input=str(folder / "images"), output=str(folder / "data"), num_shards=2, workers=1))
    return folder / "data"


Train = Callable[..., Any]


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., Any]:
    """A TrainConfig of a short run; options of the pipeline by their names."""
    from dataclasses import fields

    from tfpipe.pipeline.config.pipeline_config import PipelineConfig
    from tfpipe.training.config import TrainConfig

    own = {field.name for field in fields(TrainConfig)}

    def make(**options: Any) -> TrainConfig:
        pipeline = PipelineConfig(global_batch_size=8, image_size=16, window_records=16, run_records=4)
        pipeline = replace(pipeline, **{name: value for name, value in options.items() if name not in own})
        mine = {name: value for name, value in options.items() if name in own}
        defaults = {"output": str(tmp_path / "run"), "epochs": 3, "log_every_steps": 1, "checkpoint_every_steps": 4}
        return TrainConfig(pipeline=pipeline, **{**defaults, **mine})

    return make


@pytest.fixture
def train(colours: Path, make_config: Callable[..., Any]) -> Train:
    """Trains in this process, on one replica."""
    import tensorflow as tf

    from tfpipe.open_dataset import load_manifest
    from tfpipe.training.train import train

    def run(
        dataset: Path = colours, build: Any = None, stop: Callable[[], bool] = lambda: False, **options: Any
    ) -> Any:
        strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
        return train(load_manifest(str(dataset)), make_config(**options), strategy, build, stop=stop)

    return run
