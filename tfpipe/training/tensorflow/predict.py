"""Classifies image files with an exported model.

    classifier = Classifier("runs/flowers")
    for prediction in classifier.classify(["rose.jpg"], batch_size=32, top=3):
        print(prediction)

Each file is first brought into the form in which the dataset's images are stored, as `tfpipe shard` does it: turned
upright, composited, in 8 bits, reduced or squeezed. The model then gets it as a record. So the prediction for a file
of the dataset equals that for its record in evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.errors import ConfigError, FormatError, TfpipeError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.system import file_io
from tfpipe.training.model_files import LABELS_FILE, NOTES_FILE, NOTES_VERSION, PROGRAMS
from tfpipe.training.run_dir import MODEL, RUN
from tfpipe.training.tensorflow import export

_MAX_NOTES_BYTES = 1 << 20
_MAX_LABELS_BYTES = 1 << 28
_MAX_IMAGE_BYTES = 1 << 31


@dataclass(frozen=True)
class Guess:
    """A class that an image may have.

    Attributes:
        label: The number of the class.
        label_name: The name of the class.
        probability: The probability of the class, 0 to 1. The sum over all classes is 1.
    """

    label: int
    label_name: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The prediction for one file.

    Attributes:
        file: The path of the file.
        top: The most probable classes, the most probable first.
    """

    file: str
    top: tuple[Guess, ...]


@dataclass(frozen=True)
class Unreadable:
    """A file that gives no prediction.

    Attributes:
        file: The path of the file.
        reason: The reason, without the path.
    """

    file: str
    reason: str


@dataclass(frozen=True)
class _PreparedFile:
    """A file in the form of the dataset's images.

    Attributes:
        file: The path of the file.
        image: The image that the model gets.
    """

    file: str
    image: PreparedImage


class Classifier:
    """A loaded model.

    Attributes:
        directory: The folder of the SavedModel.
        label_names: The names of all classes.
    """

    def __init__(self, path: str) -> None:
        """Loads an exported model.

        Args:
            path: The folder of a run of `tfpipe train`, or a SavedModel from `export_model`; it may be a URL.

        Raises:
            ConfigError: There is no such model.
            DataError: The model cannot be read.
            FormatError: The model is damaged, or it comes from a newer tfpipe.
        """
        self.directory = find_model(path)
        self._form = _read_form(self.directory)
        names = _read(file_io.join(self.directory, LABELS_FILE), _MAX_LABELS_BYTES)
        self.label_names = tuple(names.decode().removesuffix("\n").split("\n"))
        try:
            self._model = tf.saved_model.load(self.directory)
            self._function = self._model.signatures[export.RECORDS]
        except (OSError, ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
            raise FormatError(f"The model in {self.directory} is damaged: {first_line(error)}.") from error

    def classify(self, files: Iterable[str], batch_size: int, top: int) -> Iterator[Prediction | Unreadable]:
        """Reads files, and yields the prediction for each, in their order.

        Args:
            files: Paths or URLs.
            batch_size: The number of images that go through the model at once, and that are in memory.
            top: The number of classes to name. A smaller number of classes names them all.
        """
        batch: list[Unreadable | _PreparedFile] = []
        num_images = 0
        for file in files:
            batch.append(self._prepare(file))
            num_images += isinstance(batch[-1], _PreparedFile)
            if num_images == batch_size:
                yield from self._classify_batch(batch, top)
                batch, num_images = [], 0
        yield from self._classify_batch(batch, top)

    def _prepare(self, file: str) -> Unreadable | _PreparedFile:
        try:
            data = file_io.read_bytes(file, _MAX_IMAGE_BYTES)
            return _PreparedFile(file, prepare_image(data, self._form, filename=file))
        except BadImage as error:
            return Unreadable(file, error.reason)
        except FileNotFoundError:
            return Unreadable(file, "no such file")
        except TfpipeError as error:
            return Unreadable(file, str(error).removeprefix(f"{file} ").rstrip("."))

    def _classify_batch(
        self, batch: Sequence[Unreadable | _PreparedFile], top: int
    ) -> Iterator[Prediction | Unreadable]:
        images = [entry.image for entry in batch if isinstance(entry, _PreparedFile)]
        guesses = iter(self._guess(images, top) if images else ())
        for entry in batch:
            yield entry if isinstance(entry, Unreadable) else Prediction(entry.file, next(guesses))

    def _guess(self, images: list[PreparedImage], top: int) -> list[tuple[Guess, ...]]:
        outputs: dict[str, Any] = self._function(
            image_bytes=tf.constant([image.encoded for image in images]),
            height=tf.constant([image.height for image in images], tf.int64),
            width=tf.constant([image.width for image in images], tf.int64),
        )
        probabilities = outputs["probabilities"].numpy()
        # A stable sort prefers the lower one of equally probable labels, as the model does.
        top_labels = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        return [
            tuple(Guess(int(label), self.label_names[label], float(row[label])) for label in labels)
            for row, labels in zip(probabilities, top_labels, strict=True)
        ]


def find_model(path: str) -> str:
    """Returns the folder of a run's SavedModel, or the path itself where it is a SavedModel.

    Raises:
        ConfigError: There is no model.
        DataError: The folder cannot be read.
    """
    for directory in (path, file_io.join(path, MODEL)):
        if export.has_model(directory):
            return directory
    if other := next((name for name in PROGRAMS.values() if file_io.exists(file_io.join(path, MODEL, name))), None):
        raise ConfigError(
            f"`tfpipe predict` needs a model of TensorFlow, got {path}/{MODEL}/{other}. Open it with "
            "torch.export.load or jax.export.deserialize."
        )
    if tf.io.gfile.exists(file_io.join(path, RUN)):
        raise ConfigError(
            f"{path} has no model yet. Run the same `tfpipe train` command again: it goes on, and exports one in the "
            "end."
        )
    state = "holds neither" if tf.io.gfile.exists(path) else "does not exist"
    raise ConfigError(f"{path} must be the folder of a run of `tfpipe train`, or a model from one, and {state}.")


def _read_form(directory: str) -> ImageForm:
    """Reads the form in which the dataset's images are stored."""
    path = file_io.join(directory, NOTES_FILE)
    text = _read(path, _MAX_NOTES_BYTES)
    try:
        notes = json.loads(text)
        version, form = notes["version"], dict(notes["form"])
    except (ValueError, TypeError, KeyError):
        raise FormatError(f"{path} is damaged. Export the model again.") from None
    if version != NOTES_VERSION:
        raise FormatError(f"{path} has version {version}, and this tfpipe reads {NOTES_VERSION}.")
    return ImageForm.recorded(form)


def _read(path: str, max_bytes: int) -> bytes:
    try:
        return file_io.read_bytes(path, max_bytes)
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing. Name a complete model that tfpipe exported.") from None
