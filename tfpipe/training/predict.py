"""Image files through an exported model, as the images of its dataset went through `tfpipe shard`.

Each file is first brought into the form in which the dataset's images are stored: turned upright, composited, of
8 bits, reduced or squeezed. The model then gets it as a record. So a file of the dataset gives what its record gave
in evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.errors import ConfigError, FormatError, TfpipeError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.system import file_io
from tfpipe.training import export
from tfpipe.training.run_dir import MODEL, RUN

_MAX_NOTES_BYTES = 1 << 20
_MAX_LABELS_BYTES = 1 << 28
_MAX_IMAGE_BYTES = 1 << 31


@dataclass(frozen=True)
class Guess:
    """One class, and how sure the model is of it.

    Attributes:
      label: Its number.
      label_name: Its name.
      probability: 0 to 1; those of all classes sum to 1.
    """

    label: int
    label_name: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What the model says of one file.

    Attributes:
      file: Its path.
      top: The likeliest classes, the likeliest first.
    """

    file: str
    top: tuple[Guess, ...]


@dataclass(frozen=True)
class Unreadable:
    """A file that gives no prediction.

    Attributes:
      file: Its path.
      reason: Why, without its path.
    """

    file: str
    reason: str


class Classifier:
    """An exported model, loaded.

    Attributes:
      directory: Of the SavedModel.
      label_names: Of all classes.
    """

    def __init__(self, path: str) -> None:
        """Loads it.

        Args:
          path: The folder of a run of `tfpipe train`, or a SavedModel that `export_model` wrote; it may be a URL.

        Raises:
          ConfigError: There is no such model.
          DataError: It cannot be read.
          FormatError: It is damaged, or from a newer tfpipe.
        """
        self.directory = find_model(path)
        self._form = _read_form(self.directory)
        names = _read(file_io.join(self.directory, export.LABELS_FILE), _MAX_LABELS_BYTES)
        self.label_names = tuple(names.decode().removesuffix("\n").split("\n"))
        try:
            self._model = tf.saved_model.load(self.directory)
            self._function = self._model.signatures[export.RECORDS]
        except (OSError, ValueError, KeyError, RuntimeError, tf.errors.OpError) as error:
            raise FormatError(f"The model in {self.directory} is damaged: {first_line(error)}.") from error

    def classify(self, files: Iterable[str], batch_size: int, top: int) -> Iterator[Prediction | Unreadable]:
        """Reads and classifies files, in their order.

        Args:
          files: Paths or URLs.
          batch_size: Images that go through the model at once; as many are in memory.
          top: How many classes to name; no more than there are.
        """
        waiting: list[Unreadable | tuple[str, PreparedImage]] = []
        images = 0
        for file in files:
            waiting.append(self._prepare(file))
            images += isinstance(waiting[-1], tuple)
            if images == batch_size:
                yield from self._flush(waiting, top)
                waiting, images = [], 0
        yield from self._flush(waiting, top)

    def _prepare(self, file: str) -> Unreadable | tuple[str, PreparedImage]:
        try:
            return file, prepare_image(file_io.read_bytes(file, _MAX_IMAGE_BYTES), self._form, filename=file)
        except BadImage as error:
            return Unreadable(file, error.reason)
        except FileNotFoundError:
            return Unreadable(file, "no such file")
        except TfpipeError as error:
            return Unreadable(file, str(error).removeprefix(f"{file} ").rstrip("."))

    def _flush(
        self, waiting: list[Unreadable | tuple[str, PreparedImage]], top: int
    ) -> Iterator[Prediction | Unreadable]:
        images = [one[1] for one in waiting if isinstance(one, tuple)]
        found = iter(self._guess(images, top) if images else ())
        for one in waiting:
            yield one if isinstance(one, Unreadable) else Prediction(one[0], next(found))

    def _guess(self, images: list[PreparedImage], top: int) -> list[tuple[Guess, ...]]:
        given: dict[str, Any] = self._function(
            image_bytes=tf.constant([image.encoded for image in images]),
            height=tf.constant([image.height for image in images], tf.int64),
            width=tf.constant([image.width for image in images], tf.int64),
        )
        rows = given["probabilities"].numpy()
        order = np.argsort(-rows, axis=1, kind="stable")[:, :top]  # of equal ones the first, as in the model
        return [
            tuple(Guess(int(k), self.label_names[k], float(row[k])) for k in best)
            for row, best in zip(rows, order, strict=True)
        ]


def find_model(path: str) -> str:
    """The SavedModel of a run, or the path itself where it is one.

    Raises:
      ConfigError: There is none.
      DataError: The place cannot be asked.
    """
    for directory in (path, file_io.join(path, MODEL)):
        if export.has_model(directory):
            return directory
    if tf.io.gfile.exists(file_io.join(path, RUN)):
        raise ConfigError(
            f"{path} has no model yet. Run the same `tfpipe train` command again: it goes on, and exports one in the "
            "end."
        )
    what = "holds no run of `tfpipe train`, and no model" if tf.io.gfile.exists(path) else "does not exist"
    raise ConfigError(f"RUN must be the folder of a run of `tfpipe train`, or of a model from one; {path} {what}.")


def _read_form(directory: str) -> ImageForm:
    """How the dataset's images are stored."""
    path = file_io.join(directory, export.NOTES_FILE)
    text = _read(path, _MAX_NOTES_BYTES)
    try:
        notes = json.loads(text)
        version, form = notes["version"], dict(notes["form"])
    except (ValueError, TypeError, KeyError):
        raise FormatError(f"{path} is damaged. Export the model again.") from None
    if version != export.NOTES_VERSION:
        raise FormatError(f"{path} has version {version}, and this tfpipe reads {export.NOTES_VERSION}.")
    return ImageForm.recorded(form)


def _read(path: str, max_bytes: int) -> bytes:
    try:
        return file_io.read_bytes(path, max_bytes)
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: it is no model that tfpipe exported, or not all of it.") from None
