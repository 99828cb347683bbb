"""Fixtures: a small dataset of six colors, and short trainings on it."""

import itertools
import json
import warnings
from collections.abc import Callable
from dataclasses import fields
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
def colors(tmp_path_factory) -> Path:
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


Train = Callable[..., Any]
"""From options of TrainConfig and PipelineConfig, by their names, to the result of a run."""


def build_linear(num_classes: int, size: tuple[int, int]) -> Any:
    """Returns a model of the mean color, which XLA compiles in a third of the time that small_cnn takes."""
    from keras import Input, Sequential, layers

    return Sequential([Input((*size, 3)), layers.GlobalAveragePooling2D(), layers.Dense(num_classes)])


def train_short(folder: Path, dataset: Path, stop: Callable[[], bool] = bool, **options: Any) -> Any:
    """Trains for a few steps in this process, on one device, with a small model if the options name no other."""
    import tensorflow as tf

    from tfpipe.training.train import train

    build = options.pop("build", None if "model" in options else build_linear)
    mine = {field.name for field in fields(TrainConfig)}
    pipeline = {name: options.pop(name) for name in list(options) if name not in mine}
    small = PipelineConfig(**{"batch_size": 8, "image_size": 16, "block_records": 4, **pipeline})
    defaults = {"output": str(folder), "epochs": 3, "log_every_steps": 1, "checkpoint_every_steps": 4}
    defaults |= {"model": "own:linear", "learning_rate": 1.0}
    config = TrainConfig(pipeline=small, **{**defaults, **options})
    strategy = tf.distribute.OneDeviceStrategy("/CPU:0")
    *_, result = train(load_manifest(str(dataset)), config, strategy, build, stop=stop)
    return result


@pytest.fixture
def train(colors: Path, tmp_path: Path) -> Train:
    """Returns a function that trains in this process, on one device."""

    def run(dataset: Path = colors, **options: Any) -> Any:
        return train_short(tmp_path / "run", dataset, **options)

    return run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory, colors: Path) -> Path:
    """Returns the folder of a run of three epochs that nobody stopped."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train_short(folder, colors)
    return folder


@pytest.fixture
def without_export(monkeypatch) -> None:
    """Leaves the export out, which takes longer than these few steps."""
    monkeypatch.setattr("tfpipe.training.train.export_models", lambda *_: None)


def read_lines(folder: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def stop_after(steps: int) -> Callable[[], bool]:
    calls = itertools.count(1)
    return lambda: next(calls) >= steps


def make_interpreter(path: Path) -> Callable[[Any], Any]:
    """Returns a function from an image to the logits of a TFLite file, with the details of its input as `details`."""
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deprecated", category=UserWarning)  # since TensorFlow 2.19
        interpreter = tf.lite.Interpreter(str(path))
    interpreter.allocate_tensors()
    (model_input,), (model_output,) = interpreter.get_input_details(), interpreter.get_output_details()

    def interpret(image: Any) -> Any:
        interpreter.set_tensor(model_input["index"], np.asarray(image)[None])
        interpreter.invoke()
        return interpreter.get_tensor(model_output["index"])[0]

    interpret.details = model_input
    return interpret
