"""Images of all kinds of JPEG."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tests.native.jpeg_writer import Options, draw_waves

Draw = Callable[..., bytes]

SAMPLING = {"4:4:0": (1, 2), "4:1:1": (4, 1), "1 x 4": (1, 4)}
"""The factors of the first component where Pillow does not write them."""


@pytest.fixture(scope="session")
def draw_jpeg() -> Draw:
    """A function that draws a smooth image with some noise, and encodes it. `subsampling` may be one of `SAMPLING`."""

    def draw(height: int, width: int, mode: str = "RGB", **options: object) -> bytes:
        if (luma := SAMPLING.get(str(options.get("subsampling")))) is not None:
            return draw_waves(height, width, (luma, (1, 1), (1, 1)), Options())
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
