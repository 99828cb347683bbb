"""Images of all kinds of JPEG."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

Draw = Callable[..., bytes]

RELABELED = {"4:4:0": ((2, 1), (1, 2)), "4:1:1": ((2, 2), (4, 1)), "1 x 4": ((2, 2), (1, 4))}
"""Sampling that Pillow does not write: the factors of an image with MCUs of as many blocks, and those of this one."""


def relabel(data: bytes, height: int, width: int, luma: tuple[int, int]) -> bytes:
    """A baseline JPEG with another size and other sampling factors of its first component, and the same MCUs."""
    frame = data.index(b"\xff\xc0")
    changed = bytearray(data)
    changed[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    changed[frame + 11] = luma[0] << 4 | luma[1]
    return bytes(changed)


@pytest.fixture(scope="session")
def draw_jpeg() -> Draw:
    """A function that draws a smooth image with some noise, and encodes it.

    Its `subsampling` takes those of `RELABELED` too. Such an image has the MCUs of another one, in other places.
    """

    def draw(height: int, width: int, mode: str = "RGB", **options: object) -> bytes:
        subsampling = options.get("subsampling")
        if subsampling in RELABELED:
            original, luma = RELABELED[str(subsampling)]
            rows, columns = -(-height // (8 * luma[1])), -(-width // (8 * luma[0]))
            across, down = original
            data = draw(8 * down * rows, 8 * across * columns, mode, subsampling=2 if down == 2 else 1)
            return relabel(data, height, width, luma)
        rng = np.random.default_rng(height * width)
        y, x = np.mgrid[:height, :width]
        channels = len(Image.new(mode, (1, 1)).getbands())
        waves = [np.sin(y / (9 + c) + c) * np.cos(x / (7 + 2 * c)) for c in range(channels)]
        pixels = 128 + 90 * np.stack(waves, -1) + rng.normal(0, 12, (height, width, channels))
        pixels = pixels.clip(0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels if channels > 1 else pixels[..., 0], mode).save(buffer, "JPEG", **options)
        return buffer.getvalue()

    return draw
