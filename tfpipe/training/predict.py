"""Classifies image files with an exported model.

    classifier = Classifier("runs/flowers")
    for prediction in classifier.classify(["rose.jpg"], batch_size=32, top=3):
        print(prediction)

Each file is first brought into the form in which the dataset's images are stored, as `tfpipe shard` does it: turned
upright, composited, in 8 bits, reduced or squeezed. The model then gets it as a record, so the prediction for a file of
the dataset equals that for its record in evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tfpipe.errors import TfpipeError
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.storage import file_io
from tfpipe.system.extras import check_installed
from tfpipe.training.model_files import find_model, read_form, read_labels

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
            MissingDependencyError: TensorFlow is not installed.
        """
        self.directory = find_model(path)
        check_installed("tensorflow", f"The model in {self.directory}", "TensorFlow", "tfpipe[tensorflow]")
        self._form, self.label_names = read_form(self.directory), read_labels(self.directory)
        from tfpipe.training.tensorflow.export import load_model

        self._run = load_model(self.directory)

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
