"""Seekable JPEGs of every kind that Pillow can write, and boxes in them, for tests that compare crops with slices."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfpipe.images.seekable import choose_interval

Box = tuple[int, int, int, int]


class Sampling(NamedTuple):
    """A way to store color.

    Attributes:
        name: Its name.
        mode: Pillow's mode of the image.
        subsampling: Pillow's number for it.
        mcu_width: The width of an MCU in pixels.
    """

    name: str
    mode: str
    subsampling: int
    mcu_width: int


SAMPLINGS = (
    Sampling("444", "RGB", 0, 8),
    Sampling("422", "RGB", 1, 16),
    Sampling("420", "RGB", 2, 16),
    Sampling("gray", "L", 0, 8),
)
SIZES = ((1, 1), (8, 8), (16, 16), (17, 33), (90, 203), (131, 320), (150, 7), (64, 488))
"""Heights and widths: one MCU, odd sides, columns of one MCU, and a prime number of MCUs in a row."""


def draw(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Draws waves and much noise, so that each pixel differs from its neighbors, in color too."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + y / 29), np.cos(x / 11 - y / 23), np.sin((x + y) / 7)]
    noise = np.random.default_rng(seed).normal(0, 40, (height, width, 3))
    return np.clip(128 + 60 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def encode(pixels: NDArray[np.uint8], sampling: Sampling, interval: int | None = None) -> bytes:
    """Encodes pixels with restart markers. `interval` counts MCUs; None stands for the interval that tfpipe chooses."""
    mcus = choose_interval(pixels.shape[1], sampling.mcu_width) if interval is None else interval
    file = io.BytesIO()
    image = Image.fromarray(pixels).convert(sampling.mode)
    image.save(file, "JPEG", quality=95, subsampling=sampling.subsampling, restart_marker_blocks=mcus)
    return file.getvalue()


def list_boxes(height: int, width: int, rng: random.Random, count: int) -> Iterator[Box]:
    """Yields boxes of a row, a column and a pixel, boxes at all corners, the whole image, and random ones."""
    small_height, small_width = max(height // 3, 1), max(width // 3, 1)
    for y in (0, height - small_height):
        for x in (0, width - small_width):
            yield y, x, small_height, small_width
    yield height // 2, 0, 1, width
    yield 0, width // 2, height, 1
    yield height - 1, width - 1, 1, 1
    yield 0, 0, height, width
    for _ in range(count):
        box_height, box_width = rng.randint(1, height), rng.randint(1, width)
        yield rng.randint(0, height - box_height), rng.randint(0, width - box_width), box_height, box_width


def list_damaged(data: bytes) -> dict[str, bytes]:
    """Returns files that are not seekable, made of one that is: RGB with at least nine markers."""
    frame, end = data.index(b"\xff\xc0"), data.rindex(b"\xff\xd9")
    interval, scan = data.index(b"\xff\xdd"), data.index(b"\xff\xda")
    first, second = data.index(b"\xff\xd0", scan), data.index(b"\xff\xd1", scan)
    return {
        "a marker is missing": data[:second] + data[second + 2 :],
        "a marker has another number": data[: second + 1] + b"\xd2" + data[second + 2 :],
        "a marker too many": data[:first] + b"\xff\xd0" + data[first:],
        "an interval twice": data[:first] + data[first:second] + data[first:],
        "another interval": data[: interval + 5] + bytes([data[interval + 5] + 1]) + data[interval + 6 :],
        "no interval": data[:interval] + data[interval + 6 :],
        "a larger height": data[: frame + 5] + b"\x0f\xff" + data[frame + 7 :],
        "a smaller height": data[: frame + 5] + b"\0\x20" + data[frame + 7 :],
        "cut": data[: end // 2],
    }
