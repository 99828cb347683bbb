"""Crop boxes and flips: a function of the seed alone, within the bounds of the options and of the image."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.pipeline.device import augment
from tfpipe.pipeline.stages._crop_box import center_crop_box, sample_crop_box, sample_flip

OPTIONS = AugmentOptions()


def seeds_of(count: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).integers(-(2**31), 2**31, (count, 2)), tf.int32)


def map_elements(function: Any, *elements: Any, parallel: int | None = None) -> np.ndarray:
    """Maps a function over elements with `tf.data`: one value for each."""
    function = tf.autograph.experimental.do_not_convert(function)
    dataset = tf.data.Dataset.from_tensor_slices(elements).map(function, num_parallel_calls=parallel)
    return next(iter(dataset.batch(len(elements[0])))).numpy()


def check_area_and_aspect(height: np.ndarray, width: np.ndarray, sizes: np.ndarray, slack: float) -> np.ndarray:
    """Checks all boxes but those of the whole image, up to whole pixels. Returns the shares of the area."""
    whole = (height == sizes[:, 0]) & (width == sizes[:, 1])
    area, aspect = height * width / sizes.prod(1), width / height
    assert whole.mean() < 0.05
    assert area[~whole].min() > 0.08 - slack
    assert area.max() <= 1
    assert aspect[~whole].min() > 0.75 - slack
    assert aspect[~whole].max() < 4 / 3 + slack
    return area


def test_crops_keep_area_and_aspect_within_bounds() -> None:
    sizes = np.random.default_rng(1).integers(200, 600, (3000, 2)).astype(np.int32)
    boxes = map_elements(lambda s, n: sample_crop_box(s, (n[0], n[1]), None, OPTIONS), seeds_of(3000), sizes)
    assert boxes.dtype == np.int32
    y, x, height, width = boxes.T
    assert (boxes >= [0, 0, 1, 1]).all()
    assert (y + height <= sizes[:, 0]).all()
    assert (x + width <= sizes[:, 1]).all()
    assert 0.31 < check_area_and_aspect(height, width, sizes, 0.02).mean() < 0.37
    # Uniform places: the free room is shared out evenly on average.
    room = sizes[:, 0] - height
    assert abs((y / np.maximum(room, 1))[room > 10].mean() - 0.5) < 0.02


def test_crops_of_a_squeezed_image_have_their_shape_in_the_original() -> None:
    originals = np.random.default_rng(2).integers(200, 600, (3000, 2)).astype(np.int32)
    boxes = map_elements(lambda s, n: sample_crop_box(s, (n[0], n[1]), (256, 128), OPTIONS), seeds_of(3000), originals)
    y, x, height, width = boxes.T
    assert (boxes >= [0, 0, 1, 1]).all()
    assert (y + height).max() <= 256
    assert (x + width).max() <= 128
    check_area_and_aspect(height / 256 * originals[:, 0], width / 128 * originals[:, 1], originals, 0.05)
    # The same box as that of the original, up to a pixel.
    plain = map_elements(lambda s, n: sample_crop_box(s, (n[0], n[1]), None, OPTIONS), seeds_of(3000), originals)
    assert np.abs(plain * np.tile([256, 128] / originals, 2) - boxes).max() <= 1.01


@pytest.mark.parametrize(
    ("original", "stored"), [((1, 1), None), ((600, 3), (2, 2)), ((3, 600), (1, 1)), ((1, 9), None)]
)
def test_tiny_images_have_crop_boxes_of_a_pixel_at_least(original, stored) -> None:
    for function in (
        lambda s: sample_crop_box(s, original, stored, OPTIONS),
        lambda s: center_crop_box(original, stored, (224, 224), 0.875),
    ):
        boxes = map_elements(function, seeds_of(50))
        extent = np.array(stored or original)
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] >= 1).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= extent).all()


def test_where_no_crop_fits_it_is_the_whole_image() -> None:
    options = AugmentOptions(scale=(0.99, 1.0), ratio=(3.0, 3.0))
    boxes = map_elements(lambda s: sample_crop_box(s, (100, 100), None, options), seeds_of(5))
    np.testing.assert_array_equal(boxes, [[0, 0, 100, 100]] * 5)


def test_draws_are_a_function_of_the_seed_alone() -> None:
    def both(seed: Any) -> Any:
        box = sample_crop_box(seed, (300, 400), None, OPTIONS)
        return tf.concat([box, [tf.cast(sample_flip(seed), tf.int32)]], 0)

    once = map_elements(both, seeds_of(200))
    np.testing.assert_array_equal(map_elements(both, seeds_of(200), parallel=4), once)
    np.testing.assert_array_equal(map_elements(both, seeds_of(200)[100:]), once[100:])
    assert len({tuple(row) for row in once}) == 200


@pytest.mark.parametrize("seeds", [seeds_of(4000), tf.stack([tf.zeros(4000, tf.int32), tf.range(4000)], 1)])
def test_half_are_flipped_whatever_the_crop_box(seeds) -> None:
    flips = map_elements(sample_flip, seeds)
    assert flips.dtype == bool
    assert abs(flips.mean() - 0.5) < 0.03
    boxes = map_elements(lambda s: sample_crop_box(s, (500, 500), None, OPTIONS), seeds)
    for column in (*boxes.T, boxes[:, 3] / boxes[:, 2]):
        assert abs(np.corrcoef(flips, column)[0, 1]) < 0.05


@pytest.mark.parametrize("out", [(224, 224), (100, 200)])
def test_centered_crop_boxes_are_the_devices_boxes_in_whole_pixels(out) -> None:
    sizes = np.random.default_rng(3).integers(1, 600, (300, 2)).astype(np.int32)
    device_boxes = augment.center_crop_boxes(sizes[:, 0], sizes[:, 1], 0.875, out[1] / out[0]).numpy()
    for stored in (None, (256, 300)):
        boxes = map_elements(lambda n, s=stored: center_crop_box((n[0], n[1]), s, out, 0.875), sizes)
        exact = device_boxes * np.tile(sizes if stored is None else [stored] * 300, 2)
        exact[:, 2:] -= exact[:, :2]
        assert np.abs(exact - boxes).max() <= 1
    assert center_crop_box((256, 512), None, (224, 224), 0.875).numpy().tolist() == [16, 144, 224, 224]
    assert center_crop_box((256, 512), (256, 256), (224, 224), 0.875).numpy().tolist() == [16, 72, 224, 112]
