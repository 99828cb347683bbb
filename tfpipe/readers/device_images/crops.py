"""The crops of a batch, and the form that they get: what every way to resize them takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from tfpipe.engine.numpy_crops import CropBox


class Crop(NamedTuple):
    """The part of an image that the trainer gets.

    Attributes:
        box: The box in pixels of the image, inside of it.
        flip: Whether it is mirrored left to right.
    """

    box: CropBox
    flip: bool


class ResizeConfig(NamedTuple):
    """The form of the result.

    Attributes:
        antialias: Whether each output pixel averages all pixels that it covers where a crop shrinks.
        offset: The number that is subtracted from each channel of float results.
        factor: The number by which each channel of float results is multiplied afterwards.
    """

    antialias: bool
    offset: tuple[float, ...] = (0.0, 0.0, 0.0)
    factor: tuple[float, ...] = (1.0, 1.0, 1.0)


Resize: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[Crop], torch.Tensor, ResizeConfig], None]
"""A function that fills the first rows of an output, any dtype [batch, 3, height, width], with a crop of each image,
uint8 [3, any height, any width] on the output's device."""
