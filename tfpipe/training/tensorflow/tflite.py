"""Writes a trained model as a quantized TFLite file for phones and small boards, and measures its accuracy.

The file takes the images of the evaluation pipeline, one at a time. It contains no preprocessing, since TFLite has no
operation that decodes a JPEG.

TensorFlow's release notes announce the end of `tf.lite`, in favor of the package `ai-edge-litert`. That package reads
the same files but has no converter. TensorFlow 2.18 to 2.21 have both reader and converter, so both are taken from
there, and the warning about the end is dropped.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, DataError, MissingDependencyError, first_line
from tfpipe.storage import file_io
from tfpipe.system import host_limits

if TYPE_CHECKING:
    import keras  # type: ignore[import-untyped]

Kind = Literal["dynamic", "int8"]


def export_tflite(
    model: keras.Model, config: PipelineConfig, kind: Kind, images: Iterable[np.ndarray], path: str
) -> None:
    """Converts a model, and writes the file in one step.

    Args:
        model: A model from the image batches of the evaluation pipeline to logits of shape [batch, classes]. It is not
            changed.
        config: The options of the evaluation pipeline, of which `image_size` and `image_dtype` are used. The file's
            input is one image of that dtype, or of float32 in place of bfloat16. Its output is float32 logits.
        kind: "dynamic" stores weights in 8 bits, a quarter of the size, and computes in floats. "int8" also computes
            in 8 bits, for boards that have no floats.
        images: A few hundred typical images for "int8", each of shape [height, width, 3]; they show the range of each
            layer's values. "dynamic" does not read them.
        path: A local file, or a URL that `tf.io.gfile` can write to.

    Raises:
        ConfigError: The model cannot be converted, or there are no images for "int8".
        DataError: The file cannot be written.
        MissingDependencyError: This TensorFlow has no `tf.lite`.
    """
    lite = _get_lite()
    dtype = tf.uint8 if config.image_dtype == "uint8" else tf.float32
    float32_model = _copy_in_float32(model)
    spec = tf.TensorSpec([1, *config.size, 3], dtype, name="image")
    module = tf.Module()
    module.model = float32_model
    function = tf.function(lambda image: {"logits": float32_model(image, training=False)}, input_signature=[spec])
    with tempfile.TemporaryDirectory() as folder:
        # Saving and loading turns weights into constants. Those of a Keras model are variables, which TFLite cannot
        # initialize, and a model with replicas has several of each.
        tf.saved_model.save(module, folder, signatures=function)
        loaded = tf.saved_model.load(folder)
    converter = lite.TFLiteConverter.from_concrete_functions([loaded.signatures["serving_default"]], loaded)
    converter.optimizations = [lite.Optimize.DEFAULT]
    if kind == "int8":
        samples = [np.asarray(image, dtype.as_numpy_dtype)[None] for image in images]
        if not samples:
            raise ConfigError("int8 needs images that show the range of each layer's values, got none.")
        converter.representative_dataset = lambda: ([sample] for sample in samples)
        converter.target_spec.supported_ops = [lite.OpsSet.TFLITE_BUILTINS_INT8]
    try:
        data = converter.convert()
    except Exception as error:  # the converter does not document its errors
        raise ConfigError(f"The model cannot be converted to TFLite: {first_line(error)}.") from error
    _write(path, data)


def evaluate_tflite(path: str, dataset: Iterable[Any]) -> float:
    """Returns the share of images that a TFLite file classifies correctly, computed on this machine's CPU.

    Args:
        path: A file from `export_tflite`.
        dataset: Batches of an evaluation pipeline. Images outside the mask do not count.

    Returns:
        Top-1 accuracy, 0 to 1; NaN where there is no image.

    Raises:
        DataError: The file cannot be read.
        MissingDependencyError: This TensorFlow has no `tf.lite`.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*tf.lite.Interpreter is deprecated", category=UserWarning)
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                data = file.read()
            interpreter = _get_lite().Interpreter(model_content=data, num_threads=host_limits.usable_cpus())
            interpreter.allocate_tensors()
        except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
            raise DataError(f"{path} is not a TFLite model that can be read: {first_line(error)}.") from error
    (model_input,), (model_output,) = interpreter.get_input_details(), interpreter.get_output_details()
    correct = count = 0
    for image, label in iterate_images(dataset):
        interpreter.set_tensor(model_input["index"], image[None].astype(model_input["dtype"]))
        interpreter.invoke()
        correct += int(np.argmax(interpreter.get_tensor(model_output["index"])[0]) == label)
        count += 1
    return correct / count if count else float("nan")


def iterate_images(dataset: Iterable[Any]) -> Iterator[tuple[np.ndarray, int]]:
    """Yields the images of batches and their labels one by one, without padding."""
    for batch in dataset:
        images, labels, mask = (np.asarray(batch[name]) for name in ("image", "label", "mask"))
        for i in np.flatnonzero(mask):
            yield images[i], int(labels[i])


def _copy_in_float32(model: keras.Model) -> keras.Model:
    """Returns a model with the same weights that computes in float32, since TFLite has no bfloat16.

    A model that computes in float32 is returned itself.
    """
    if all(layer.compute_dtype == "float32" for layer in model._flatten_layers()):
        return model

    def clone(layer: Any) -> Any:
        if isinstance(layer, tf.keras.Model):
            return layer
        precision = (
            {"dtype": "float32"} if isinstance(layer, tf.keras.layers.Layer) else {}
        )  # an operation has no dtype
        return layer.__class__.from_config({**layer.get_config(), **precision})

    try:
        copy = tf.keras.models.clone_model(model, clone_function=clone, recursive=True)
        copy.set_weights(model.get_weights())
    except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise ConfigError(
            f"TFLite needs a float32 copy of this {model.compute_dtype} model, and Keras cannot make one: "
            f"{first_line(error)}. Train with `precision` float32."
        ) from error
    return copy


def _get_lite() -> Any:
    if not hasattr(tf, "lite"):
        raise MissingDependencyError(
            f"TFLite needs `tf.lite`, and TensorFlow {tf.__version__} has none. Install one from 2.18 to 2.21."
        )
    return tf.lite


def _write(path: str, data: bytes) -> None:
    try:
        file_io.write_file(path, data)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {first_line(error)}.") from error
