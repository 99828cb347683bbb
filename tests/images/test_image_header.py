"""Headers of image files: format, size, and what a plain decoder may get wrong."""

import io

import numpy as np
import pytest
from PIL import Image

from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import ImageHeader, read_image_header


def encoded(kind: str, mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (40, 30)).save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_every_format_tells_its_size(kind: str) -> None:
    assert read_image_header(encoded(kind)) == ImageHeader(kind, 40, 30)


def test_what_a_plain_decoder_may_get_wrong() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = io.BytesIO()
    Image.fromarray(np.zeros((30, 40), np.uint16)).save(deep, "PNG")
    assert read_image_header(encoded("JPEG", exif=exif)) == ImageHeader("JPEG", 40, 30, ("turned",))
    assert read_image_header(encoded("JPEG", "CMYK")).noticed == ("cmyk",)
    assert read_image_header(encoded("JPEG", progressive=True)).noticed == ("progressive",)
    assert read_image_header(encoded("PNG", "RGBA")).noticed == ("transparent",)
    assert read_image_header(deep.getvalue()).noticed == ("16_bit",)


def test_no_pixel_is_decoded() -> None:
    whole = encoded("JPEG")
    assert read_image_header(whole[: len(whole) - 20]) == ImageHeader("JPEG", 40, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_cut_header_is_no_image(kind: str) -> None:
    for size in range(0, 20):
        with pytest.raises(BadImage):
            read_image_header(encoded(kind)[:size])


def test_what_is_no_image_says_what_it_is() -> None:
    with pytest.raises(BadImage, match="not an image: it begins like text"):
        read_image_header(b"hello")
