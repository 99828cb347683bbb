"""The writer's files are what they are said to be: TensorFlow decodes all of them, and finds their coefficients."""

import io
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image as PillowImage

from tests.native.jpeg_writer import Drawn, Options, Scan, compute_plane, draw_jpeg, write_jpeg

FAMILIES = ("baseline", "extended", "progressive")


def decode(data: bytes, ratio: int = 1) -> np.ndarray:
    return tf.io.decode_jpeg(data, channels=3, ratio=ratio).numpy()


def write_plainly(drawn: Drawn) -> bytes:
    """The same coefficients in one baseline scan a component, with the standard's tables and nothing odd.

    A late marker of Adobe's stays: TensorFlow inverts CMYK if there is one, wherever it stands.
    """
    options = Options(jfif=drawn.options.jfif, adobe=drawn.options.adobe)
    if drawn.data.count(b"Adobe") > (options.adobe is not None):
        options.late_adobe = drawn.options.late_adobe
    return write_jpeg(drawn.image, [Scan((i,)) for i in range(len(drawn.image.components))], options)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_way_to_write_coefficients_gives_the_same_pixels(family: str) -> None:
    for seed in range(150):
        drawn = draw_jpeg(seed, family=family, most=60)
        assert drawn.sound
        pixels = decode(drawn.data)
        assert pixels.shape == (drawn.image.height, drawn.image.width, 3), drawn.description
        np.testing.assert_array_equal(pixels, decode(write_plainly(drawn)), drawn.description)


@pytest.mark.parametrize("family", FAMILIES)
def test_gray_images_have_the_pixels_of_a_transform_in_floats(family: str) -> None:
    for seed in range(100):
        drawn = draw_jpeg(seed, family=family, components=1, extreme=False)
        component = drawn.image.components[0]
        pixels = decode(drawn.data)[..., 0]
        expected = compute_plane(component, drawn.image.tables[component.table])
        difference = np.abs(expected[: pixels.shape[0], : pixels.shape[1]] - pixels)
        assert difference.max() <= 16, drawn.description  # TensorFlow's transform is the fast and inexact one
        assert difference.mean() <= 3, drawn.description


@pytest.mark.parametrize("family", FAMILIES)
def test_pillow_takes_what_is_not_odd(family: str) -> None:
    for seed in range(50):
        drawn = draw_jpeg(seed, family=family, odd=False)
        with PillowImage.open(io.BytesIO(drawn.data)) as image:
            assert image.size == (drawn.image.width, drawn.image.height)
            image.load()


def test_the_same_seed_gives_the_same_file() -> None:
    for seed in range(20):
        first, second = draw_jpeg(seed), draw_jpeg(seed)
        assert (first.data, first.description) == (second.data, second.description)


def test_a_seed_draws_other_files_than_the_next() -> None:
    assert len({draw_jpeg(seed).data for seed in range(50)}) == 50


def test_options_are_written() -> None:
    drawn = draw_jpeg(1, family="baseline", components=3, odd=False)
    plain = Options(jfif=False)
    assert b"JFIF" in write_jpeg(drawn.image, [Scan((0,)), Scan((1,)), Scan((2,))], replace(plain, jfif=True))
    assert b"Adobe" in write_jpeg(drawn.image, [Scan((0,)), Scan((1,)), Scan((2,))], replace(plain, adobe=0))
