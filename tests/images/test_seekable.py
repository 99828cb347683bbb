"""Seekable JPEGs: the interval of their restart markers, how they are recognized, and what making them needs."""

from typing import Any

import pytest

from tfpipe.images.seekable import choose_interval, has_chosen_interval, is_seekable

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
    interval = data.index(b"\xff\xdd")
    first, second = data.index(b"\xff\xd0"), data.index(b"\xff\xd1")
    others = {
        "progressive": make.jpeg(64, 16, restart_marker_blocks=2, subsampling=0, progressive=True),
        "a marker is missing": data[:second] + data[second + 2 :],
        "a marker has another number": data[: second + 1] + b"\xd2" + data[second + 2 :],
        "a marker too many": data[:first] + b"\xff\xd0" + data[first:],
        "an interval twice": data[:second] + data[first:],
        "another interval": data[: interval + 5] + b"\x04" + data[interval + 6 :],
        "no interval": data[:interval] + data[interval + 6 :],
        "cut": data[:end],
        "cut in the headers": data[: scan + 6],
        "a second image header": data[:frame] + data[frame : frame + 19] + data[frame:],
        "12 bits": data[: frame + 4] + b"\x0c" + data[frame + 5 :],
        "no height": data[: frame + 5] + b"\0\0" + data[frame + 7 :],
        "a larger height": data[: frame + 5] + b"\xff\xff" + data[frame + 7 :],
        "a smaller height": data[: frame + 5] + b"\0\x08" + data[frame + 7 :],
        "a scan of one component": data[: scan + 4] + b"\x01" + data[scan + 5 :],
        "PNG": make.save(make.image(), "PNG"),
        "text": b"text",
        "nothing": b"",
    }
    assert [name for name, other in others.items() if is_seekable(other) or has_chosen_interval(other)] == []
    for size in range(len(data)):
        assert not is_seekable(data[:size])
