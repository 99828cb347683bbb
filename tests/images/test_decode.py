"""Decoding of stored images to arrays, and their headers: format, size, and what simple decoders handle wrongly."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.beam_jobs.images import make_exif, save_image
from tests.refusals import refusal
from tfpipe.format.image_form import ImageForm
from tfpipe.images.decode import ImageHeader, decode_pixels, read_image_header
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
    turned = decode_pixels(encode(COLOR, "JPEG", exif=make_exif(6)), ImageForm())
    assert np.array_equal(turned, decode_pixels(encode(COLOR, "JPEG"), ImageForm()))


def test_raw_pixels_are_a_square_copy() -> None:
    data = COLOR.tobytes()[: 5 * 5 * 3]
    pixels = decode_pixels(data, ImageForm("raw", square=5))
    assert pixels.tobytes() == data
    assert pixels.flags.writeable
    assert "75 bytes of raw pixels, not 4 x 4 x 3" in refusal(BadImage, decode_pixels, data, ImageForm("raw", square=4))


@pytest.mark.parametrize("data", [b"", b"no image", encode(COLOR, "PNG")[:40], encode(COLOR, "JPEG")[:300]])
def test_bytes_that_are_not_an_image_are_refused(data: bytes) -> None:
    with pytest.raises(BadImage):
        decode_pixels(data, ImageForm())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"])
def test_a_size_beyond_the_limit_is_refused_from_the_header(kind: str) -> None:
    assert "pixels" in refusal(BadImage, decode_pixels, encode(COLOR, kind), ImageForm(max_pixels=53))


def encode_plain(kind: str, mode: str = "RGB", **options: object) -> bytes:
    return save_image(Image.new(mode, (40, 30)), kind, **options)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_every_format_tells_its_size(kind: str) -> None:
    assert read_image_header(encode_plain(kind)) == ImageHeader(kind, 40, 30)


def test_properties_that_simple_decoders_handle_wrongly_are_noticed() -> None:
    deep = save_image(Image.fromarray(np.zeros((30, 40), np.uint16)))
    assert read_image_header(encode_plain("JPEG", exif=make_exif(6))) == ImageHeader("JPEG", 40, 30, ("turned",))
    assert read_image_header(encode_plain("JPEG", "CMYK")).noticed == ("cmyk",)
    assert read_image_header(encode_plain("JPEG", progressive=True)).noticed == ("progressive",)
    assert read_image_header(encode_plain("PNG", "RGBA")).noticed == ("transparent",)
    assert read_image_header(deep).noticed == ("16_bit",)


def test_no_pixel_is_decoded() -> None:
    whole = encode_plain("JPEG")
    assert read_image_header(whole[: len(whole) - 20]) == ImageHeader("JPEG", 40, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_cut_header_is_refused(kind: str) -> None:
    for size in range(0, 20):
        with pytest.raises(BadImage):
            read_image_header(encode_plain(kind)[:size])


def test_the_refusal_of_a_text_says_what_it_is() -> None:
    assert "not an image: it begins like text" in refusal(BadImage, read_image_header, b"hello")
