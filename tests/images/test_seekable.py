"""Seekable JPEGs: the interval of their restart markers, how they are recognized, and what making them needs."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.seekable_jpegs import SAMPLINGS, SIZES, Sampling, draw, encode, list_boxes, list_damaged
from tfpipe.images.seekable import (
    choose_interval,
    has_chosen_interval,
    is_seekable,
    splice_box,
)

RGB_444, RGB_420, GRAY = {"subsampling": 0}, {"subsampling": 2}, {"mode": "L"}


@pytest.mark.parametrize(
    ("width", "mcu_width", "interval"),
    [
        (640, 16, 5),  # 40 MCUs: 80 pixels
        (640, 8, 10),  # 80 MCUs: 80 pixels
        (504, 8, 9),  # 63 MCUs: 72 pixels
        (500, 16, 4),  # 32 MCUs, the last of them not full
        (96, 8, 12),
        (96, 16, 6),
        (96, 32, 3),
        (32, 32, 1),
        (488, 8, 61),  # a prime number of MCUs: the whole row
        (16 * 31, 16, 31),
        (16, 8, 2),  # 16 pixels are fewer than the 24 that an interval has at least
        (8, 8, 1),
        (1, 16, 1),
    ],
)
def test_the_interval_is_the_longest_that_divides_a_row(width: int, mcu_width: int, interval: int) -> None:
    assert choose_interval(width, mcu_width) == interval


@pytest.mark.parametrize("options", [RGB_444, RGB_420, GRAY], ids=["444", "420", "gray"])
@pytest.mark.parametrize("size", [(640, 24), (500, 40), (488, 9), (16, 16), (1, 1)], ids=str)
def test_markers_at_the_chosen_interval_are_recognized(make: Any, size: tuple[int, int], options: dict) -> None:
    interval = choose_interval(size[0], 16 if options is RGB_420 else 8)
    data = make.jpeg(*size, restart_marker_blocks=interval, **options)
    assert is_seekable(data)
    assert has_chosen_interval(data)
    assert not is_seekable(make.jpeg(*size, **options))


@pytest.mark.parametrize("options", [RGB_444, RGB_420, GRAY], ids=["444", "420", "gray"])
def test_any_interval_that_divides_a_row_is_recognized(make: Any, options: dict) -> None:
    mcus = 320 // (16 if options is RGB_420 else 8)
    for interval in range(1, 2 * mcus + 2):
        data = make.jpeg(320, 24, restart_marker_blocks=interval, **options)
        assert is_seekable(data) == (mcus % interval == 0)
        assert has_chosen_interval(data) == (interval == choose_interval(320, 320 // mcus))
    assert is_seekable(make.jpeg(320, 24, restart_marker_rows=1, **options))


def test_bytes_around_the_image_do_not_matter(make: Any) -> None:
    data = make.jpeg(64, 16, restart_marker_blocks=2, subsampling=0, comment=b"\xff\xd0\xff\xd9" * 9)
    assert is_seekable(data)
    assert is_seekable(data[:2] + b"\xff\xff" + data[2:])  # fill bytes in front of a marker
    assert is_seekable(data + b"\xff\xd8\xff\xd0rest")


def test_other_files_are_not_seekable(make: Any) -> None:
    data = make.jpeg(64, 16, restart_marker_blocks=2, subsampling=0)
    assert is_seekable(data)
    frame, scan, end = data.index(b"\xff\xc0"), data.index(b"\xff\xda"), data.index(b"\xff\xd9")
    first, second = data.index(b"\xff\xd0"), data.index(b"\xff\xd1")
    others = {
        "progressive": make.jpeg(64, 16, restart_marker_blocks=2, subsampling=0, progressive=True),
        "a marker is missing": data[:second] + data[second + 2 :],
        "a marker has another number": data[: second + 1] + b"\xd2" + data[second + 2 :],
        "a marker too many": data[:first] + b"\xff\xd0" + data[first:],
        "cut": data[:end],
        "cut in the headers": data[: scan + 6],
        "a second image header": data[:frame] + data[frame : frame + 19] + data[frame:],
        "12 bits": data[: frame + 4] + b"\x0c" + data[frame + 5 :],
        "no height": data[: frame + 5] + b"\0\0" + data[frame + 7 :],
        "a larger height": data[: frame + 5] + b"\xff\xff" + data[frame + 7 :],
        "a scan of one component": data[: scan + 4] + b"\x01" + data[scan + 5 :],
        "PNG": make.save(make.image(), "PNG"),
        "text": b"text",
        "nothing": b"",
    }
    assert [name for name, other in others.items() if is_seekable(other) or has_chosen_interval(other)] == []
    for size in range(len(data)):
        assert not is_seekable(data[:size])


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: sampling.name)
def test_a_splice_has_the_pixels_of_a_slice(sampling: Sampling) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng, splices = random.Random(seed), 0
    for size in SIZES:
        for interval in (None, 1):
            data = encode(draw(*size), sampling, interval)
            whole = np.asarray(Image.open(io.BytesIO(data)))
            for y, x, height, width in list_boxes(*size, rng, 12):
                splice = splice_box(data, (y, x, height, width))
                if splice is None:
                    continue
                splices += 1
                image = Image.open(io.BytesIO(splice.data))
                assert image.size == (splice.width, splice.height)
                top, left = y - splice.y, x - splice.x
                pixels = np.asarray(image)[top : top + height, left : left + width]
                np.testing.assert_array_equal(pixels, whole[y : y + height, x : x + width])
                assert len(splice.data) < len(data)
                assert is_seekable(splice.data)
    assert splices > 100


def test_a_splice_keeps_a_ring_of_mcus_where_color_is_stored_at_half_the_width() -> None:
    box = 50, 100, 10, 10
    got = {}
    for sampling in SAMPLINGS:
        splice = splice_box(encode(draw(131, 320), sampling, interval=1), box)
        assert splice is not None
        got[sampling.name] = splice.y, splice.x, splice.height, splice.width
    assert got == {
        "444": (48, 96, 16, 16),
        "422": (48, 80, 16, 48),
        "420": (32, 80, 48, 48),
        "gray": (48, 96, 16, 16),
    }


def test_a_box_that_needs_most_of_a_jpeg_is_not_spliced() -> None:
    data = encode(draw(64, 160), SAMPLINGS[0], interval=2)  # 8 rows of 10 intervals
    assert splice_box(data, (0, 0, 64, 160)) is None
    assert splice_box(data, (0, 0, 64, 8 * 18)) is None
    assert splice_box(data, (0, 0, 56, 8 * 18)) is not None


def test_a_jpeg_that_is_not_seekable_is_not_spliced() -> None:
    data = encode(draw(90, 203), SAMPLINGS[0], interval=2)
    box = 0, 0, 20, 20
    assert splice_box(data, box) is not None
    assert [name for name, other in list_damaged(data).items() if splice_box(other, box) is not None] == []
