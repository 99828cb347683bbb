"""Which images a GPU's decoder takes, by their headers."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from tfpipe.images.errors import BadImage
from tfpipe.images.hardware_jpeg import make_baseline_jpeg, read_hardware_header


def write(mode: str = "RGB", kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (16, 24), 99).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (write(), ""),
        (write("L"), ""),
        (write(subsampling=0, quality=100), ""),
        (write(progressive=True), "progressive JPEG"),
        (write("CMYK"), "CMYK JPEG"),
        (write("CMYK", progressive=True), "CMYK JPEG"),
        (write().replace(b"\xff\xc0", b"\xff\xc9", 1), "arithmetic JPEG"),
        (write(kind="PNG"), "PNG"),
        (write(kind="GIF"), "GIF"),
    ],
)
def test_only_baseline_jpegs_of_one_or_three_channels_are_taken(data: bytes, refusal: str) -> None:
    header = read_hardware_header(data, 1000)
    assert header.refusal == refusal
    assert header.jpeg is None or (header.jpeg.height, header.jpeg.width) == (24, 16)


def test_too_many_pixels_are_refused_from_the_header() -> None:
    with pytest.raises(BadImage, match="16 x 24 pixels, more than `max_pixels` 383 allows"):
        read_hardware_header(write(), 383)


def test_the_jpeg_that_tries_a_decoder_is_one_that_is_taken() -> None:
    found = read_hardware_header(make_baseline_jpeg(), 256)
    assert found.refusal == ""
    assert found.jpeg is not None
    assert (found.jpeg.height, found.jpeg.width, found.jpeg.components) == (16, 16, 3)
