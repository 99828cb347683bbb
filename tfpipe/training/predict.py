"""Classifies image files with an exported model, each as the record that `tfpipe shard` would make of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from tfpipe.errors import DataError, FormatError, TfpipeError, first_line
from tfpipe.format.image_form import ImageForm
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.storage import file_io
from tfpipe.system.extras import check_installed
from tfpipe.training.run_dir import LABELS, MODEL, NOTES, NOTES_VERSION, PROGRAM

_MAX_IMAGE_BYTES, _MAX_NOTES_BYTES = 1 << 31, 1 << 28


class Classifier:
    """The exported model of a run, from the folder of the run or of the model."""

    def __init__(self, path: str) -> None:
        folders = (path, file_io.join(path, MODEL))
        folder = next((one for one in folders if file_io.exists(file_io.join(one, PROGRAM))), None)
        if folder is None:
            raise DataError(f"{path} must be the folder of a finished run of `tfpipe train`, or a model from one.")
        check_installed("tensorflow", f"The model in {folder}", "TensorFlow", "tfpipe[tensorflow]")
        import tensorflow as tf

        try:
            paths = [file_io.join(folder, name) for name in (NOTES, LABELS)]
            notes, labels = (file_io.read_bytes(path, _MAX_NOTES_BYTES) for path in paths)
            self._names = labels.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
            if (version := json.loads(notes)["version"]) != NOTES_VERSION:
                raise ValueError(f"its version is {version}, and this tfpipe reads {NOTES_VERSION}")
            self._form = ImageForm.recorded(json.loads(notes)["form"])
            self._model = tf.saved_model.load(folder)
            self._predict = self._model.signatures["records"]
        except (OSError, ValueError, TypeError, KeyError, RuntimeError, tf.errors.OpError) as error:
            raise FormatError(f"The model in {folder} cannot be read: {first_line(error)}.") from error

    def classify(self, files: Iterable[str], batch_size: int, top: int) -> Iterator[dict[str, Any]]:
        """Reads files, `batch_size` at once, and yields each with its likeliest classes or the `reason` for none."""
        rest = iter(files)
        while batch := list(islice(rest, batch_size)):
            images, reasons = list[PreparedImage](), dict[str, str]()
            for file in batch:
                try:
                    images.append(prepare_image(file_io.read_bytes(file, _MAX_IMAGE_BYTES), self._form, filename=file))
                except (BadImage, TfpipeError, OSError) as error:
                    reasons[file] = first_line(error).removeprefix(f"{file} ")
            guesses = iter(self._guess(images, top) if images else ())
            for file in batch:
                yield {"file": file, **({"reason": reasons[file]} if file in reasons else {"top": next(guesses)})}

    def _guess(self, images: list[PreparedImage], top: int) -> Iterator[list[dict[str, Any]]]:
        import tensorflow as tf

        height, width = (tf.constant([getattr(one, side) for one in images], tf.int64) for side in ("height", "width"))
        files = tf.constant([image.encoded for image in images])
        for row in self._predict(image_bytes=files, height=height, width=width)["probabilities"].numpy():
            # A stable sort prefers the lower one of equally probable labels, as the model does.
            labels = np.argsort(-row, kind="stable")[:top].tolist()
            yield [{"label": k, "label_name": self._names[k], "probability": float(row[k])} for k in labels]
