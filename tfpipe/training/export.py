"""Writes a trained model as a SavedModel that takes image files, with the preprocessing inside.

There are three signatures, which take a batch of any size. Each returns `probabilities`, float32 [batch, classes],
`label`, int64 [batch], and `label_name`, string [batch].

- `serving_default` takes `image_bytes`, string [batch]: image files of any sizes, JPEG, PNG, GIF or BMP.
- `records` takes `image_bytes`, `height` and `width`, int64 [batch]: the features `image/encoded`, `image/height` and
  `image/width` of the dataset's records, also raw and squeezed ones.
- `images` takes `images`, uint8 [batch, height, width, 3], decoded whole, and `height` and `width` of the originals.

The model contains the functions of the evaluation pipeline, so a record's prediction equals that of the evaluation, to
the bit where batches and devices are the same. Files are read by TensorFlow's decoders, which ignore an EXIF rotation
and drop alpha; `tfpipe predict` prepares files as `tfpipe shard` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.stored_images import StoredImages
from tfpipe.errors import DataError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import IMAGE_ENCODED, IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Customize, explain_customize_errors
from tfpipe.pipeline.stages.augment import augment_on_host, crop_for_host
from tfpipe.pipeline.stages.decode import decode_for_host, decode_whole
from tfpipe.storage import file_io
from tfpipe.training.config import TrainConfig, find_evaluation_split
from tfpipe.training.models import BuildModel, build_model
from tfpipe.training.run_dir import LABELS, MODEL, NOTES, NOTES_VERSION, PROGRAM, RunDir
from tfpipe.training.tflite import evaluate_tflite, export_tflite, iterate_images

_CALIBRATION_IMAGES = 256  # as the model gets them, to show TFLite the range of each layer's values
_INPUTS = {
    "image_bytes": (IMAGE_ENCODED, [None], tf.string),
    "images": ("image", [None, None, None, 3], tf.uint8),
    "height": (IMAGE_HEIGHT, [None], tf.int64),
    "width": (IMAGE_WIDTH, [None], tf.int64),
}
"""The feature, the shape and the dtype of each input of a signature."""

_Features = dict[str, tf.Tensor]


def export_models(
    folder: RunDir,
    manifest: Manifest,
    config: TrainConfig,
    weights: Sequence[NDArray[Any]],
    build: BuildModel | None,
    customize: Customize | None,
) -> float | None:
    """Writes the models of a run. Returns the accuracy of the TFLite model; None without one."""
    pipeline, names = config.evaluation_pipeline, manifest.label_names

    def copy_model() -> tf.keras.Model:
        """Builds the model outside the strategy, since its weights must not live on the strategy's devices."""
        model = build_model(config.model, len(names), pipeline, build)
        model.set_weights(weights)
        return model

    def read(split: str) -> tf.data.Dataset:
        """Reads a split as for evaluation, on this process alone."""
        with explain_customize_errors(customize):
            return build_stages(manifest, split, pipeline, customize=customize).dataset()

    form = ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()
    export_model(copy_model(), pipeline, names, folder.file(MODEL), form)
    if config.tflite is None:
        return None
    path, images = folder.file(f"{MODEL}-{config.tflite}.tflite"), iterate_images(read(config.split))
    samples = (image for image, _ in islice(images, _CALIBRATION_IMAGES))
    tf.keras.mixed_precision.set_global_policy("float32")  # TFLite has no bfloat16
    export_tflite(copy_model(), pipeline, config.tflite, samples, path)
    return evaluate_tflite(path, read(find_evaluation_split(manifest, config.split) or config.split))


def export_model(
    model: tf.keras.Model, config: PipelineConfig, label_names: Sequence[str], directory: str, form: ImageForm
) -> None:
    """Writes a model for the images of an evaluation pipeline, of a dataset that stores its images in a form."""
    module, names = tf.Module(), tf.constant(list(label_names), tf.string)
    module.model = model
    spec = tf.TensorSpec([*config.size, 3], tf.as_dtype(config.image_dtype))

    def make_signature(decode: Callable[[_Features], tf.Tensor], *inputs: str) -> Any:
        def prepare(features: _Features) -> tf.Tensor:
            return augment_on_host(decode(features), None, config)

        def predict(**given: tf.Tensor) -> _Features:
            features = {_INPUTS[name][0]: tensor for name, tensor in given.items()}
            with tf.device("CPU"):  # as in the pipeline, even if the model has a GPU
                # AutoGraph would take longer than all else. Images differ in size, so they are prepared one by one.
                one_by_one = tf.autograph.experimental.do_not_convert(prepare)
                images = tf.map_fn(one_by_one, features, fn_output_signature=spec)
            logits = tf.cast(model(images, training=False), tf.float32)
            label = tf.argmax(logits, axis=1, output_type=tf.int64)
            return {"probabilities": tf.nn.softmax(logits), "label": label, "label_name": tf.gather(names, label)}

        specs = {name: tf.TensorSpec(*_INPUTS[name][1:], name=name) for name in inputs}
        return tf.function(predict).get_concrete_function(**specs)

    def decode(stored: StoredImages, features: _Features) -> tf.Tensor:
        if config.augment == "none":
            return decode_whole(features, stored, config.size, config)
        return decode_for_host(features, None, stored, config)[0]

    def crop(features: _Features) -> tf.Tensor:
        if config.augment == "none":
            return features["image"]
        height, width = (tf.cast(features[name], tf.int32) for name in (IMAGE_HEIGHT, IMAGE_WIDTH))
        return crop_for_host(features["image"], (height, width), None, config)[0]

    # What the form promises for every record. The first bytes of a record tell its format.
    size = None if form.square is None else (form.square, form.square)
    stored = StoredImages(frozenset(("RAW",) if form.encoding == "raw" else ()), size, form.resize_short)
    signatures = {
        "serving_default": make_signature(partial(decode, StoredImages()), "image_bytes"),
        "records": make_signature(partial(decode, stored), "image_bytes", "height", "width"),
        "images": make_signature(crop, "images", "height", "width"),
    }
    notes = {"version": NOTES_VERSION, "tfpipe": __version__, "image_size": config.size, "form": form.to_json()}
    files = {LABELS: "".join(f"{name}\n" for name in label_names), NOTES: json.dumps(notes, indent=2) + "\n"}
    try:
        if file_io.exists(program := file_io.join(directory, PROGRAM)):
            file_io.remove(program)  # first, and TensorFlow writes it last: without it a folder is not a model
        if tf.io.gfile.exists(directory):
            tf.io.gfile.rmtree(directory)
        tf.io.gfile.makedirs(directory)
        for name, text in files.items():
            file_io.write_file(file_io.join(directory, name), text.encode())
        tf.saved_model.save(module, directory, signatures=signatures)
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"The model cannot be written to {directory}: {first_line(error)}.") from error
