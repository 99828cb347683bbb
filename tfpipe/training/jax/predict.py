"""Opens an exported function of JAX."""

from __future__ import annotations

from collections.abc import Callable

import jax.export
import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError, first_line


def load_model(data: bytes, path: str) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Returns a function of decoded images, which computes the probabilities of all classes.

    It is compiled for each size of images and of the batch.

    Args:
        data: The content of the file.
        path: The path of the file, for errors.

    Raises:
        FormatError: The file is damaged.
    """
    try:
        function = jax.export.deserialize(bytearray(data))
    except Exception as error:  # a damaged file raises anything
        raise FormatError(f"The model {path} is damaged: {first_line(error)}.") from error
    return lambda images: np.asarray(function.call(images), np.float32)
