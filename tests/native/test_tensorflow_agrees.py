"""The kernel's pixels are TensorFlow's: of whole images, of resized crops, and from the operation."""

import random

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from tests.native.conftest import Draw
from tests.native.test_decode import KINDS, decode_box, draw_box
from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.native import library
from tfpipe.native.jpeg import UnsupportedJpeg, decode, make_seekable
from tfpipe.pipeline.native_operations import Result
from tfpipe.pipeline.stages.decode import decode_and_resize

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
def test_the_crop_is_resized_as_by_tensorflow(draw_jpeg: Draw, dtype: str, size: tuple[int, int]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    data = make_seekable(draw_jpeg(240, 320, subsampling=2))
    whole = decode_box(data, (0, 0, 240, 320))
    for _ in range(6):
        box, flip = draw_box(rng, 240, 320), rng.random() < 0.5
        y, x, height, width = box
        expected = resize(whole[y : y + height, x : x + width], size, dtype, flip)
        result = np.empty((*size, 3), np.uint16 if dtype == "bfloat16" else dtype)
        decode(data, box, result, dtype=dtype, flip=flip, offset=OFFSET, factor=FACTOR)
        np.testing.assert_array_equal(result, expected.view(result.dtype), f"{box} {flip}")


def test_the_operation_gives_what_the_function_gives(draw_jpeg: Draw) -> None:
    operations = tf.load_op_library(library.OPERATIONS_PATH)
    data, box = make_seekable(draw_jpeg(500, 700, subsampling=2)), (3, 40, 480, 600)
    for dtype in ("uint8", "float32", "bfloat16"):
        for max_ratio, ratio in ((1, 1), (8, 4)):
            for seeks in (False, True):
                image, code = operations.tfpipe_decode(
                    data,
                    box,
                    True,
                    dtype=dtype,
                    height=90,
                    width=110,
                    max_ratio=max_ratio,
                    max_pixels=10**6,
                    threads=1,
                    seeks=seeks,
                    offset=OFFSET,
                    factor=FACTOR,
                )
                assert code == 0
                expected = np.empty((90, 110, 3), np.uint16 if dtype == "bfloat16" else dtype)
                decode(data, box, expected, dtype=dtype, ratio=ratio, flip=True, offset=OFFSET, factor=FACTOR)
                np.testing.assert_array_equal(np.asarray(image).view(expected.dtype), expected)


def lose_scans(progressive: bytes) -> bytes:
    """Leaves out all scans of a progressive JPEG but the first, so that bits are missing."""
    second_scan = progressive.index(b"\xff\xda", progressive.index(b"\xff\xda") + 2)
    return progressive[: progressive.rindex(b"\xff\xc4", 0, second_scan)] + b"\xff\xd9"


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_tensorflow_decodes_what_the_library_leaves_to_it(draw_jpeg: Draw, dtype: str) -> None:
    """Where scans are missing, libjpeg guesses the rest, and the library does not."""
    rare = lose_scans(draw_jpeg(90, 120, progressive=True))
    with pytest.raises(UnsupportedJpeg, match=r"^scans are missing, and decoders guess what they held$"):
        decode_box(rare, (0, 0, 90, 120))
    images = [draw_jpeg(90, 120), rare, draw_jpeg(90, 120, mode="L"), rare]
    box, flips, size = (3, 10, 80, 101), [False, True, True, False], (31, 40)
    result = Result(size, dtype, 1, AugmentOptions())
    batch = decode_and_resize(tf.constant(images), tf.constant([box] * 4), tf.constant(flips), result, threads=2)
    y, x, height, width = box
    for image, flip, made in zip(images, flips, batch, strict=True):
        whole = tf.io.decode_jpeg(image, channels=3).numpy()
        expected = resize(whole[y : y + height, x : x + width], size, dtype, flip)
        np.testing.assert_array_equal(made, expected)
        single = decode_and_resize(tf.constant(image), tf.constant(box), tf.constant(flip), result)
        np.testing.assert_array_equal(single, expected)


def test_what_nobody_can_decode_is_an_error(draw_jpeg: Draw) -> None:
    data, result = draw_jpeg(90, 120), Result((8, 8), "uint8", 8, AugmentOptions())
    for wrong, box, reason in (
        (data[:200], (0, 0, 90, 120), "Invalid JPEG data, size 200"),
        (data, (0, 0, 91, 1), "Invalid JPEG data or crop window"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
            decode_and_resize(tf.constant(wrong), tf.constant(box), None, result)
