"""A trained model as one TFLite file for phones and small boards, quantised, and how well it does then.

The file takes what the evaluation pipeline yields, one image at a time: no preprocessing is inside, since TFLite has
no operation that decodes a JPEG.

TensorFlow's release notes announce that `tf.lite` will go, in favour of the package `ai-edge-litert`, which reads the
same files but has no converter. TensorFlow 2.18 to 2.21 have both, so both are taken from there; the warning
about it is dropped.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tensorflow as tf

from tfpipe.errors import ConfigError, DataError, MissingDependencyError, first_line
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.system import file_io, host_limits

if TYPE_CHECKING:
    import keras  # type: ignore[import-untyped]

Kind = Literal["dynamic", "int8"]


def export_tflite(
    model: keras.Model, config: PipelineConfig, kind: Kind, images: Iterable[np.ndarray], path: str
) -> None:
    """Converts a model, and writes the file whole.

    Args:
      model: Takes what the evaluation pipeline of `config` yields as a batch of images, and gives logits of shape
        [batch, classes]. It is not changed.
      config: Of the evaluation; `image_size` and `image_dtype` are used. The file's input is one image of that dtype,
        float32 in place of bfloat16; its output are float32 logits.
      kind: "dynamic": weights of 8 bits, a quarter of the size; values of the layers stay floats. "int8": these
        too, within ranges that the images show, so that boards that compute in whole numbers only can run it.
      images: For "int8" a few hundred images that are like those to come, each of shape [height, width, 3]. Not
        looked at for "dynamic".
      path: A local file, or a URL that `tf.io.gfile` can write to.

    Raises:
      ConfigError: The model cannot be converted, or there are no images for "int8".
      DataError: The file cannot be written.
      MissingDependencyError: This TensorFlow has no `tf.lite`.
    """
    lite = _lite()
    dtype = tf.uint8 if config.image_dtype == "uint8" else tf.float32
    precise = _in_float32(model)
    spec = tf.TensorSpec([1, *config.size, 3], dtype, name="image")
    module = tf.Module()
    module.model = precise
    function = tf.function(lambda image: {"logits": precise(image, training=False)}, input_signature=[spec])
    with tempfile.TemporaryDirectory() as folder:
        # Saved and loaded, so that its weights become constants: of a Keras model itself they stay variables, which
        # TFLite cannot initialise, and of a model with replicas there are several.
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
    except Exception as error:  # of a dozen kinds: what an operation lacks is known to the converter only
        raise ConfigError(f"The model cannot be converted to TFLite: {first_line(error)}.") from error
    _write(path, data)


def evaluate_tflite(path: str, dataset: Iterable[Any]) -> float:
    """The share of images whose class the file finds, by the CPU of this machine.

    Args:
      path: Of a file from `export_tflite`.
      dataset: Batches of an evaluation pipeline, dictionaries or tuples; what the mask excludes does not count.

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
            interpreter = _lite().Interpreter(model_content=data, num_threads=host_limits.usable_cpus())
            interpreter.allocate_tensors()
        except (OSError, ValueError, RuntimeError, tf.errors.OpError) as error:
            raise DataError(f"{path} is no TFLite model that can be read: {first_line(error)}.") from error
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()
    right = count = 0
    for image, label in _examples(dataset):
        interpreter.set_tensor(taken["index"], image[None].astype(taken["dtype"]))
        interpreter.invoke()
        right += int(np.argmax(interpreter.get_tensor(given["index"])[0]) == label)
        count += 1
    return right / count if count else float("nan")


def _examples(dataset: Iterable[Any]) -> Iterator[tuple[np.ndarray, int]]:
    """Real images and their labels, one by one."""
    for batch in dataset:
        parts = [batch[name] for name in ("image", "label", "mask")] if isinstance(batch, dict) else batch
        images, labels, mask = (np.asarray(part) for part in parts)
        if labels.ndim == 2:  # one-hot
            labels = labels.argmax(axis=1)
        for i in np.flatnonzero(mask):
            yield images[i], int(labels[i])


def _in_float32(model: keras.Model) -> keras.Model:
    """The model itself, or one with the same weights that computes in float32: TFLite's kernels know no bfloat16."""
    if all(layer.compute_dtype == "float32" for layer in model._flatten_layers()):
        return model

    def clone(layer: Any) -> Any:
        if isinstance(layer, tf.keras.Model):
            return layer
        precision = {"dtype": "float32"} if isinstance(layer, tf.keras.layers.Layer) else {}  # an operation has none
        return layer.__class__.from_config({**layer.get_config(), **precision})

    try:
        precise = tf.keras.models.clone_model(model, clone_function=clone, recursive=True)
        precise.set_weights(model.get_weights())
    except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise ConfigError(
            f"A model of layers in {model.compute_dtype} is built anew in float32 for TFLite, and this one cannot be: "
            f"{first_line(error)}. Train it with float32."
        ) from error
    return precise


def _lite() -> Any:
    if not hasattr(tf, "lite"):
        raise MissingDependencyError(
            f"TFLite needs `tf.lite`, and TensorFlow {tf.__version__} has none. Install one from 2.18 to 2.21."
        )
    return tf.lite


def _write(path: str, data: bytes) -> None:
    try:
        if file_io.is_url(path):  # an object store shows a file when it is whole
            with tf.io.gfile.GFile(path, "wb") as file:
                file.write(data)
        else:
            file_io.write_file(path, data)
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"{path} cannot be written: {first_line(error)}.") from error
