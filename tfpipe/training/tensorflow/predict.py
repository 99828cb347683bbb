"""Opens an exported SavedModel, which gets images as the records of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.errors import FormatError, first_line
from tfpipe.images.normalize import PreparedImage
from tfpipe.training.tensorflow.export import RECORDS


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
