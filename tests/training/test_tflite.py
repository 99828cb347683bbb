"""Quantized files: their input, their operations and their accuracy."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfpipe import PipelineConfig
from tfpipe.errors import DataError
from tfpipe.training.tflite import evaluate_tflite, export_tflite

CONFIG = PipelineConfig(batch_size=8, image_size=8, training=False)
RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 3, 40).astype(np.int32)
# Each class has a bright channel.
IMAGES = (RNG.integers(0, 100, (40, 8, 8, 3)) + 120 * np.eye(3, dtype=int)[LABELS][:, None, None]).astype(np.uint8)


def color_model(dtype: str = "uint8") -> Any:
    """Returns a model that names the brightest channel, which is right without training."""
    image = tf.keras.Input((8, 8, 3), dtype=dtype)
    x = tf.keras.layers.Rescaling(1 / 255)(image)
    x = tf.keras.layers.DepthwiseConv2D(1, depthwise_initializer="ones")(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(image, tf.keras.layers.Dense(3, kernel_initializer="identity", dtype="float32")(x))


def batches() -> Any:
    """Returns batches of 8; the last three images are padding, with a wrong class."""
    mask, labels = np.arange(40) < 37, np.where(np.arange(40) < 37, LABELS, (LABELS + 1) % 3)
    return tf.data.Dataset.from_tensor_slices({"image": IMAGES, "label": labels, "mask": mask}).batch(8)


def read_details(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Returns the properties of a file's input, and the names of its operations."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deprecated", category=UserWarning)  # since TensorFlow 2.19
        interpreter = tf.lite.Interpreter(str(path))
    interpreter.allocate_tensors()
    return interpreter.get_input_details()[0], [operation["op_name"] for operation in interpreter._get_ops_details()]


@pytest.mark.parametrize("kind", ["dynamic", "int8"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_file_takes_the_pipelines_images_and_is_as_accurate_as_the_model(
    tmp_path: Path, kind: Any, dtype: str
) -> None:
    path = tmp_path / "model.tflite"
    export_tflite(color_model(dtype), replace(CONFIG, image_dtype=dtype), kind, iter(IMAGES[:10]), str(path))
    model_input, operations = read_details(path)
    assert (model_input["dtype"], model_input["shape"].tolist()) == (np.dtype(dtype).type, [1, 8, 8, 3])
    assert model_input["quantization"] == (0.0, 0)  # pixels as they are
    assert ("QUANTIZE" in operations) == (kind == "int8")
    assert evaluate_tflite(str(path), batches()) == 1.0
    assert [file.name for file in tmp_path.iterdir()] == ["model.tflite"]


def test_accuracy_counts_real_images_only(tmp_path: Path) -> None:
    path = str(tmp_path / "model.tflite")
    model = color_model()
    model.layers[-1].set_weights([np.diag([1.0, 1.0, -1.0]), np.zeros(3)])  # never predicts 2
    export_tflite(model, CONFIG, "dynamic", (), path)
    assert evaluate_tflite(path, batches()) == float((LABELS[:37] != 2).mean())


def test_a_file_that_cannot_be_written_is_named() -> None:
    with pytest.raises(DataError, match=r"^Could not write /nowhere/model\.tflite: "):
        export_tflite(color_model(), CONFIG, "dynamic", (), "/nowhere/model.tflite")
