"""Pixels are resized to the very bytes that Pillow's filters give, and JPEGs decoded to the pixels of Pillow for it."""

import contextlib
import random

import pytest
from PIL import Image

from tests.native.jpeg_writer import draw_jpeg
from tests.refusals import refusal
from tfpipe.images import jpeg
from tfpipe.images.errors import BadImage
from tfpipe.native import antialias
from tfpipe.native import jpeg as native_jpeg

RATIO = "`ratio` must be 1, 2, 4 or 8"
FILTERS = {True: Image.Resampling.BICUBIC, False: Image.Resampling.BILINEAR}


@pytest.mark.parametrize("is_bicubic", FILTERS)
def test_any_size_gives_the_bytes_of_pillow(rng: random.Random, is_bicubic: bool) -> None:
    for number in range(150):
        size, new_size = ((rng.randint(1, 150), rng.randint(1, 150)) for _ in range(2))
        image = Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1]))
        part = tuple(side - (number % 2) * rng.random() * 0.9 for side in size)
        expected = image.resize(new_size, FILTERS[is_bicubic], box=(0.0, 0.0, *part))
        got = antialias.resize(image.tobytes(), size, new_size, (part[0], part[1]), is_bicubic=is_bicubic)
        assert got == expected.tobytes(), (size, part)


def test_arguments_that_do_not_fit() -> None:
    odd = (((2, 2), (0, 1), (2.0, 2.0)), ((2, 2), (1, 1), (2.5, 2.0)), ((2, 2), (1, 1), (2, 0)), ((3, 2), (1, 1), None))
    for arguments in odd:
        assert refusal(ValueError, antialias.resize, bytes(12), *arguments).startswith("The pixels must be RGB of ")
    for size, ratio, must in (((0, 4), 1, "The result must have at least one pixel"), ((4, 4), 3, RATIO)):
        assert refusal(ValueError, native_jpeg.decode_resized, b"", size, ratio).startswith(f"{must}, got ")


def decode_by_pillow(data: bytes, size: tuple[int, int], ratio: int) -> Image.Image | None:
    """Decodes at a fraction of the size and resizes; None where Pillow does not decode at this fraction."""
    header = jpeg.read_header(data, 1 << 24)
    image = jpeg.open_jpeg(header)
    if ratio > 1:
        image.draft(None, (max(header.width // ratio, 1), max(header.height // ratio, 1)))
    if ratio != (image.decoderconfig[0] if image.decoderconfig else 1):
        return None
    return image.resize(size, Image.Resampling.BICUBIC, box=(0.0, 0.0, header.width / ratio, header.height / ratio))


@pytest.mark.parametrize("ratio", native_jpeg.RATIOS)
def test_jpegs_of_every_kind_are_decoded_and_resized_as_by_pillow(rng: random.Random, ratio: int) -> None:
    compared = 0
    for _ in range(150):
        data, size = draw_jpeg(rng.randrange(2**31)).data, (rng.randint(1, 60), rng.randint(1, 60))
        with contextlib.suppress(native_jpeg.BadJpeg, BadImage):
            got = native_jpeg.decode_resized(data, size, ratio)
            expected = decode_by_pillow(data, size, ratio)
            if expected is not None:
                compared += 1
                assert got == expected.tobytes()
    assert compared > 15
