"""Writes a trained model as a quantized TFLite file for phones and small boards, and measures its accuracy.

The file takes the images of the evaluation pipeline, one at a time. It contains no preprocessing, since TFLite has no
operation that decodes a JPEG.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError, MissingDependencyError, first_line
from tfpipe.storage import file_io
from tfpipe.system import host_limits
from tfpipe.training.config import TFLite


def export_tflite(
    model: tf.keras.Model, config: PipelineConfig, kind: TFLite, images: Iterable[np.ndarray], path: str
) -> None:
    """Converts a model that computes in float32, and writes the file in one step.

    The file takes one image of the evaluation pipeline, in float32 in place of bfloat16. The typical images show the
    range of each layer's values for "int8", which also computes in 8 bits, for boards that have no floats.
    """
    if not hasattr(tf, "lite"):
        raise MissingDependencyError(
            f"TFLite needs `tf.lite`, and TensorFlow {tf.__version__} has none. Install one from 2.18 to 2.21."
        )
    dtype = tf.uint8 if config.image_dtype == "uint8" else tf.float32
    spec = tf.TensorSpec([1, *config.size, 3], dtype, name="image")
    module = tf.Module()
    module.model = model
    function = tf.function(lambda image: {"logits": model(image, training=False)}, input_signature=[spec])
    with tempfile.TemporaryDirectory() as folder:
        # Saving and loading turns weights into constants. Those of a Keras model are variables, which TFLite cannot
        # initialize.
        tf.saved_model.save(module, folder, signatures=function)
        loaded = tf.saved_model.load(folder)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([loaded.signatures["serving_default"]], loaded)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "int8":
        samples = [np.asarray(image, dtype.as_numpy_dtype)[None] for image in images]
        converter.representative_dataset = lambda: ([sample] for sample in samples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    try:
        data = converter.convert()
    except Exception as error:  # the converter does not document its errors
        raise ConfigError(f"The model cannot be converted to TFLite: {first_line(error)}.") from error
    with file_io.explain_os_errors(f"write {path}"):
        file_io.write_file(path, data)


def evaluate_tflite(path: str, batches: Iterable[Any]) -> float:
    """Returns the share of an evaluation pipeline's images that a file classifies correctly on this machine's CPU."""
    with warnings.catch_warnings():  # TensorFlow announces the end of `tf.lite`
        warnings.filterwarnings("ignore", message=".*tf.lite.Interpreter is deprecated", category=UserWarning)
        with tf.io.gfile.GFile(path, "rb") as file:
            interpreter = tf.lite.Interpreter(model_content=file.read(), num_threads=host_limits.usable_cpus())
    interpreter.allocate_tensors()
    (model_input,), (model_output,) = interpreter.get_input_details(), interpreter.get_output_details()
    hits = []
    for image, label in iterate_images(batches):
        interpreter.set_tensor(model_input["index"], image[None].astype(model_input["dtype"]))
        interpreter.invoke()
        hits.append(np.argmax(interpreter.get_tensor(model_output["index"])[0]) == label)
    return float(np.mean(hits))


def iterate_images(batches: Iterable[Any]) -> Iterator[tuple[np.ndarray, int]]:
    """Yields the images of batches and their labels one by one, without padding."""
    for batch in batches:
        images, labels, mask = (np.asarray(batch[name]) for name in ("image", "label", "mask"))
        for i in np.flatnonzero(mask):
            yield images[i], int(labels[i])
