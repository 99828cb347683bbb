"""Writes a trained model as a SavedModel that takes image files, with the preprocessing inside.

```
RUN/model/
  saved_model.pb, variables/   opened by `tf.saved_model.load` and TensorFlow Serving, with plain TensorFlow
  labels.txt                   names of classes, one on each line, in the order of their numbers
  tfpipe.json                  for `tfpipe predict`: how the dataset's images were stored
```

There are three signatures, which take a batch of any size. Each returns `probabilities`, float32 [batch, classes],
`label`, int64 [batch], and `label_name`, string [batch].

- `serving_default` takes `image_bytes`, string [batch]: image files of any sizes, JPEG, PNG, GIF or BMP.
- `records` takes `image_bytes`, string [batch], and `height` and `width`, int64 [batch]: the features `image/encoded`,
  `image/height` and `image/width` of the dataset's records. The records may be raw ones and squeezed ones.
- `images` takes `images`, uint8 [batch, height, width, 3], decoded whole, and `height` and `width`, int64 [batch]: the
  size of the originals, which is the size of the images unless they were squeezed.

The model contains the functions of the evaluation pipeline. So a record's prediction equals that of `build_dataset`
with `training=False` and the model, to the bit where batches and devices are the same. The prediction for a file is
the same where `tfpipe shard` stores its bytes unchanged: most JPEGs and PNGs, also gray ones and palettes. Other files
are read by TensorFlow's decoders: an EXIF rotation is ignored, alpha is dropped and not composited, 16 bits and CMYK
are converted by other formulas. A file is not reduced or squeezed first where the dataset's images were: the same part
of it is resized once. `tfpipe predict` prepares files as `tfpipe shard` does, and has no such differences.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.stored_images import StoredImages
from tfpipe.errors import ConfigError, DataError, FormatError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import IMAGE_ENCODED, IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.images.normalize import PreparedImage
from tfpipe.pipeline.stages.augment import augment_on_host, crop_for_host
from tfpipe.pipeline.stages.decode import decode_for_host, decode_whole
from tfpipe.storage import file_io
from tfpipe.training.model_files import PROGRAM, encode_notes

if TYPE_CHECKING:
    import keras  # type: ignore[import-untyped]

FILES, RECORDS, IMAGES = "serving_default", "records", "images"
"""The names of the signatures."""

_MODEL_FILE = PROGRAM
_NEW, _OLD = ".tfpipe-new", ".tfpipe-old"

_Features = Mapping[str, tf.Tensor]

_INPUTS = {
    "image_bytes": (IMAGE_ENCODED, [None], tf.string),
    "images": ("image", [None, None, None, 3], tf.uint8),
    "height": (IMAGE_HEIGHT, [None], tf.int64),
    "width": (IMAGE_WIDTH, [None], tf.int64),
}
"""The feature, the shape and the dtype of each input of a signature."""


def export_model(
    model: keras.Model,
    config: PipelineConfig,
    label_names: Sequence[str],
    directory: str,
    form: ImageForm | None = None,
) -> None:
    """Writes the SavedModel. It appears under its name when it is complete, in place of an earlier one.

    Args:
        model: A model from the image batches of the evaluation pipeline to logits of shape [batch, classes].
        config: The options of the evaluation pipeline.
        label_names: The names of all classes.
        directory: A local folder, or a URL that `tf.io.gfile` can write to.
        form: The form in which the dataset stores its images, `ImageForm.recorded(manifest.image)`. None stands for
            the default form.

    Raises:
        ConfigError: `config` is for training or leaves the crop to the device, or the number of names is not the
            number of the model's classes.
        DataError: The model cannot be written.
    """
    form = form or ImageForm()
    if config.training:
        raise ConfigError("`training` must be False to export a model, got True. Use the options of its evaluation.")
    if config.augment == "device":
        raise ConfigError("`augment` must not be device to export a model, which contains the crop. Set it to host.")
    served = ServedModel(model, config, label_names, form)
    signatures = served.signatures()
    try:
        with _replace_directory(directory) as folder:
            tf.saved_model.save(served, folder, signatures=signatures)
            for name, data in encode_notes(config, label_names, form).items():
                file_io.write_file(file_io.join(folder, name), data)
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"The model cannot be written to {directory}: {first_line(error)}.") from error


def load_model(directory: str) -> Callable[[Sequence[PreparedImage]], NDArray[np.float32]]:
    """Returns the function of a SavedModel that computes the probabilities of all classes for some images.

    Raises:
        FormatError: The model is damaged.
    """
    try:
        model = tf.saved_model.load(directory)
        model.signatures[RECORDS]
    except (OSError, ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
        raise FormatError(f"The model in {directory} is damaged: {first_line(error)}.") from error

    def run(images: Sequence[PreparedImage]) -> NDArray[np.float32]:
        outputs: dict[str, Any] = model.signatures[RECORDS](
            image_bytes=tf.constant([image.encoded for image in images]),
            height=tf.constant([image.height for image in images], tf.int64),
            width=tf.constant([image.width for image in images], tf.int64),
        )
        probabilities: NDArray[np.float32] = outputs["probabilities"].numpy()
        return probabilities

    return run


class ServedModel(tf.Module):  # type: ignore[misc]
    """A model with the preprocessing of its evaluation in front."""

    def __init__(self, model: keras.Model, config: PipelineConfig, label_names: Sequence[str], form: ImageForm) -> None:
        """Stores the model and its options; the arguments are those of `export_model`."""
        super().__init__(name="served_model")
        self.model = model
        self._config, self._form = config, form
        self._label_names = tf.constant(list(label_names), tf.string)

    def signatures(self) -> dict[str, Any]:
        """Returns the functions to save, by name.

        Raises:
            ConfigError: The number of names is not the number of the model's classes.
        """
        traced = {
            FILES: self._trace(self._decode_file, "image_bytes"),
            RECORDS: self._trace(self._decode_record, "image_bytes", "height", "width"),
            IMAGES: self._trace(self._crop_decoded, "images", "height", "width"),
        }
        shape, num_names = traced[FILES].structured_outputs["probabilities"].shape, self._label_names.shape[0]
        if shape.rank != 2 or shape[1] != num_names:
            raise ConfigError(f"The model must give one logit for each of the {num_names} names, got {shape}.")
        return traced

    def _trace(self, preprocess: Callable[[_Features], tf.Tensor], *inputs: str) -> Any:
        """Returns the function of a signature, whose inputs have these names."""

        def predict(**given: tf.Tensor) -> _Features:
            return self._predict({_INPUTS[name][0]: tensor for name, tensor in given.items()}, preprocess)

        return tf.function(predict).get_concrete_function(
            **{name: tf.TensorSpec(*_INPUTS[name][1:], name=name) for name in inputs}
        )

    def _predict(self, features: _Features, preprocess: Callable[[_Features], tf.Tensor]) -> _Features:
        """Prepares images one by one, since they differ in size, and runs the model on the batch."""
        spec = tf.TensorSpec([*self._config.size, 3], tf.as_dtype(self._config.image_dtype))
        with tf.device("CPU"):  # as in the pipeline, even if the model has a GPU
            # AutoGraph would take longer than all else, for functions that do not branch in Python on a tensor.
            images = tf.map_fn(tf.autograph.experimental.do_not_convert(preprocess), features, fn_output_signature=spec)
        logits = tf.cast(self.model(images, training=False), tf.float32)
        label = tf.argmax(logits, axis=1, output_type=tf.int64)
        names = tf.gather(self._label_names, label)
        return {"probabilities": tf.nn.softmax(logits), "label": label, "label_name": names}

    def _decode_file(self, features: _Features) -> tf.Tensor:
        """Decodes a file of any size and any format."""
        return self._decode(features, StoredImages())

    def _decode_record(self, features: _Features) -> tf.Tensor:
        return self._decode(features, _describe_stored_images(self._form))

    def _decode(self, features: _Features, stored: StoredImages) -> tf.Tensor:
        """Decodes and augments a record as the stages `decode` and `augment` do in evaluation."""
        if self._config.augment == "none":
            image = decode_whole(features, stored, self._config.size, self._config)
        else:
            image, _, _ = decode_for_host(features, None, stored, self._config)
        return augment_on_host(image, None, self._config)

    def _crop_decoded(self, features: _Features) -> tf.Tensor:
        """Augments a whole decoded image as the stage `augment` does."""
        config, image = self._config, features["image"]
        if config.augment == "host":
            height, width = (tf.cast(features[name], tf.int32) for name in (IMAGE_HEIGHT, IMAGE_WIDTH))
            image, _, _ = crop_for_host(image, (height, width), None, config)
        return augment_on_host(image, None, config)


def _describe_stored_images(form: ImageForm) -> StoredImages:
    """Returns the facts that a form promises for every record. The first bytes of a record tell its format."""
    size = None if form.square is None else (form.square, form.square)
    formats = frozenset(("RAW",)) if form.encoding == "raw" else frozenset[str]()
    return StoredImages(formats, size, form.resize_short)


@contextlib.contextmanager
def _replace_directory(directory: str) -> Iterator[str]:
    """Yields a new folder, which takes the place of `directory` when the block ends without an error."""
    directory = directory.rstrip("/")
    folder, old = directory + _NEW, directory + _OLD
    if os.path.exists(old) and not os.path.exists(directory):  # a process was killed between the two renames below
        os.rename(old, directory)
    for remains in (folder, old):
        if tf.io.gfile.exists(remains):
            tf.io.gfile.rmtree(remains)
    tf.io.gfile.makedirs(folder)
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError, tf.errors.OpError):
            tf.io.gfile.rmtree(folder)
        raise
    if file_io.is_url(directory):
        _move_objects(folder, directory)
        return
    if os.path.exists(directory):
        os.rename(directory, old)
    os.rename(folder, directory)
    if os.path.exists(old):
        tf.io.gfile.rmtree(old)


def _move_objects(source: str, target: str) -> None:
    """Moves a folder in an object store, which renames objects one by one.

    `saved_model.pb` comes last, because a folder without it is not a model.
    """
    if tf.io.gfile.exists(file_io.join(target, _MODEL_FILE)):
        tf.io.gfile.remove(file_io.join(target, _MODEL_FILE))
    files = [
        file_io.join(folder, name)[len(source) + 1 :] for folder, _, names in tf.io.gfile.walk(source) for name in names
    ]
    for name in sorted(files, key=lambda name: name == _MODEL_FILE):
        tf.io.gfile.makedirs(file_io.join(target, name).rpartition("/")[0])
        tf.io.gfile.rename(file_io.join(source, name), file_io.join(target, name), overwrite=True)
    with contextlib.suppress(tf.errors.NotFoundError):  # a folder without objects does not exist
        tf.io.gfile.rmtree(source)
