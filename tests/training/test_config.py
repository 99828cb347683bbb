"""TrainConfig: the values that it refuses, and its defaults."""

from dataclasses import replace
from typing import Any

import pytest

from tests.refusals import refusal
from tfpipe.engine.config.pipeline_config import PipelineConfig, TfDataOptions
from tfpipe.errors import ConfigError
from tfpipe.training.config import TrainConfig, default_pipeline

CONFIG = TrainConfig(pipeline=PipelineConfig(batch_size=512), output="run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "`epochs` must be at least 1, got 0."),
        ({"output": ""}, "`output` must be text in Unicode and not empty, got ''."),
        ({"learning_rate": 0.0}, "`learning_rate` must be above 0, got 0.0."),
        ({"learning_rate": float("nan")}, "`learning_rate` must be above 0, got nan."),
        ({"weight_decay": -1.0}, "`weight_decay` must be at least 0, got -1.0."),
        ({"label_smoothing": 1.0}, "`label_smoothing` must be at least 0 and below 1, got 1.0."),
        (
            {"pipeline": PipelineConfig(batch_size=8, augment="device")},
            "`augment` must be host or none for this trainer, got device.",
        ),
        ({"precision": "float16"}, "`precision` must be auto, float32 or bfloat16, got 'float16'."),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, replace, CONFIG, **options) == message


def test_options_that_the_evaluation_or_the_trainer_does_not_have_are_left_out() -> None:
    given = {"extra_features": ("tags", "name"), "multi_hot": ("tags",), "pad_to": {"name": 4}}
    reading = {"order": "throughput", "tf_data": TfDataOptions(cycle_length=2)}
    config = TrainConfig(pipeline=PipelineConfig(batch_size=8, **given, **reading), output="run")
    assert config.training_pipeline == PipelineConfig(batch_size=8, **reading)
    assert config.evaluation_pipeline == PipelineConfig(batch_size=8, training=False)


@pytest.mark.parametrize(
    ("model", "epochs", "size"), [("small_cnn", 100, 64), ("resnet50", 90, 224), ("my.own:model", 90, 224)]
)
def test_defaults_depend_on_the_model(model: str, epochs: int, size: int) -> None:
    assert replace(CONFIG, model=model).num_epochs == epochs
    assert default_pipeline(model, 23, 1).get("image_size", 224) == size


@pytest.mark.parametrize(
    ("records", "replicas", "batch"), [(23, 1, 4), (23, 4, 4), (3, 1, 1), (1000, 1, 128), (1000, 8, 128), (300, 1, 64)]
)
def test_the_default_batch_leaves_four_steps(records: int, replicas: int, batch: int) -> None:
    assert default_pipeline("resnet50", records, replicas) == {"batch_size": batch}
