"""Headers of image files: format, size, and the properties that simple decoders handle wrongly."""

import numpy as np
import pytest
from PIL import Image

from tests.beam_jobs.images import save_image
from tfpipe.images.decode import ImageHeader, read_image_header
from tfpipe.images.errors import BadImage


def encode(kind: str, mode: str = "RGB", **options: object) -> bytes:
    return save_image(Image.new(mode, (40, 30)), kind, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_every_format_tells_its_size(kind: str) -> None:
    assert read_image_header(encode(kind)) == ImageHeader(kind, 40, 30)


def test_properties_that_simple_decoders_handle_wrongly_are_noticed() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = save_image(Image.fromarray(np.zeros((30, 40), np.uint16)))
    assert read_image_header(encode("JPEG", exif=exif)) == ImageHeader("JPEG", 40, 30, ("turned",))
    assert read_image_header(encode("JPEG", "CMYK")).noticed == ("cmyk",)
    assert read_image_header(encode("JPEG", progressive=True)).noticed == ("progressive",)
    assert read_image_header(encode("PNG", "RGBA")).noticed == ("transparent",)
    assert read_image_header(deep).noticed == ("16_bit",)


def test_no_pixel_is_decoded() -> None:
    whole = encode("JPEG")
    assert read_image_header(whole[: len(whole) - 20]) == ImageHeader("JPEG", 40, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_cut_header_is_refused(kind: str) -> None:
    for size in range(0, 20):
        with pytest.raises(BadImage):
            read_image_header(encode(kind)[:size])


def test_the_refusal_of_a_text_says_what_it_is() -> None:
    with pytest.raises(BadImage, match="not an image: it begins like text"):
        read_image_header(b"hello")
