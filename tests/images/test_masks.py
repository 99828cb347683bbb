"""Masks: the classes of every kind of PNG, and that a mask follows what is done to its image."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.beam_jobs.images import make_exif, save_image
from tests.mask_files import make_classes, make_gray, make_mask, make_palette
from tests.refusals import refusal
from tfpipe.format.image_form import ImageForm
from tfpipe.format.json_reader import read, to_json
from tfpipe.format.schema import IMAGE_MASK, MASK, Schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tensors.tensor_stats import MaskStats
from tfpipe.images.errors import BadImage
from tfpipe.images.masks import check_mask, count_masks, crop_nearest, encode_mask, read_mask, resize_nearest
from tfpipe.images.normalize import prepare_image

MAX = 10_000


def make_file(size: tuple[int, int], kind: str = "PNG", orientation: int = 1) -> bytes:
    return save_image(Image.new("RGB", size, (9, 99, 200)), kind, exif=make_exif(orientation))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_gray_values_and_palette_indices_are_the_classes(bits: int) -> None:
    classes = make_classes(bits, (7, 5), 2**bits)
    files = [
        make_palette(classes, bits),
        make_gray(classes, bits) if bits < 8 else save_image(Image.fromarray(classes)),
    ]
    for data in files:
        read = read_mask(data, MAX)
        assert read.dtype == np.uint8
        np.testing.assert_array_equal(read, classes)


def test_sixteen_bits_hold_all_classes() -> None:
    classes = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    read = read_mask(encode_mask(classes), 65_536)
    assert read.dtype == np.uint16
    np.testing.assert_array_equal(read, classes)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is not a PNG"),
        (make_file((4, 4), "JPEG"), "it is not a PNG"),
        (make_file((4, 4)), "a mask must have one channel, and this PNG has red, green and blue"),
        (save_image(Image.new("LA", (4, 4))), "a mask must have one channel, and this PNG has gray and alpha"),
        (make_mask(0)[:-20], "truncated PNG"),
        (make_mask(0, (200, 100)), "200 x 100 pixels, more than `max_pixels` 10000 allows"),
    ],
)
def test_what_is_not_a_mask_is_refused(data: bytes, reason: str) -> None:
    assert refusal(BadImage, read_mask, data, MAX) == reason


def test_a_mask_that_fits_keeps_its_bytes_and_others_become_gray() -> None:
    image, mask = make_file((24, 16)), make_mask(1)
    assert prepare_image(image, ImageForm(), mask=mask).mask == mask
    assert prepare_image(image, ImageForm()).mask is None
    stored = prepare_image(image, ImageForm(), mask=make_palette(make_classes(1))).mask
    assert check_mask(stored, MAX) == (24, 16)
    np.testing.assert_array_equal(read_mask(stored, MAX), make_classes(1))
    assert "it is not a gray PNG of 8 or 16 bits" in refusal(BadImage, check_mask, make_palette(make_classes(1)), MAX)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_turns_with_its_image(orientation: int) -> None:
    classes = make_classes(orientation, (6, 4), 200)
    pixels = np.stack([classes] * 3, axis=-1)  # the image shows its classes
    image, mask = save_image(Image.fromarray(pixels), exif=make_exif(orientation)), save_image(Image.fromarray(classes))
    prepared = prepare_image(image, ImageForm(), mask=mask)
    upright = np.asarray(Image.open(io.BytesIO(prepared.encoded)))[..., 0]
    np.testing.assert_array_equal(read_mask(prepared.mask, MAX), upright)


@pytest.mark.parametrize(("form", "size"), [(ImageForm(resize_short=8), (8, 12)), (ImageForm("raw", square=5), (5, 5))])
def test_a_mask_is_resized_with_its_image(form: ImageForm, size: tuple[int, int]) -> None:
    prepared = prepare_image(make_file((24, 16), orientation=6), form, mask=make_mask(3))
    assert check_mask(prepared.mask, MAX) == size
    turned = Image.fromarray(make_classes(3)).transpose(Image.Transpose.ROTATE_270)
    expected = np.asarray(turned.resize(size, Image.Resampling.NEAREST))
    np.testing.assert_array_equal(read_mask(prepared.mask, MAX), expected)


@pytest.mark.parametrize(
    ("orientation", "mask", "reason"),
    [
        (1, make_mask(0, (16, 24)), "its mask has 16 x 24 pixels, the image 24 x 16"),
        (8, make_mask(0, (16, 25)), "its mask has 16 x 25 pixels, the image 24 x 16, before EXIF turns it"),
        (1, b"GIF89a", "its mask: it is not a PNG"),
    ],
)
def test_a_mask_that_does_not_fit_its_image_is_refused(orientation: int, mask: bytes, reason: str) -> None:
    image = make_file((24, 16), orientation=orientation)
    assert refusal(BadImage, prepare_image, image, ImageForm(), mask=mask) == reason


@pytest.mark.parametrize("orientation", range(5, 9))
def test_a_mask_of_the_upright_image_is_not_turned(orientation: int) -> None:
    mask = make_mask(0, (16, 24))
    assert prepare_image(make_file((24, 16), orientation=orientation), ImageForm(), mask=mask).mask == mask


def test_each_pixel_takes_the_class_under_its_center() -> None:
    classes = make_classes(0, (13, 9), 256)
    for size in ((9, 13), (4, 5), (18, 26), (1, 1)):
        expected = Image.fromarray(classes).resize(size[::-1], Image.Resampling.NEAREST)
        np.testing.assert_array_equal(resize_nearest(classes, size), expected)
    np.testing.assert_array_equal(crop_nearest(classes, (2, 3, 4, 6), (4, 6)), classes[2:6, 3:9])


def test_pixels_and_images_of_each_class_are_counted() -> None:
    stats, schema = ShardStats(), Schema((MASK,))
    small = encode_mask(np.array([[0, 2], [2, 2]], np.uint8))
    large = encode_mask(np.array([[0, 300], [255, 400]], np.uint16))
    count_masks(stats, schema, {IMAGE_MASK: small}, MAX)
    count_masks(stats, schema, {IMAGE_MASK: [small]}, MAX)
    other = ShardStats()
    count_masks(other, schema, {IMAGE_MASK: large}, MAX)
    stats.merge(read(to_json(other), ShardStats))
    assert stats.masks == {IMAGE_MASK: MaskStats(3, [3, 0, 6, *[0] * 252, 1], [3, 0, 2, *[0] * 252, 1], 2)}
