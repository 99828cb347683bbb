"""The library's pixels are TensorFlow's: of whole images, and of resized crops."""

import random

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from tests.native.conftest import Draw
from tests.native.test_decode import KINDS, decode_box, draw_box
from tfpipe.native.jpeg import decode, make_seekable

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OFFSET = [float(np.float32(255 * value)) for value in MEAN]
FACTOR = [float(np.float32(1 / (255 * value))) for value in DEVIATION]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(213, 301), (15, 17), (9, 8)], ids=str)
def test_the_whole_image_is_tensorflows(draw_jpeg: Draw, kind: str, size: tuple[int, int]) -> None:
    data = draw_jpeg(*size, **KINDS[kind])
    for ratio in (1, 2, 4, 8):
        theirs = tf.io.decode_jpeg(data, channels=3, ratio=ratio).numpy()
        if ratio == 1:
            np.testing.assert_array_equal(decode_box(data, (0, 0, *size)), theirs)
        else:  # they round sides up, a box to the nearest
            ours = decode_box(data, (0, 0, *size), ratio)
            np.testing.assert_array_equal(ours, theirs[: ours.shape[0], : ours.shape[1]])


def resize(pixels: NDArray[np.uint8], size: tuple[int, int], dtype: str, flip: bool) -> NDArray[np.generic]:
    """TensorFlow's result, with the values of `convert_values`."""
    image = tf.image.resize(pixels, size)
    if dtype == "uint8":
        image = tf.cast(image + 0.5, tf.uint8)
    else:
        rows = (tf.reshape(image, [size[0], -1]) - np.tile(np.float32(OFFSET), size[1])) * np.tile(
            np.float32(FACTOR), size[1]
        )
        image = tf.cast(tf.reshape(rows, [*size, 3]), dtype)
    return np.asarray(image[:, ::-1] if flip else image)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("size", [(224, 224), (31, 8), (1, 1), (300, 17)], ids=str)
def test_the_crop_is_resized_as_by_tensorflow(
    rng: random.Random, draw_jpeg: Draw, dtype: str, size: tuple[int, int]
) -> None:
    data = make_seekable(draw_jpeg(240, 320, subsampling=2))
    whole = decode_box(data, (0, 0, 240, 320))
    for _ in range(6):
        box, flip = draw_box(rng, 240, 320), rng.random() < 0.5
        y, x, height, width = box
        expected = resize(whole[y : y + height, x : x + width], size, dtype, flip)
        result = np.empty((*size, 3), np.uint16 if dtype == "bfloat16" else dtype)
        decode(data, box, result, dtype=dtype, flip=flip, offset=OFFSET, factor=FACTOR)
        np.testing.assert_array_equal(result, expected.view(result.dtype), f"{box} {flip}")
