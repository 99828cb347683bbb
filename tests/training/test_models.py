"""Models take the batches of a pipeline and return float32 logits; a user's own model is checked."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.pipeline.device.augment import normalize
from tfpipe.training.models import build_model

BYTES = PipelineConfig(batch_size=8, image_size=(32, 40))
FLOATS = PipelineConfig(batch_size=8, image_size=(32, 40), image_dtype="float32")
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 32, 40, 3), np.uint8)


@pytest.fixture(autouse=True)
def float32() -> Iterator[None]:
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


def build_own(num_classes: int, size: tuple[int, int]) -> Any:
    layers = [tf.keras.Input((*size, 3)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(num_classes)]
    return tf.keras.Sequential(layers)


def test_bytes_are_normalized_inside_as_the_pipeline_normalizes_floats() -> None:
    bytes_model, floats_model = build_model("own", 5, BYTES, build_own), build_model("own", 5, FLOATS, build_own)
    floats_model.set_weights(bytes_model.get_weights())
    assert bytes_model.input.dtype == "uint8"
    np.testing.assert_allclose(bytes_model(IMAGES), floats_model(normalize(IMAGES)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *(("small_cnn", policy) for policy in ("float32", "mixed_bfloat16")),
        pytest.param("resnet50", "mixed_bfloat16", marks=pytest.mark.slow),
    ],
)
def test_logits_are_float32(name: str, policy: str) -> None:
    tf.keras.mixed_precision.set_global_policy(policy)
    model = build_model(name, 7, BYTES)
    assert model.output_shape == (None, 7)
    assert model(IMAGES).dtype == tf.float32
    assert name == "resnet50" or model.count_params() == 94_375


def test_too_small_images_and_a_model_with_other_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"resnet50 needs images of at least 32 pixels a side, got 16 x 40\."):
        build_model("resnet50", 7, PipelineConfig(batch_size=8, image_size=(16, 40)))
    with pytest.raises(ConfigError, match=r"own must return logits of shape \(None, 5\), got \(None, 6\)\."):
        build_model("own", 5, BYTES, lambda num_classes, size: build_own(num_classes + 1, size))
    with pytest.raises(ConfigError, match=r"^own must return a Keras model, got None\.$"):
        build_model("own", 5, BYTES, lambda num_classes, size: None)  # type: ignore[arg-type]
