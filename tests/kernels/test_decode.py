"""Crops that the kernel decodes: a slice of the whole image, resized as TensorFlow resizes, on every kind of JPEG."""

import random

import numpy as np
import pytest
import tensorflow as tf
import tfpipe_kernels
from numpy.typing import NDArray
from tfpipe_kernels import BadJpeg, decode, make_seekable

from tests.kernels.conftest import Draw

KINDS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "gray": {"mode": "L"},
    "progressive": {"subsampling": 2, "progressive": True},
    "CMYK": {"mode": "CMYK"},
}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OFFSET = [float(np.float32(255 * value)) for value in MEAN]
FACTOR = [float(np.float32(1 / (255 * value))) for value in DEVIATION]

Box = tuple[int, int, int, int]


def reduce_box(box: Box, ratio: int) -> Box:
    near, far = ([(side + ratio // 2) // ratio for side in sides] for sides in (box[:2], np.add(box[:2], box[2:])))
    return (near[0], near[1], far[0] - near[0], far[1] - near[1])


def decode_box(data: bytes, box: Box, ratio: int = 1, seeks: bool = True) -> NDArray[np.uint8]:
    """The pixels of a box, not resized."""
    result = np.empty((*reduce_box(box, ratio)[2:], 3), np.uint8)
    decode(data, box, result, resize=False, ratio=ratio, seeks=seeks)
    return result


def draw_box(rng: random.Random, height: int, width: int, least: int = 1) -> Box:
    h, w = rng.randint(least, height), rng.randint(least, width)
    return rng.randint(0, height - h), rng.randint(0, width - w), h, w


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(213, 301), (97, 64), (16, 16), (7, 9), (1, 1)], ids=str)
def test_a_crop_is_a_slice_of_the_whole_image(draw_jpeg: Draw, kind: str, size: tuple[int, int]) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    original = draw_jpeg(*size, **KINDS[kind])
    files = [original] if kind == "CMYK" else [original, make_seekable(original)]
    for data in files:
        for ratio in (1, 2, 4, 8):
            if 0 in reduce_box((0, 0, *size), ratio)[2:]:
                continue
            whole = decode_box(data, (0, 0, *size), ratio, seeks=False)
            for _ in range(8):
                box = draw_box(rng, *size, least=min(ratio, *size))
                y, x, height, width = reduce_box(box, ratio)
                if height < 1 or width < 1:
                    continue
                for seeks in (False, True):
                    crop = decode_box(data, box, ratio, seeks)
                    np.testing.assert_array_equal(crop, whole[y : y + height, x : x + width], f"{box} {ratio} {seeks}")


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_image_is_tensorflows(draw_jpeg: Draw, kind: str) -> None:
    data = draw_jpeg(213, 301, **KINDS[kind])
    for ratio in (1, 2, 4, 8):
        theirs = tf.io.decode_jpeg(data, channels=3, ratio=ratio).numpy()
        if ratio == 1:
            np.testing.assert_array_equal(decode_box(data, (0, 0, 213, 301)), theirs)
        else:  # they round sides up, a box to the nearest
            ours = decode_box(data, (0, 0, 213, 301), ratio)
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
    operations = tf.load_op_library(tfpipe_kernels.OPERATION_PATH)
    data, box = make_seekable(draw_jpeg(500, 700, subsampling=2)), (3, 40, 480, 600)
    for dtype in ("uint8", "float32", "bfloat16"):
        for max_ratio, ratio in ((1, 1), (8, 4)):
            for seeks in (False, True):
                image = operations.tfpipe_decode(
                    data,
                    box,
                    True,
                    dtype=dtype,
                    height=90,
                    width=110,
                    max_ratio=max_ratio,
                    max_pixels=10**6,
                    seeks=seeks,
                    offset=OFFSET,
                    factor=FACTOR,
                )
                expected = np.empty((90, 110, 3), np.uint16 if dtype == "bfloat16" else dtype)
                decode(data, box, expected, dtype=dtype, ratio=ratio, flip=True, offset=OFFSET, factor=FACTOR)
                np.testing.assert_array_equal(np.asarray(image).view(expected.dtype), expected)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the crop box leaves the image of 700 x 500"):
        operations.tfpipe_decode(
            data,
            (0, 0, 501, 1),
            False,
            dtype="uint8",
            height=1,
            width=1,
            max_ratio=1,
            max_pixels=10**6,
            seeks=True,
            offset=OFFSET,
            factor=FACTOR,
        )


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 0, 5), (20, 0, 5, 5), (0, 30, 5, 2**31 - 1)], ids=str)
def test_a_box_that_leaves_the_image(draw_jpeg: Draw, box: Box) -> None:
    data = draw_jpeg(24, 32)
    with pytest.raises(BadJpeg, match=r"^the crop box leaves the image of 32 x 24$"):
        decode(data, box, np.empty((4, 4, 3), np.uint8))


def test_bytes_that_are_no_image(draw_jpeg: Draw) -> None:
    result = np.empty((4, 4, 3), np.uint8)
    good = draw_jpeg(64, 64)
    for data in (b"", b"\xff\xd8", b"no image at all", good[:100]):
        with pytest.raises(BadJpeg, match=r"^its JPEG headers are damaged$"):
            decode(data, (0, 0, 1, 1), result)
    with pytest.raises(BadJpeg, match=r"^Premature end of input file$"):
        decode(good[:-200], (0, 0, 64, 64), result)
    decode(good[:-200], (0, 0, 8, 8), result)  # what the crop needs is there
    with pytest.raises(BadJpeg, match=r"^64 x 64 pixels are more than the 4095 allowed$"):
        decode(good, (0, 0, 1, 1), result, max_pixels=4095)


def test_arrays_that_do_not_fit(draw_jpeg: Draw) -> None:
    data = draw_jpeg(24, 32)
    read_only = np.empty((4, 4, 3), np.uint8)
    read_only.flags.writeable = False
    for wrong in (np.empty((4, 4), np.uint8), np.empty((4, 4, 3), np.float32), np.empty((4, 8, 3), np.uint8)[:, ::2]):
        with pytest.raises(ValueError, match=r"^The array must be writable, \[height, width, 3\] of uint8 in C order"):
            decode(data, (0, 0, 8, 8), wrong)
    with pytest.raises(ValueError, match="writable"):
        decode(data, (0, 0, 8, 8), read_only)
    with pytest.raises(ValueError, match=r"^The array must have the size of the crop, got 4 x 4 for \(0, 0, 8, 8\)\.$"):
        decode(data, (0, 0, 8, 8), np.empty((4, 4, 3), np.uint8), resize=False)
