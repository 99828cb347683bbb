"""Writes a trained model as a SavedModel that takes image files, with the preprocessing inside, and for TFLite.

The signature `serving_default` takes `image_bytes`, files of any sizes in JPEG, PNG, GIF or BMP; `records` takes those
of the dataset's records, with `height` and `width`. Both contain the functions of the evaluation pipeline, so the
prediction for a record equals that of the evaluation. TensorFlow's decoders ignore an EXIF rotation and drop alpha.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import StoredImages
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.pipeline import stages
from tfpipe.pipeline.build import build_stages
from tfpipe.storage import file_io
from tfpipe.training.config import TrainConfig
from tfpipe.training.models import BuildModel, build_model
from tfpipe.training.run_dir import LABELS, MODEL, NOTES, NOTES_VERSION, PROGRAM, RunDir


def export_models(
    folder: RunDir, manifest: Manifest, config: TrainConfig, weights: Sequence[NDArray[Any]], build: BuildModel | None
) -> None:
    """Writes those models of a run that are not there yet: the SavedModel, and with `config.tflite` that for TFLite."""
    pipeline, names = config.evaluation_pipeline, manifest.label_names

    def copy_model() -> tf.keras.Model:
        model = build_model(config.model, len(names), pipeline, build)  # outside the strategy and its devices
        model.set_weights(weights)
        return model

    if not file_io.exists(folder.file(f"{MODEL}/{PROGRAM}")):
        form = ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()
        export_model(copy_model(), pipeline, names, folder.file(MODEL), form)
    path = folder.file(f"{MODEL}-int8.tflite")
    if config.tflite and not file_io.exists(path):
        tf.keras.mixed_precision.set_global_policy("float32")  # TFLite has no bfloat16
        examples = build_stages(manifest, config.split, pipeline).dataset().unbatch().filter(lambda one: one["mask"])
        images = [one["image"].numpy() for one in examples.take(256)]
        export_tflite(copy_model(), pipeline, images, path)


def export_model(
    model: tf.keras.Model, config: PipelineConfig, label_names: Sequence[str], directory: str, form: ImageForm
) -> None:
    """Writes a model with the preprocessing of an evaluation pipeline, for a dataset whose images have a form."""
    module, names = tf.Module(), tf.constant(list(label_names), tf.string)
    module.model = model
    spec = tf.TensorSpec([*config.size, 3], tf.as_dtype(config.image_dtype))

    def make_signature(stored: StoredImages, inputs: dict[str, tf.DType]) -> Any:
        def prepare(given: dict[str, tf.Tensor]) -> tf.Tensor:
            features = {"encoded": given["image_bytes"], **given}
            if config.augment == "none":
                size = stages.read_image_size(features, stored)
                crop_box = tf.stack([0, 0, *size])
            else:
                crop_box, _, size = stages.find_crop(features, None, stored, config)
            image = decode_reduced(features["encoded"], crop_box, size, stored, config)
            return stages.augment_on_host(image, None, config)

        def predict(**given: tf.Tensor) -> dict[str, tf.Tensor]:
            with tf.device("CPU"):  # as in the pipeline, even if the model has a GPU
                # AutoGraph would take longer than all else. Images differ in size, so they are prepared one by one.
                one_by_one = tf.autograph.experimental.do_not_convert(prepare)
                images = tf.map_fn(one_by_one, given, fn_output_signature=spec)
            logits = tf.cast(model(images, training=False), tf.float32)
            label = tf.argmax(logits, axis=1, output_type=tf.int64)
            return {"probabilities": tf.nn.softmax(logits), "label": label, "label_name": tf.gather(names, label)}

        specs = {name: tf.TensorSpec([None], dtype, name) for name, dtype in inputs.items()}
        return tf.function(predict).get_concrete_function(**specs)

    # The form may fix the size of all images, or say that all are raw; else an image's first bytes tell its format.
    size = None if form.square is None else (form.square, form.square)
    stored = StoredImages(frozenset(("RAW",) if form.encoding == "raw" else ()), size)
    file, sizes = {"image_bytes": tf.string}, {"height": tf.int64, "width": tf.int64}
    of_records = make_signature(stored, file | sizes)
    signatures = {"serving_default": make_signature(StoredImages(), file), "records": of_records}
    notes = {"version": NOTES_VERSION, "tfpipe": __version__, "image_size": config.size, "form": form.to_json()}
    files = {LABELS: "".join(f"{name}\n" for name in label_names), NOTES: json.dumps(notes, indent=2) + "\n"}
    try:
        if file_io.exists(program := file_io.join(directory, PROGRAM)):
            file_io.remove(program)  # first, and TensorFlow writes it last: without it a folder is not a model
        tf.io.gfile.makedirs(directory)
        for name, text in files.items():
            file_io.write_file(file_io.join(directory, name), text.encode("utf-8", "surrogateescape"))
        tf.saved_model.save(module, directory, signatures=signatures)
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"The model cannot be written to {directory}: {first_line(error)}.") from error


def decode_reduced(
    encoded: tf.Tensor, crop_box: tf.Tensor, size: stages.Extent, stored: StoredImages, config: PipelineConfig
) -> tf.Tensor:
    """Decodes a crop as the engine does: a JPEG at 1/2, 1/4 or 1/8 of its size if the crop is so much larger."""
    if "RAW" in stored.formats:
        return stages.crop(stages.decode_image(encoded, stored), crop_box)
    ratios = (1,) if config.augment_options.dct_scaling is False else (1, 2, 4, 8)
    begin, extent = tf.split(crop_box, 2)
    bounds = np.multiply.outer(ratios[1:], config.size).astype(np.int32)
    # Ratios rise, so the number of ratios for which the box is large enough is the index of the branch.
    branch = tf.reduce_sum(tf.cast(tf.reduce_all(extent >= bounds, axis=1), tf.int32))
    ratio = tf.bitwise.left_shift(1, branch)
    # The sides of the reduced image are rounded up, so a box that is rounded to the nearest stays inside.
    near, far = (begin + ratio // 2) // ratio, (begin + extent + ratio // 2) // ratio
    box, width = tf.concat([near, far - near], 0), (size[1] + ratio - 1) // ratio
    decoders = [lambda r=r: stages.decode_jpeg_crop(encoded, box, width, r) for r in ratios]
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.switch_case(branch, decoders),
        lambda: stages.crop(stages.decode_image(encoded, stored), crop_box),
    )


def export_tflite(model: tf.keras.Model, config: PipelineConfig, images: Iterable[NDArray[Any]], path: str) -> None:
    """Converts a float32 model to TFLite in 8 bits; typical images show the range of each layer's values."""
    spec = tf.TensorSpec([1, *config.size, 3], tf.uint8 if config.image_dtype == "uint8" else tf.float32, name="image")
    samples = [np.asarray(image, spec.dtype.as_numpy_dtype)[None] for image in images]
    with tempfile.TemporaryDirectory() as saved:
        try:
            model.export(saved, verbose=False, input_signature=[spec])
            converter = tf.lite.TFLiteConverter.from_saved_model(saved)
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.representative_dataset = lambda: ([sample] for sample in samples)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            data = converter.convert()
        except Exception as error:  # the converter does not document its errors
            raise ConfigError(f"The model cannot be converted to TFLite: {first_line(error)}.") from error
    with file_io.explain_os_errors(f"write {path}"):
        file_io.write_file(path, data)
