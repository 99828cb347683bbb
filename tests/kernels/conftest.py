"""Images of all kinds of JPEG. Without the kernels, a package of their own, nothing here is collected."""

import importlib.util
import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

collect_ignore_glob = [] if importlib.util.find_spec("tfpipe_kernels") else ["test_*.py"]

Draw = Callable[..., bytes]


@pytest.fixture(scope="session")
def draw_jpeg() -> Draw:
    """A function that draws a smooth image with some noise, and encodes it."""

    def draw(height: int, width: int, mode: str = "RGB", **options: object) -> bytes:
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
