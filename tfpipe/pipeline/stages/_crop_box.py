"""The crop box and the flip of one record: drawn in training, centered in evaluation.

All randomness is a function of the record's seed, two int32, so it is the same whatever the parallelism and the order.
A crop box is an int32 of shape [4]: y, x, height, width in pixels of the stored image. It lies inside the image and is
at least 1 x 1.

`device/random_boxes.py` draws for a whole batch on an accelerator, in arithmetic of some hundred operations; at about
1 us each that would cost the host 300 us a record. Here one native operation draws the crop box (3 us) and another the
flip. So the same seed gives another crop here than on the device, and the distribution differs slightly: see
`sample_crop_box`.
"""

from __future__ import annotations

import tensorflow as tf

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError

CROP_ATTEMPTS = 10
"""Boxes tried before the whole image is taken, as in torchvision's RandomResizedCrop and in `random_boxes`."""

# With the seed itself the flip would be drawn from the crop box's own numbers. The key is the first digits of pi.
_FLIP_KEY = (0x243F6A88, 0x05A308D3)

# Sides have at most five digits, and float64 sixteen.
_HALF_MARGIN = 1e-9

Extent = tuple[tf.Tensor | int, tf.Tensor | int]
"""Height and width in pixels: int32 scalars, or numbers where they are known when the graph is built."""


def choose_crop(
    size: Extent, original_size: Extent | None, seed: tf.Tensor | None, config: PipelineConfig
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Draws the crop box and the flip of training, or computes the centered crop box of evaluation.

    Args:
        size: The stored image's size.
        original_size: The original's size where the stored image was squeezed; None if the image has it.
        seed: int32 of shape [2], another for each record and epoch; not used in evaluation.
        config: The options of the crop.

    Returns:
        The crop box, int32 of shape [4], and whether to flip: a scalar bool, None where nothing is flipped.

    Raises:
        ConfigError: A crop box must be drawn and there is no seed.
    """
    options = config.augment_options
    shape, stored_size = (size, None) if original_size is None else (original_size, size)
    if not config.training:
        return center_crop_box(shape, stored_size, config.size, options.crop_fraction), None
    if seed is None:
        raise ConfigError("Random crops need a seed for each record, got None. Give two int32, or set `training` off.")
    return sample_crop_box(seed, shape, stored_size, options), sample_flip(seed) if options.flip else None


def sample_crop_box(
    seed: tf.Tensor, original_size: Extent, stored_size: Extent | None, options: AugmentOptions
) -> tf.Tensor:
    """Draws a random resized crop (Szegedy et al. 2014, "Going deeper with convolutions").

    By `tf.image.stateless_sample_distorted_bounding_box`, as TensorFlow's own ImageNet trainers do: an aspect
    ratio uniform in `options.ratio`, then a height uniform among those that keep the area in `options.scale`, at a
    uniform place; after ten misses the whole image. So small crops are more frequent than in
    `random_boxes.sample_crop_boxes`, where the area is uniform: of 375 x 500 a crop has 0.37 of the area on average,
    there 0.43.

    Args:
        seed: int32 of shape [2].
        original_size: The original's size. The aspect ratio and the area are drawn in its shape.
        stored_size: The stored image's size where it was squeezed; None if it has the original's size.
        options: `scale` and `ratio` are used.

    Returns:
        The crop box: int32 of shape [4].
    """
    begin, size, box = tf.image.stateless_sample_distorted_bounding_box(
        tf.stack([*original_size, 3]),
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=options.ratio,
        area_range=options.scale,
        max_attempts=CROP_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    if stored_size is None:
        # Cheaper than slices: 5 us for all of this function.
        y, x, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        return tf.stack([y, x, height, width])
    extent = tf.stack([*stored_size])
    near, far = tf.split(tf.reshape(box, [4]) * tf.cast(tf.tile(extent, [2]), tf.float32), 2)
    near = tf.minimum(tf.cast(tf.round(near), tf.int32), extent - 1)
    far = tf.cast(tf.round(far), tf.int32)
    return tf.concat([near, tf.clip_by_value(far - near, 1, extent - near)], 0)


def center_crop_box(
    original_size: Extent, stored_size: Extent | None, out_size: tuple[int, int], crop_fraction: float
) -> tf.Tensor:
    """Computes the crop box of evaluation: what resizing the short side and then cropping the middle would show.

    It is the box of `random_boxes.center_crop_boxes` in whole pixels. Its size is rounded, halves up; its place is
    rounded up and to the left.

    Args:
        original_size: The original's size. The output's aspect ratio is seen in its shape.
        stored_size: The stored image's size where it was squeezed; None if it has the original's size.
        out_size: Height and width of the output in pixels.
        crop_fraction: Share of the largest centered crop's side that is kept, in (0, 1].

    Returns:
        The crop box: int32 of shape [4].
    """
    shape = tf.cast(tf.stack([*original_size]), tf.float64)
    extent = tf.stack([*original_size]) if stored_size is None else tf.stack([*stored_size])
    # In units of the output: its share of one axis is the other's extent over its own, and at most all.
    units = shape / tf.constant(out_size, tf.float64)
    share = tf.reduce_min(units) / units * crop_fraction
    # Halves up, by far more than these numbers' error: TensorFlow multiplies in another order from graph to graph,
    # and a crop box must not depend on whether tf.data or a served model computes it.
    size = tf.cast(tf.floor(share * tf.cast(extent, tf.float64) + (0.5 + _HALF_MARGIN)), tf.int32)
    size = tf.clip_by_value(size, 1, extent)
    return tf.concat([(extent - size) // 2, size], 0)


def sample_flip(seed: tf.Tensor) -> tf.Tensor:
    """Draws whether to mirror left to right: a scalar bool, true for half of the seeds, whatever their crop boxes.

    Args:
        seed: int32 of shape [2]; it may be the crop box's seed.
    """
    key = tf.bitwise.bitwise_xor(seed, tf.constant(_FLIP_KEY, tf.int32))
    return tf.equal(tf.random.stateless_uniform([], key, minval=0, maxval=2, dtype=tf.int32), 1)


def crop(image: tf.Tensor, crop_box: tf.Tensor) -> tf.Tensor:
    """Slices [height, width, 3] to a crop box: y, x, height, width in pixels. About 100 us for 200 x 200."""
    begin, size = tf.split(crop_box, 2)
    return tf.slice(image, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))
