"""Classifies image files with an exported model of any framework.

    classifier = Classifier("runs/flowers")
    for prediction in classifier.classify(["rose.jpg"], batch_size=32, top=3):
        print(prediction)

Each file is first brought into the form in which the dataset's images are stored, as `tfpipe shard` does it: turned
upright, composited, in 8 bits, reduced or squeezed. A model of TensorFlow then gets it as a record, so the prediction
for a file of the dataset equals that for its record in evaluation. A model of PyTorch or JAX gets the pixels that the
evaluation shows it, rounded to whole levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.crops import center_boxes
from tfpipe.errors import TfpipeError
from tfpipe.images.decode import decode_crop, resize_crop
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.storage import file_io
from tfpipe.system.extras import check_installed
from tfpipe.training.model_files import (
    MAX_MODEL_BYTES,
    PROGRAMS,
    Notes,
    Program,
    find_model,
    read_labels,
    read_notes,
)

_MAX_IMAGE_BYTES = 1 << 31
_LIBRARIES = {"tensorflow": "TensorFlow", "torch": "PyTorch", "jax": "JAX"}
"""The module of each framework, which is also the extra that installs it, and its name."""


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


class Classifier:
    """A loaded model.

    Attributes:
        directory: The folder of the model.
        label_names: The names of all classes.
    """

    def __init__(self, path: str) -> None:
        """Loads an exported model.

        Args:
            path: The folder of a run of `tfpipe train`, or an exported model; it may be a URL.

        Raises:
            DataError: There is no such model, or it cannot be read.
            FormatError: The model is damaged, or it comes from a newer tfpipe.
            MissingDependencyError: The framework of the model is not installed.
        """
        self.directory, framework = find_model(path)
        check_installed(framework, f"The model in {self.directory}", _LIBRARIES[framework], f"tfpipe[{framework}]")
        notes = read_notes(self.directory)
        self._form, self.label_names = notes.form, read_labels(self.directory)
        if framework == "tensorflow":
            from tfpipe.training.tensorflow.export import load_model

            self._run = load_model(self.directory)
        else:
            self._run = partial(_run_on_pixels, _load_program(framework, self.directory), notes)

    def classify(self, files: Iterable[str], batch_size: int, top: int) -> Iterator[Prediction | Unreadable]:
        """Reads files, and yields the prediction for each, in their order.

        Args:
            files: Paths or URLs.
            batch_size: The number of images that go through the model at once, and that are in memory.
            top: The number of classes to name. A smaller number of classes names them all.
        """
        batch: list[str | Unreadable] = []
        images: list[PreparedImage] = []
        for file in files:
            prepared = self._prepare(file)
            if isinstance(prepared, PreparedImage):
                images.append(prepared)
            batch.append(prepared if isinstance(prepared, Unreadable) else file)
            if len(images) == batch_size:
                yield from self._classify_batch(batch, images, top)
                batch, images = [], []
        yield from self._classify_batch(batch, images, top)

    def _prepare(self, file: str) -> Unreadable | PreparedImage:
        """Brings a file into the form of the dataset's images."""
        try:
            return prepare_image(file_io.read_bytes(file, _MAX_IMAGE_BYTES), self._form, filename=file)
        except BadImage as error:
            return Unreadable(file, error.reason)
        except FileNotFoundError:
            return Unreadable(file, "no such file")
        except TfpipeError as error:
            return Unreadable(file, str(error).removeprefix(f"{file} ").rstrip("."))

    def _classify_batch(
        self, batch: Iterable[str | Unreadable], images: list[PreparedImage], top: int
    ) -> Iterator[Prediction | Unreadable]:
        guesses = iter(self._guess(images, top) if images else ())
        for entry in batch:
            yield entry if isinstance(entry, Unreadable) else Prediction(entry, next(guesses))

    def _guess(self, images: list[PreparedImage], top: int) -> list[tuple[Guess, ...]]:
        probabilities = self._run(images)
        # A stable sort prefers the lower one of equally probable labels, as the model does.
        top_labels = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        return [
            tuple(Guess(int(label), self.label_names[label], float(row[label])) for label in labels)
            for row, labels in zip(probabilities, top_labels, strict=True)
        ]


def _run_on_pixels(program: Program, notes: Notes, images: Sequence[PreparedImage]) -> NDArray[np.float32]:
    """Computes the probabilities of each image by a model that takes decoded images.

    The middle, which its network sees, is cut out here as in the evaluation, from the stored image, which may be
    squeezed. Around it lies what the model cuts off. So all images have one size: JAX compiles a function for each.
    """
    pixels = np.stack([_cut(image, notes) for image in images])
    return program(surround(pixels, notes.crop_fraction or 1.0))


def _cut(image: PreparedImage, notes: Notes) -> NDArray[np.uint8]:
    """Returns the pixels that the network sees: uint8 [height, width, 3]."""
    form, size = notes.form, notes.size
    original = image.height, image.width
    stored = original if form.square is None else (form.square, form.square)
    box = 0, 0, *stored
    if notes.crop_fraction is not None:
        boxes = center_boxes(np.array([original]), np.array([stored]), size, notes.crop_fraction)
        y, x, height, width = map(int, boxes[0])
        box = y, x, height, width
    return resize_crop(decode_crop(image.encoded, form, box), size, notes.antialias)


def surround(pixels: NDArray[np.uint8], crop_fraction: float) -> NDArray[np.uint8]:
    """Returns larger images, of which a model with this crop takes just these pixels, without resizing them.

    Args:
        pixels: The images of the size that the network sees: uint8 [batch, height, width, 3].
        crop_fraction: The share of the largest centered crop's side that the model keeps.
    """
    height, width = pixels.shape[1:3]
    longest = max(height, width)
    full = round(longest / crop_fraction)  # the model rounds its share of this to the longest side again
    full_height, full_width = (-(-side * full // longest) for side in (height, width))
    images = np.zeros((len(pixels), full_height, full_width, 3), np.uint8)
    y, x = (full_height - height) // 2, (full_width - width) // 2
    images[:, y : y + height, x : x + width] = pixels
    return images


def _load_program(framework: str, directory: str) -> Program:
    """Loads the model of a framework that takes decoded images.

    Raises:
        FormatError: It is damaged.
    """
    path = file_io.join(directory, PROGRAMS[framework])
    data = file_io.read_bytes(path, MAX_MODEL_BYTES)
    if framework == "torch":
        from tfpipe.training.torch.export import load_model as load_torch

        return load_torch(data, path)
    from tfpipe.training.jax.export import load_model as load_jax

    return load_jax(data, path)
