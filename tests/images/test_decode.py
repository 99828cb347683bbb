"""Decoding of stored images to arrays."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.beam_jobs.images import save_image
from tfpipe.format.image_form import ImageForm
from tfpipe.images.decode import decode_pixels
from tfpipe.images.errors import BadImage

RNG = np.random.default_rng(5)
COLOR = RNG.integers(0, 256, (6, 9, 3), np.uint8)
GRAY = RNG.integers(0, 256, (6, 9), np.uint8)


def encode(pixels: NDArray[np.generic], kind: str, mode: str | None = None, **options: Any) -> bytes:
    image = Image.fromarray(pixels)
    return save_image(image.convert(mode) if mode else image, kind, **options)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_files_give_their_pixels(kind: str) -> None:
    assert np.array_equal(decode_pixels(encode(COLOR, kind), ImageForm()), COLOR)
    assert np.array_equal(decode_pixels(encode(GRAY, kind), ImageForm()), np.stack([GRAY] * 3, axis=-1))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_is_decoded_as_pillow_does(mode: str) -> None:
    data = encode(COLOR, "JPEG", mode)
    assert np.array_equal(decode_pixels(data, ImageForm()), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_cmyk_and_16_bits_become_rgb_of_8() -> None:
    assert decode_pixels(encode(COLOR, "JPEG", "CMYK"), ImageForm()).shape == (6, 9, 3)
    deep = decode_pixels(encode(np.full((2, 2), 0x8000, np.uint16), "PNG"), ImageForm())
    assert deep.tolist() == [[[128] * 3] * 2] * 2


def test_exif_does_not_turn_pixels() -> None:
    # Boxes that others wrote are for the pixels as they are, and the input pipeline does not turn them either.
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decode_pixels(encode(COLOR, "JPEG", exif=exif), ImageForm())
    assert np.array_equal(turned, decode_pixels(encode(COLOR, "JPEG"), ImageForm()))


def test_raw_pixels_are_a_square_copy() -> None:
    data = COLOR.tobytes()[: 5 * 5 * 3]
    pixels = decode_pixels(data, ImageForm("raw", square=5))
    assert pixels.tobytes() == data
    assert pixels.flags.writeable
    with pytest.raises(BadImage, match="75 bytes of raw pixels, not 4 x 4 x 3"):
        decode_pixels(data, ImageForm("raw", square=4))


@pytest.mark.parametrize("data", [b"", b"no image", encode(COLOR, "PNG")[:40], encode(COLOR, "JPEG")[:300]])
def test_bytes_that_are_not_an_image_are_refused(data: bytes) -> None:
    with pytest.raises(BadImage):
        decode_pixels(data, ImageForm())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"])
def test_a_size_beyond_the_limit_is_refused_from_the_header(kind: str) -> None:
    with pytest.raises(BadImage, match="pixels"):
        decode_pixels(encode(COLOR, kind), ImageForm(max_pixels=53))
