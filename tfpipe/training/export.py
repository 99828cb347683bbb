"""A trained model as a SavedModel that takes image files: preprocessing inside, names of classes with it.

```
RUN/model/
  saved_model.pb, variables/   opened by `tf.saved_model.load` and TensorFlow Serving, with plain TensorFlow
  labels.txt                   names of classes, one a line, in the order of their numbers
  tfpipe.json                  for `tfpipe predict`: how the dataset's images were stored
```

Three signatures, all with a batch of any size, give `probabilities`, float32 [batch, classes], `label`, int64 [batch],
and `label_name`, string [batch]:

- `serving_default`: `image_bytes`, string [batch], image files of any sizes: JPEG, PNG, GIF or BMP.
- `records`: `image_bytes`, string [batch], `height` and `width`, int64 [batch]: the features `image/encoded`,
  `image/height` and `image/width` of the dataset's records, also raw ones and squeezed ones.
- `images`: `images`, uint8 [batch, height, width, 3], decoded whole; `height` and `width`, int64 [batch], of the
  originals, which are the images' own where nothing was squeezed.

Inside run the functions of the evaluation pipeline. So a record's prediction is that of `build_dataset` with
`training=False` and the model, to the bit where batches and devices are the same. A file gives the same where
`tfpipe shard` stores its bytes as they are: most JPEGs and PNGs, grey ones and palettes among them. What it would have
changed, TensorFlow's decoders read in their own way: an EXIF turn is not obeyed, alpha is dropped and not composited,
16 bits and CMYK are converted by other formulas. Neither is a file reduced or squeezed first where the
dataset's images were: the same part of it is resized once. `tfpipe predict` prepares files as `tfpipe shard` does, and
so has no such differences.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfpipe._version import __version__
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import IMAGE_ENCODED, IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.stored_images import StoredImages
from tfpipe.pipeline.stages.augment import augment_on_host, crop_for_host
from tfpipe.pipeline.stages.decode import decode_for_host, decode_whole
from tfpipe.system import file_io

if TYPE_CHECKING:
    import keras  # type: ignore[import-untyped]

FILES, RECORDS, IMAGES = "serving_default", "records", "images"
"""Names of the signatures."""

LABELS_FILE = "labels.txt"
NOTES_FILE = "tfpipe.json"
NOTES_VERSION = 1
_MODEL_FILE = "saved_model.pb"
_NEW, _OLD = ".tfpipe-new", ".tfpipe-old"

_Features = Mapping[str, tf.Tensor]


def export_model(
    model: keras.Model,
    config: PipelineConfig,
    label_names: Sequence[str],
    directory: str,
    form: ImageForm | None = None,
) -> None:
    """Writes the SavedModel; it appears under its name when it is whole, in place of an earlier one.

    Args:
      model: Takes what the evaluation pipeline of `config` yields as a batch of images, and gives logits of shape
        [batch, classes].
      config: Of the evaluation; `image_size`, `augment` and what shapes the pixels are used.
      label_names: Of all classes.
      directory: A local folder, or a URL that `tf.io.gfile` can write to.
      form: How the dataset's images are stored, `ImageForm.recorded(manifest.image)`; the default where None.

    Raises:
      ConfigError: `config` is for training or leaves the crop to the device, or there are not as many names as the
        model has classes.
      DataError: It cannot be written.
    """
    form = form or ImageForm()
    if config.training:
        raise ConfigError("A model is exported with the config of its evaluation, got `training` true. Set it off.")
    if config.augment == "device":
        raise ConfigError(
            "A model is exported with the crop in its preprocessing, got `augment` device. Set it to host."
        )
    served = ServedModel(model, config, label_names, form)
    signatures = served.signatures()
    notes = {
        "version": NOTES_VERSION,
        "tfpipe": __version__,
        "image_size": list(config.size),
        "classes": len(label_names),
        "form": asdict(form),
    }
    try:
        with _new_directory(directory) as folder:
            tf.saved_model.save(served, folder, signatures=signatures)
            names = "".join(f"{name}\n" for name in label_names)
            for name, text in ((LABELS_FILE, names), (NOTES_FILE, json.dumps(notes, indent=2) + "\n")):
                with tf.io.gfile.GFile(file_io.join(folder, name), "wb") as file:
                    file.write(text.encode())
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"The model cannot be written to {directory}: {first_line(error)}.") from error


class ServedModel(tf.Module):  # type: ignore[misc]
    """A model behind the preprocessing of its evaluation.

    Args:
      model, config, label_names, form: As in `export_model`.
    """

    def __init__(self, model: keras.Model, config: PipelineConfig, label_names: Sequence[str], form: ImageForm) -> None:
        super().__init__(name="served_model")
        self.model = model
        self._config, self._form = config, form
        self._label_names = tf.constant(list(label_names), tf.string)

    def signatures(self) -> dict[str, Any]:
        """The functions to save, by name.

        Raises:
          ConfigError: There are not as many names as the model has classes.
        """
        strings, sizes = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)
        pixels = tf.TensorSpec([None, None, None, 3], tf.uint8)
        functions = {
            FILES: tf.function(lambda image_bytes: self._predict({IMAGE_ENCODED: image_bytes}, self._decode_file)),
            RECORDS: tf.function(
                lambda image_bytes, height, width: self._predict(
                    {IMAGE_ENCODED: image_bytes, IMAGE_HEIGHT: height, IMAGE_WIDTH: width}, self._decode_record
                )
            ),
            IMAGES: tf.function(
                lambda images, height, width: self._predict(
                    {"image": images, IMAGE_HEIGHT: height, IMAGE_WIDTH: width}, self._crop_decoded
                )
            ),
        }
        takes = {FILES: {"image_bytes": strings}, RECORDS: {"image_bytes": strings}, IMAGES: {"images": pixels}}
        takes[RECORDS] |= {"height": sizes, "width": sizes}
        takes[IMAGES] |= {"height": sizes, "width": sizes}
        # From here on each takes just this, with the arguments' names as those of the signature's inputs.
        traced = {
            name: function.get_concrete_function(
                **{arg: tf.TensorSpec(spec.shape, spec.dtype, name=arg) for arg, spec in takes[name].items()}
            )
            for name, function in functions.items()
        }
        given, classes = traced[FILES].structured_outputs["probabilities"].shape, self._label_names.shape[0]
        if given.rank != 2 or given[1] != classes:
            raise ConfigError(f"The model must give one logit for each of the {classes} names, got {given}.")
        return traced

    def _predict(self, features: _Features, preprocess: Callable[[_Features], tf.Tensor]) -> _Features:
        """One by one, since images differ in size; then the batch through the model."""
        spec = tf.TensorSpec([*self._config.size, 3], tf.as_dtype(self._config.image_dtype))
        with tf.device("CPU"):  # as in the pipeline, also where the model has a GPU
            images = tf.map_fn(preprocess, features, fn_output_signature=spec)
        logits = tf.cast(self.model(images, training=False), tf.float32)
        label = tf.argmax(logits, axis=1, output_type=tf.int64)
        names = tf.gather(self._label_names, label)
        return {"probabilities": tf.nn.softmax(logits), "label": label, "label_name": names}

    def _decode_file(self, features: _Features) -> tf.Tensor:
        """Nothing is known of a file: it has its own size and any format."""
        return self._decode(features, StoredImages())

    def _decode_record(self, features: _Features) -> tf.Tensor:
        return self._decode(features, _stored(self._form))

    def _decode(self, features: _Features, stored: StoredImages) -> tf.Tensor:
        """What the stages `decode` and `augment` do to a record in evaluation."""
        if self._config.augment == "none":
            image = decode_whole(features, stored, self._config)
        else:
            image, _ = decode_for_host(features, None, stored, self._config)
        return augment_on_host(image, None, self._config)

    def _crop_decoded(self, features: _Features) -> tf.Tensor:
        """The same for a whole image that is decoded already."""
        config, image = self._config, features["image"]
        if config.augment == "host":
            height, width = (tf.cast(features[name], tf.int32) for name in (IMAGE_HEIGHT, IMAGE_WIDTH))
            image, _ = crop_for_host(image, (height, width), None, config)
        return augment_on_host(image, None, config)


def has_model(directory: str) -> bool:
    """Whether a whole SavedModel lies there.

    Raises:
      DataError: The place cannot be asked.
    """
    try:
        return bool(tf.io.gfile.exists(file_io.join(directory, _MODEL_FILE)))
    except tf.errors.OpError as error:
        raise DataError(f"{directory} cannot be read: {first_line(error)}.") from error


def _stored(form: ImageForm) -> StoredImages:
    """What the form promises of every record; a look at the first bytes tells formats apart."""
    size = None if form.square is None else (form.square, form.square)
    formats = frozenset(("RAW",)) if form.encoding == "raw" else frozenset[str]()
    return StoredImages(formats, size, form.resize_short)


@contextlib.contextmanager
def _new_directory(directory: str) -> Iterator[str]:
    """A folder to write to, that takes its name when the block ends well; what was there before is gone then."""
    directory = directory.rstrip("/")
    folder, old = directory + _NEW, directory + _OLD
    if os.path.exists(old) and not os.path.exists(directory):  # killed between the two renames below
        os.rename(old, directory)
    for left in (folder, old):
        if tf.io.gfile.exists(left):
            tf.io.gfile.rmtree(left)
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
    """On an object store, which renames one by one: without `saved_model.pb` there is no model, so it comes last."""
    if tf.io.gfile.exists(file_io.join(target, _MODEL_FILE)):
        tf.io.gfile.remove(file_io.join(target, _MODEL_FILE))
    files = [
        file_io.join(folder, name)[len(source) + 1 :] for folder, _, names in tf.io.gfile.walk(source) for name in names
    ]
    for name in sorted(files, key=lambda name: name == _MODEL_FILE):
        tf.io.gfile.makedirs(file_io.join(target, name).rpartition("/")[0])
        tf.io.gfile.rename(file_io.join(source, name), file_io.join(target, name), overwrite=True)
    with contextlib.suppress(tf.errors.NotFoundError):  # a folder without objects is none
        tf.io.gfile.rmtree(source)
