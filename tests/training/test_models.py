"""Models take what the pipeline hands over and return float32 logits; a user's own is looked at first."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tfpipe.errors import ConfigError  # noqa: E402
from tfpipe.pipeline.config.pipeline_config import PipelineConfig  # noqa: E402
from tfpipe.pipeline.device.augment import normalize  # noqa: E402
from tfpipe.training.models import build_model  # noqa: E402

BYTES = PipelineConfig(global_batch_size=8, image_size=(32, 40))
FLOATS = PipelineConfig(global_batch_size=8, image_size=(32, 40), image_dtype="float32")
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 32, 40, 3), np.uint8)


@pytest.fixture(autouse=True)
def float32() -> Iterator[None]:
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


def own(num_classes: int, size: tuple[int, int]) -> Any:
    layers = [tf.keras.Input((*size, 3)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(num_classes)]
    return tf.keras.Sequential(layers)


def test_bytes_are_normalized_inside_as_the_pipeline_normalizes_floats() -> None:
    of_bytes, of_floats = build_model("own", 5, BYTES, own), build_model("own", 5, FLOATS, own)
    of_floats.set_weights(of_bytes.get_weights())
    assert of_bytes.input.dtype == "uint8"
    np.testing.assert_allclose(of_bytes(IMAGES), of_floats(normalize(IMAGES)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_logits_are_float32(policy: str) -> None:
    tf.keras.mixed_precision.set_global_policy(policy)
    model = build_model("small_cnn", 7, BYTES)
    assert model.output_shape == (None, 7)
    assert model(IMAGES).dtype == tf.float32
    assert model.count_params() == 94_375


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v3_small"])
def test_the_large_ones_too(name: str) -> None:
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = build_model(name, 7, BYTES)
    assert model.output_shape == (None, 7)
    assert model(IMAGES).dtype == tf.float32


def test_images_may_be_too_small() -> None:
    with pytest.raises(ConfigError, match=r"resnet50 needs images of at least 32 pixels a side, got 16 x 40\."):
        build_model("resnet50", 7, PipelineConfig(global_batch_size=8, image_size=(16, 40)))


def fails(num_classes: int, size: tuple[int, int]) -> Any:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (fails, r"own\(5, \(32, 40\)\) failed: ValueError: no idea"),
        (lambda *_: None, "own must return a Keras model, got NoneType."),
        (lambda n, size: own(n + 1, size), r"own must return logits of shape \(None, 5\), got \(None, 6\)\."),
        (lambda n, size: own(n, (8, 8)), r"own must take images of shape \(None, 32, 40, 3\): "),
    ],
)
def test_a_model_that_is_none_is_refused(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model("own", 5, BYTES, build)
