"""Crops that the kernel decodes: a slice of the whole image, on every kind of JPEG and every small size."""

import itertools
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.native.conftest import Draw
from tfpipe.native.jpeg import BadJpeg, UnsupportedJpeg, check, decode, make_seekable, reduce_box

KINDS = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "4:4:0": {"subsampling": "4:4:0"},
    "4:1:1": {"subsampling": "4:1:1"},
    "1 x 4": {"subsampling": "1 x 4"},
    "gray": {"mode": "L"},
    "progressive": {"subsampling": 2, "progressive": True},
    "CMYK": {"mode": "CMYK"},
}
Box = tuple[int, int, int, int]


def decode_box(data: bytes, box: Box, ratio: int = 1) -> NDArray[np.uint8]:
    result = np.empty((*reduce_box(box, ratio), 3), np.uint8)
    decode(data, box, result, ratio=ratio)
    return result


def cut(whole: NDArray[np.uint8], box: Box, ratio: int) -> NDArray[np.uint8]:
    (top, left), (height, width) = ((side + ratio // 2) // ratio for side in box[:2]), reduce_box(box, ratio)
    return whole[top : top + height, left : left + width]


def draw_box(rng: random.Random, height: int, width: int, least: int = 1) -> Box:
    h, w = rng.randint(least, height), rng.randint(least, width)
    return rng.randint(0, height - h), rng.randint(0, width - w), h, w


def check_crops(data: bytes, size: tuple[int, int], rng: random.Random, count: int) -> None:
    """Compares some crops, at each ratio, with slices of the whole image."""
    for ratio in (1, 2, 4, 8):
        if 0 in reduce_box((0, 0, *size), ratio):
            continue
        whole = decode_box(data, (0, 0, *size), ratio)
        for _ in range(count):
            box = draw_box(rng, *size, least=min(ratio, *size))
            if 0 not in reduce_box(box, ratio):
                crop = decode_box(data, box, ratio)
                np.testing.assert_array_equal(crop, cut(whole, box, ratio), f"{size} {box} {ratio}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_crop_is_a_slice_of_the_whole_image(rng: random.Random, draw_jpeg: Draw, kind: str) -> None:
    """Also that of an image of one MCU, or of little more."""
    small = itertools.product((1, 2, 7, 8, 9, 15, 16, 17), repeat=2)
    for size, crops in [((213, 301), 8), ((97, 64), 8), *((size, 1) for size in small)]:
        original = draw_jpeg(*size, **KINDS[kind])
        for data in [original] if kind == "CMYK" else [original, make_seekable(original)]:
            check_crops(data, size, rng, crops)


@pytest.mark.parametrize("box", [(-1, 0, 4, 4), (21, 0, 4, 4), (0, 29, 4, 4), (0, 2**31 - 1, 4, 4)], ids=str)
def test_a_box_that_leaves_the_image(draw_jpeg: Draw, box: Box) -> None:
    data = draw_jpeg(24, 32)
    with pytest.raises(BadJpeg, match=r"^the crop box leaves the image of 32 x 24$"):
        decode(data, box, np.empty((4, 4, 3), np.uint8))


def test_bytes_that_are_no_image(draw_jpeg: Draw) -> None:
    result, good = np.empty((64, 64, 3), np.uint8), draw_jpeg(64, 64)
    for data, reason in (
        (b"", "it is not a JPEG"),
        (b"no image at all", "it is not a JPEG"),
        (b"\xff\xd8\xff\xd9", "it has no image data"),
        (good[:100], "it ends among its headers"),
        (good[:-300], "its image data is damaged"),
        (good[:-300] + b"\xff\xd9" + good[-298:], "its image data is damaged"),
    ):
        for function in (check, make_seekable, lambda data: decode(data, (0, 0, 64, 64), result)):
            with pytest.raises(BadJpeg, match=f"^{reason}$"):
                function(data)
    decode(good[:-200], (0, 0, 8, 8), result[:8, :8].copy())  # what the crop needs is there
    pixel = np.empty((1, 1, 3), np.uint8)
    for function in (check, lambda data, max_pixels: decode(data, (0, 0, 1, 1), pixel, max_pixels=max_pixels)):
        with pytest.raises(BadJpeg, match=r"^64 x 64 pixels are more than the 4095 allowed$"):
            function(good, max_pixels=4095)


def test_arrays_that_do_not_fit(draw_jpeg: Draw) -> None:
    data = draw_jpeg(24, 32)
    read_only = np.empty((4, 4, 3), np.uint8)
    read_only.flags.writeable = False
    for wrong in (np.empty((4, 4), np.uint8), np.empty((4, 4, 3), np.float32), np.empty((4, 8, 3), np.uint8)[:, ::2]):
        with pytest.raises(ValueError, match=r"^The array must be writable, uint8 \[height, width, 3\] in C order"):
            decode(data, (0, 0, 8, 8), wrong)
    with pytest.raises(ValueError, match="writable"):
        decode(data, (0, 0, 8, 8), read_only)
    with pytest.raises(ValueError, match=r"^The array must have the size of the crop, got 4 x 4 for \(0, 0, 8, 8\)\.$"):
        decode(data, (0, 0, 8, 8), np.empty((4, 4, 3), np.uint8))


@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "gray"])
def test_narrow_crops_from_intervals_of_one_mcu(draw_jpeg: Draw, kind: str) -> None:
    """What is cut out for them may be as narrow as two samples of color, which libjpeg blends with nothing."""
    height, width = 61, 35
    data = draw_jpeg(height, width, restart_marker_blocks=1, **KINDS[kind])
    for ratio in (1, 2, 4):
        whole = decode_box(data, (0, 0, height, width), ratio)
        for x, box_width in itertools.product(range(0, width, ratio), (ratio, 2 * ratio, 4 * ratio)):
            for y in (0, 24, 60 - ratio):
                box = (y, x, ratio, min(box_width, width - x))
                if 0 not in reduce_box(box, ratio):
                    expected = cut(whole, box, ratio)
                    np.testing.assert_array_equal(decode_box(data, box, ratio), expected, f"{box} {ratio}")


def lose_scans(progressive: bytes) -> bytes:
    """Leaves out all scans of a progressive JPEG but the first, so that bits are missing."""
    second_scan = progressive.index(b"\xff\xda", progressive.index(b"\xff\xda") + 2)
    return progressive[: progressive.rindex(b"\xff\xc4", 0, second_scan)] + b"\xff\xd9"


def test_an_image_that_lacks_scans_is_left_to_others(draw_jpeg: Draw) -> None:
    """libjpeg guesses what they held, and the library does not."""
    with pytest.raises(UnsupportedJpeg, match=r"^scans are missing, and decoders guess what they held$"):
        decode_box(lose_scans(draw_jpeg(90, 120, progressive=True)), (0, 0, 90, 120))
