"""Decoding by TensorFlow: every stored form, and crop boxes."""

import functools
import io
import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.beam_jobs.images import save_image
from tests.refusals import refusal
from tfpipe.engine.source import StoredImages
from tfpipe.errors import ConfigError
from tfpipe.pipeline.stages import crop, decode_crop, decode_image, decode_jpeg_crop, read_image_size

JPEG, PNG, MIXED, FOREIGN = (StoredImages(frozenset(names)) for names in (["JPEG"], ["PNG"], ["JPEG", "PNG"], []))


def draw(height: int, width: int) -> np.ndarray:
    """Waves of several lengths and a little noise: about as hard to compress as a photograph."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 17 + y / 29), np.cos(x / 11 - y / 23), np.sin((x + y) / 7)]
    noise = np.random.default_rng(0).normal(0, 4, (height, width, 3))
    return np.clip(128 + 60 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def save(pixels: np.ndarray, kind: str = "JPEG", **options: Any) -> bytes:
    return save_image(Image.fromarray(pixels), kind, **options)


def jpeg(pixels: np.ndarray, subsampling: int = 0) -> bytes:
    return save(pixels, quality=95, subsampling=subsampling)


ENCODED, CROP_BOX = tf.TensorSpec([], tf.string), tf.TensorSpec([4], tf.int32)
"""What the graphs below take. Each is traced once for its options and then serves every image."""


@functools.cache
def decoder(stored: StoredImages) -> Any:
    return tf.function(lambda e: decode_image(e, stored), [ENCODED], autograph=False)


@functools.cache
def cutter(stored: StoredImages) -> Any:

    def cut(encoded: tf.Tensor, crop_box: tf.Tensor) -> tf.Tensor:
        return decode_crop(encoded, crop_box, read_image_size({"encoded": encoded}, stored), stored)

    return tf.function(cut, [ENCODED, CROP_BOX], autograph=False)


@functools.cache
def measurer(stored: StoredImages, *sizes: int) -> Any:
    return tf.function(lambda e: read_image_size(make_record(e, *sizes), stored), [ENCODED], autograph=False)


def make_record(encoded: Any, *sizes: int) -> dict[str, Any]:
    names = ("height", "width")
    return {"encoded": encoded, **{n: tf.constant(s, tf.int64) for n, s in zip(names, sizes, strict=False)}}


def cut(encoded: bytes, crop_box: tuple[int, ...], stored: StoredImages = JPEG) -> np.ndarray:
    return cutter(stored)(encoded, np.int32(crop_box)).numpy()


FORMS = {"JPEG": (JPEG, MIXED, FOREIGN), "PNG": (PNG, MIXED, FOREIGN), "GIF": (FOREIGN,)}


@pytest.mark.parametrize(("kind", "stored"), [(kind, stored) for kind in FORMS for stored in FORMS[kind]])
@pytest.mark.parametrize("size", [(1, 1), (37, 53)])
@pytest.mark.parametrize("gray", [False, True])
def test_every_format_becomes_three_channels(kind, stored, size, gray):
    encoded = save(draw(*size)[..., 0] if gray else draw(*size), kind)
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    whole = decoder(stored)(encoded).numpy()
    assert whole.dtype == np.uint8
    assert whole.shape == (*size, 3)
    # libjpeg's versions round differently, more so where color is stored at half the size.
    np.testing.assert_allclose(whole.astype(int), expected, atol=4 if kind == "JPEG" else 0)
    if gray:
        np.testing.assert_array_equal(whole[..., 0], whole[..., 2])
    np.testing.assert_array_equal(cut(encoded, (0, 0, *size), stored), whole)
    assert [int(n) for n in measurer(stored)(encoded)] == list(size)


def test_raw_pixels_and_fixed_sizes_have_static_shapes():
    pixels = draw(6, 9)
    raw, fixed = StoredImages(frozenset(["RAW"]), (6, 9)), StoredImages(frozenset(["PNG"]), (6, 9))
    for stored, encoded in ((raw, pixels.tobytes()), (fixed, save(pixels, "PNG"))):
        dataset = tf.data.Dataset.from_tensors(encoded).map(decoder(stored))
        assert dataset.element_spec == tf.TensorSpec((6, 9, 3), tf.uint8)
        np.testing.assert_array_equal(next(iter(dataset)), pixels)
        np.testing.assert_array_equal(cut(encoded, (1, 2, 4, 5), stored), pixels[1:5, 2:7])
        # The record's height and width are the original's here.
        assert [int(n) for n in read_image_size(make_record(encoded, 600, 900), stored)] == [6, 9]
    for stored in (JPEG, PNG, MIXED, FOREIGN):
        for function in (
            lambda e, w, stored=stored: decode_image(e, stored),
            lambda e, w, stored=stored: decode_crop(e, w, (37, 53), stored),
        ):
            specs = (tf.TensorSpec([], tf.string), tf.TensorSpec([4], tf.int32))
            shape = tf.function(function, autograph=False).get_concrete_function(*specs).output_shapes
            assert shape.as_list() == [None, None, 3]


def test_sizes_come_from_the_record_only_where_tfpipe_wrote_it():
    encoded = jpeg(draw(30, 20))
    # A wrong height shows where the answer is from.
    height, width = read_image_size(make_record(encoded, 7, 8), JPEG)
    assert (int(height), int(width)) == (7, 8)
    assert [int(n) for n in measurer(FOREIGN, 7, 8)(encoded)] == [30, 20]
    assert height.dtype == width.dtype == tf.int32


def test_damage_and_wrong_sizes_are_errors():
    encoded, error = jpeg(draw(40, 40)), tf.errors.InvalidArgumentError
    for bad, stored in ((encoded[:300], JPEG), (b"", JPEG), (b"<html>", FOREIGN), (encoded[:300], FOREIGN)):
        with pytest.raises(error):
            decoder(stored)(bad)
        with pytest.raises(error):
            cut(bad, (0, 0, 9, 9), stored)
    with pytest.raises(error):
        decoder(StoredImages(frozenset(["JPEG"]), (40, 41)))(encoded)
    with pytest.raises(error):
        decoder(StoredImages(frozenset(["RAW"]), (4, 4)))(bytes(47))
    with pytest.raises(error, match="crop window"):
        cut(encoded, (0, 1, 40, 40))


@pytest.mark.parametrize("crop_box", [(0, 0, 1, 1), (36, 52, 1, 1), (0, 0, 37, 53), (9, 17, 20, 30), (0, 52, 37, 1)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_crop_box_is_a_slice(crop_box, kind):
    pixels = draw(37, 53)
    encoded = jpeg(pixels) if kind == "JPEG" else save(pixels, "PNG")
    y, x, height, width = crop_box
    for stored in (StoredImages(frozenset([kind])), MIXED, FOREIGN):
        whole = decode_image(tf.constant(encoded), stored)
        expected = whole[y : y + height, x : x + width].numpy()
        np.testing.assert_array_equal(cut(encoded, crop_box, stored), expected)
        np.testing.assert_array_equal(crop(whole, tf.constant(crop_box)), expected)


@pytest.mark.parametrize("subsampling", [1, 2], ids=["4:2:2", "4:2:0"])
@pytest.mark.parametrize("ratio", [1, 2])
def test_colour_at_half_width_is_that_of_the_whole_image(rng: random.Random, subsampling: int, ratio: int) -> None:
    encoded, size = jpeg(draw(120, 150), subsampling=subsampling), (120 // ratio, 150 // ratio)
    whole = tf.io.decode_jpeg(encoded, channels=3, ratio=ratio).numpy()
    decode = tf.function(lambda e, box: decode_jpeg_crop(e, box, size[1], ratio), [ENCODED, CROP_BOX], autograph=False)
    for _ in range(20):
        height, width = (rng.randint(1, side) for side in size)
        top, left = rng.randint(0, size[0] - height), rng.randint(0, size[1] - width)
        expected = whole[top : top + height, left : left + width]
        crop_box = np.int32((top, left, height, width))
        np.testing.assert_array_equal(decode(encoded, crop_box), expected, str(crop_box))


def test_what_cannot_be_is_refused():
    assert refusal(ConfigError, StoredImages, frozenset(["RAW"])) == (
        "Raw images need a fixed `size` and no other format beside them, got RAW of size None."
    )
    with pytest.raises(ConfigError, match="got JPEG, RAW of size"):
        StoredImages(frozenset(["RAW", "JPEG"]), (8, 8))
    with pytest.raises(ConfigError, match="`formats` must be of JPEG, PNG and RAW, got WEBP"):
        StoredImages(frozenset(["WEBP"]))
