"""Pixels are resized to the very bytes that Pillow's filters give."""

import random

import pytest
from PIL import Image

from tfpipe.native import antialias

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


@pytest.mark.parametrize(
    ("size", "new_size", "part"),
    [((3, 2), (1, 1), None), ((2, 2), (0, 1), (2.0, 2.0)), ((2, 2), (1, 1), (2.5, 2.0)), ((2, 2), (1, 1), (2, 0))],
)
def test_arguments_that_do_not_fit(size: tuple[int, int], new_size: tuple[int, int], part: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"^The pixels must be RGB of "):
        antialias.resize(bytes(12), size, new_size, part)
