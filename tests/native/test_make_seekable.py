"""JPEGs with restart markers: the same coefficients, no larger, and readable from each marker."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.native.conftest import Draw
from tfpipe.native.jpeg import BadJpeg, check, make_seekable


def read_pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def read_interval(data: bytes) -> int:
    """The MCUs between two restart markers, 0 without markers."""
    at = data.find(b"\xff\xdd\x00\x04")
    return int.from_bytes(data[at + 4 : at + 6], "big") if at >= 0 else 0


@pytest.mark.parametrize(
    "options", [{}, {"subsampling": 0}, {"subsampling": 1}, {"mode": "L"}, {"mode": "CMYK"}], ids=str
)
def test_symbols_and_coefficients_give_the_same_bytes(draw_jpeg: Draw, options: dict[str, object]) -> None:
    """A progressive JPEG is rewritten by its coefficients, one of a single scan by its symbols alone."""
    for size in ((1, 1), (8, 9), (17, 130), (97, 64)):
        for quality in (20, 100):  # with long runs of zeros, and with long codes
            progressive = draw_jpeg(*size, quality=quality, progressive=True, **options)
            for scan in ({}, {"optimize": True}, {"restart_marker_blocks": 3}):
                single = draw_jpeg(*size, quality=quality, **options, **scan)
                assert make_seekable(single) == make_seekable(progressive), (size, quality, scan)


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 95, "subsampling": 0},
        {"quality": 98, "subsampling": 2},
        {"quality": 30},
        {"mode": "L", "quality": 98},
        {"mode": "CMYK"},
        {"keep_rgb": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(300, 203), (17, 33), (1, 1)], ids=str)
def test_codes_are_as_short_as_those_of_libjpeg(draw_jpeg: Draw, size: tuple[int, int], options: dict[str, object]):
    seekable = make_seekable(draw_jpeg(*size, **options))
    optimized = draw_jpeg(*size, optimize=True, restart_marker_blocks=read_interval(seekable), **options)
    np.testing.assert_array_equal(read_pixels(seekable), read_pixels(optimized))
    assert len(seekable) <= len(optimized) * 1.0005 + 4
    check(seekable)


@pytest.mark.parametrize(
    "options",
    [{}, {"subsampling": 0}, {"mode": "L"}, {"mode": "CMYK"}, {"restart_marker_blocks": 3}, {"progressive": True}],
    ids=str,
)
def test_each_end_of_the_data_is_checked(draw_jpeg: Draw, options: dict[str, object]) -> None:
    data = draw_jpeg(50, 70, **options)
    check(data)
    check(data + b"rest")  # nothing behind the end of the image matters
    check(data[:-2] + b"\xff\xff\xd9")  # a fill byte
    for bad in (data[:-2], data[:-40] + data[-2:], data[:-2] + b"\x12" * 30 + data[-2:]):
        with pytest.raises(BadJpeg):
            check(bad)
