"""Fixtures: images drawn by code, and TensorFlow's decoders, which judge the stored images."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.beam_jobs.images import save_image
from tests.mask_files import make_chunk, write_png

Pixels = NDArray[np.uint8]


class Maker:
    """A maker of pixels and files for tests."""

    def pixels(self, width: int = 40, height: int = 24, seed: int = 0) -> Pixels:
        """Returns smooth colors, which lose little in JPEG, with some noise, so that rows differ."""
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[0:height, 0:width]
        planes = [200 * x / width, 200 * y / height, 100 + 50 * np.sin(x / 5 + y / 7)]
        noise = rng.uniform(-4, 4, (height, width, 1))
        return np.clip(np.stack(planes, axis=-1) + noise + 20, 0, 255).astype(np.uint8)

    def image(self, width: int = 40, height: int = 24, mode: str = "RGB", seed: int = 0) -> Image.Image:
        return Image.fromarray(self.pixels(width, height, seed)).convert(mode)

    save, chunk, png = staticmethod(save_image), staticmethod(make_chunk), staticmethod(write_png)

    def jpeg(self, width: int = 40, height: int = 24, mode: str = "RGB", **options: Any) -> bytes:
        return self.save(self.image(width, height, mode), "JPEG", **{"quality": 90, **options})

    def exif(self, orientation: int, order: str = "<") -> bytes:
        magic = b"II*\0" if order == "<" else b"MM\0*"
        entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
        return b"Exif\0\0" + magic + struct.pack(order + "IH", 8, 1) + entry + b"\0\0\0\0"


@pytest.fixture(scope="session")
def make() -> Maker:
    return Maker()


@pytest.fixture(scope="session")
def tf_jpeg() -> Callable[..., Pixels]:
    import tensorflow as tf

    return lambda data, channels=3: tf.io.decode_jpeg(data, channels=channels, dct_method="INTEGER_ACCURATE").numpy()


@pytest.fixture(scope="session")
def tf_png() -> Callable[..., Pixels]:
    import tensorflow as tf

    return lambda data, channels=3: tf.io.decode_png(data, channels=channels).numpy()
