"""Opens an exported program of PyTorch."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from tfpipe.errors import FormatError, first_line


def load_model(data: bytes, path: str) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Returns a program as a function of decoded images, which computes the probabilities of all classes.

    Args:
        data: The content of the file.
        path: The path of the file, for errors.

    Raises:
        FormatError: The file is damaged.
    """
    try:
        program = torch.export.load(io.BytesIO(data)).module()
    except Exception as error:  # a damaged archive raises anything
        raise FormatError(f"The model {path} is damaged: {first_line(error)}.") from error

    def run(images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with torch.inference_mode():
            probabilities: NDArray[np.float32] = program(torch.from_numpy(images)).numpy()
        return probabilities

    return run
