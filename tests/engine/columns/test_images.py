"""Crops that are resized and converted, against TensorFlow."""

from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from tfpipe.engine.columns.images import DTYPES, Decoding, resize_pixels
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.format.image_form import ImageForm


def make_decoding(dtype: str) -> Decoding:
    options = AugmentOptions(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    return Decoding(ImageForm(), None, (0, 0), dtype, options, reduces=True)


def resize(pixels: np.ndarray[Any, Any], size: tuple[int, int], dtype: str, flip: bool = False) -> Any:
    out = np.empty((*size, 3), DTYPES[dtype])
    resize_pixels(pixels, out, make_decoding(dtype), flip)
    return out


def draw_cases() -> list[tuple[np.ndarray[Any, Any], tuple[int, int]]]:
    seed = int(np.random.default_rng().integers(2**31))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    sizes = [(1, 1, 5, 7), (40, 30, 40, 30), *random.integers(1, 90, (30, 4)).tolist()]
    return [(random.integers(0, 256, (y, x, 3)).astype(np.uint8), (rows, cols)) for y, x, rows, cols in sizes]


def test_pixels_are_those_of_tensorflow() -> None:
    for pixels, size in draw_cases():
        expected = tf.image.resize(pixels, size).numpy()  # float32, from 0 to 255
        found = resize(pixels, size, "float32") * (np.array((0.2, 0.3, 0.4)) * 255) + np.array((0.5, 0.4, 0.3)) * 255
        np.testing.assert_allclose(found, expected, atol=0.001)
        assert np.abs(resize(pixels, size, "uint8") - expected).max() <= 0.501


def test_bfloat16_is_the_nearest_to_float32() -> None:
    for pixels, size in draw_cases():
        floats = resize(pixels, size, "float32")
        bits = resize(pixels, size, "bfloat16")
        np.testing.assert_array_equal(bits, floats.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_a_flip_mirrors_the_result() -> None:
    for pixels, size in draw_cases():
        np.testing.assert_array_equal(resize(pixels, size, "uint8", flip=True), resize(pixels, size, "uint8")[:, ::-1])
