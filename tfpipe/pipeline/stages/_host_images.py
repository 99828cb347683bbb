"""Augmentation on the host: windows and flips drawn for one record, and what becomes of the pixels.

For functions that `tf.data` maps over records. All randomness is a function of the record's seed, two int32, so it
is the same whatever the parallelism and the order. What a stage calls:

    augment="host"    decode_for_host, then augment_on_host    (crop_for_host where decoded images are cached)
    augment="device"  decode_for_device; `device.augment` does the rest
    augment="none"    decode_whole, then augment_on_host without a flip

`boxes.py` draws for a whole batch on an accelerator, in arithmetic of some hundred operations; at about 1 us each
that would cost the host 300 us a record. Here one native operation draws the window (3 us) and another the flip,
so seeds mean other crops than on the device, of slightly another distribution: see `sample_window`.

Costs of one 224 x 224 record, CPU time on one core of a busy machine, to about 15 %: resize from 256 x 256 370 us,
rounding to uint8 up to 150 us, normalising 200 us, flip 130 us on average (twice that for those that are flipped).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tfpipe.errors import ConfigError
from tfpipe.format.schema import IMAGE_ENCODED, IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.pipeline.config.augment_config import AugmentOptions
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.stored_images import StoredImages
from tfpipe.pipeline.stages._decode_image import crop, decode_crop, decode_image, image_size_of

CROP_ATTEMPTS = 10
"""Windows tried before the whole image is taken, as in torchvision's RandomResizedCrop and in `boxes`."""

# With the seed itself the flip would be drawn from the window's own numbers. First digits of pi, for no pattern.
_FLIP_KEY = (0x243F6A88, 0x05A308D3)

# Sides have at most five digits, and float64 sixteen.
_HALF_MARGIN = 1e-9

Extent = tuple[tf.Tensor | int, tf.Tensor | int]
"""Height and width in pixels: int32 scalars, or numbers where they are known."""


def sample_window(seed: tf.Tensor, original: Extent, stored: Extent | None, options: AugmentOptions) -> tf.Tensor:
    """Draws a random resized crop (Szegedy et al. 2014, "Going deeper with convolutions").

    By `tf.image.stateless_sample_distorted_bounding_box`, as TensorFlow's own ImageNet trainers do: an aspect
    ratio uniform in `options.ratio`, then a height uniform among those that keep the area in `options.scale`, at a
    uniform place; after ten misses the whole image. So small crops are more frequent than in
    `boxes.sample_crop_boxes`, where the area is uniform: of 375 x 500 a crop has 0.37 on average, there 0.43.

    Args:
      seed: int32 of shape [2].
      original: Of the original, whose shape the aspect ratio and area are drawn in.
      stored: Of the image that is stored, where that is squeezed; None where it has the original's size.
      options: `scale` and `ratio` are used.

    Returns:
      int32 of shape [4]: y, x, height, width in pixels of the stored image; inside it and at least 1 x 1.
    """
    begin, size, box = tf.image.stateless_sample_distorted_bounding_box(
        tf.stack([*original, 3]),
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=options.ratio,
        area_range=options.scale,
        max_attempts=CROP_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    if stored is None:
        # Cheaper than slices: 5 us for all of this function.
        y, x, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        return tf.stack([y, x, height, width])
    extent = tf.stack([*stored])
    near, far = tf.split(tf.reshape(box, [4]) * tf.cast(tf.tile(extent, [2]), tf.float32), 2)
    near = tf.minimum(tf.cast(tf.round(near), tf.int32), extent - 1)
    far = tf.cast(tf.round(far), tf.int32)
    return tf.concat([near, tf.clip_by_value(far - near, 1, extent - near)], 0)


def center_window(
    original: Extent, stored: Extent | None, out_size: tuple[int, int], crop_fraction: float
) -> tf.Tensor:
    """The window of evaluation: what resizing the short side and then cropping the middle would show.

    The box of `boxes.center_crop_boxes` in whole pixels: its size rounded, halves up; its place rounded up and to the
    left.

    Args:
      original: Of the original, which the output's aspect ratio is seen in.
      stored: Of the image that is stored, where that is squeezed; None where it has the original's size.
      out_size: Height and width of the output in pixels.
      crop_fraction: Share of the largest centred crop's side that is kept, in (0, 1].

    Returns:
      int32 of shape [4]: y, x, height, width in pixels of the stored image; inside it and at least 1 x 1.
    """
    shape = tf.cast(tf.stack([*original]), tf.float64)
    extent = tf.stack([*original]) if stored is None else tf.stack([*stored])
    # In units of the output: its share of one axis is the other's extent over its own, and at most all.
    units = shape / tf.constant(out_size, tf.float64)
    share = tf.reduce_min(units) / units * crop_fraction
    # Halves up, by far more than these numbers' error: TensorFlow multiplies in another order from graph to graph,
    # and a window must not depend on whether tf.data or a served model computes it.
    size = tf.cast(tf.floor(share * tf.cast(extent, tf.float64) + (0.5 + _HALF_MARGIN)), tf.int32)
    size = tf.clip_by_value(size, 1, extent)
    return tf.concat([(extent - size) // 2, size], 0)


def sample_flip(seed: tf.Tensor) -> tf.Tensor:
    """Draws whether to mirror left to right: a scalar bool, true for half of the seeds, whatever their windows.

    Args:
      seed: int32 of shape [2]; the same as the window's.
    """
    key = tf.bitwise.bitwise_xor(seed, tf.constant(_FLIP_KEY, tf.int32))
    return tf.equal(tf.random.stateless_uniform([], key, minval=0, maxval=2, dtype=tf.int32), 1)


def resize_image(image: tf.Tensor, out_size: tuple[int, int], antialias: bool = False) -> tf.Tensor:
    """Resizes bilinearly, with half-pixel centres.

    Args:
      image: uint8 of shape [height, width, 3].
      out_size: Height and width in pixels.
      antialias: Average over what an output pixel covers where the image shrinks; about three times the cost.

    Returns:
      float32 of shape [*out_size, 3], in 0..255 up to rounding.
    """
    if image.shape[:2] == out_size:
        return tf.cast(image, tf.float32)
    return tf.image.resize(image, out_size, antialias=antialias)


def finish(image: tf.Tensor, dtype: str, options: AugmentOptions) -> tf.Tensor:
    """The values that the model gets.

    Args:
      image: float32 of shape [height, width, 3], static, in 0..255.
      dtype: "uint8": rounded to the nearest, halves up. "float32" or "bfloat16": normalized, exactly as
        `device.normalize` does.
      options: `mean` and `std` are used.

    Returns:
      `dtype` of the same shape.
    """
    if dtype == "uint8":
        return tf.cast(image + 0.5, tf.uint8)
    height, width, channels = image.shape
    # A row at a time: with 3 channels as the last axis TensorFlow repeats the constants pixel by pixel, which takes
    # 680 us where this takes 200.
    offset = np.tile(np.array([255.0 * value for value in options.mean], np.float32), width)
    factor = np.tile(np.array([1.0 / (255.0 * value) for value in options.std], np.float32), width)
    rows = (tf.reshape(image, [height, width * channels]) - offset) * factor
    return tf.reshape(tf.cast(rows, dtype), [height, width, channels])


def decode_for_host(
    features: Mapping[str, tf.Tensor], seed: tf.Tensor | None, stored: StoredImages, config: PipelineConfig
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Decodes the random window of training, or the centred one of evaluation.

    Args:
      features: A record's: `image/encoded`; `image/height` and `image/width` where it has them.
      seed: int32 of shape [2], another for each record and epoch; not used in evaluation.
      stored: What is known of the images.
      config: Says how.

    Returns:
      uint8 of shape [h, w, 3], of the window's size or a fraction of it; and a scalar bool, whether to flip, None
      where nothing is flipped.
    """
    encoded = features[IMAGE_ENCODED]
    size = _stored_size(features, stored)
    original = _original_size(features, stored)
    window = _window(size if original is None else original, None if original is None else size, seed, config)
    image = decode_crop(encoded, window, config.size, stored, config.dct_scaling)
    return image, _flip(seed, config)


def crop_for_host(
    image: tf.Tensor, original: Extent | None, seed: tf.Tensor | None, config: PipelineConfig
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """As `decode_for_host`, of an image that is decoded already, such as one from a cache.

    Args:
      image: uint8 of shape [height, width, 3], static.
      original: Of the original; None where the image has its shape.
      seed: int32 of shape [2]; not used in evaluation.
      config: Says how.

    Returns:
      As `decode_for_host`, always of the window's size.
    """
    size = (image.shape[0], image.shape[1])
    window = _window(original or size, size if original else None, seed, config)
    return crop(image, window), _flip(seed, config)


def augment_on_host(image: tf.Tensor, flip: tf.Tensor | None, config: PipelineConfig) -> tf.Tensor:
    """Resizes to the model's input, gives it its dtype, and mirrors it where asked.

    Args:
      image: uint8 of shape [h, w, 3].
      flip: Scalar bool; None for no.
      config: Says to what.

    Returns:
      `config.image_dtype` of shape [*config.size, 3].
    """
    options = config.augment_options
    result = finish(resize_image(image, config.size, options.antialias), config.image_dtype, options)
    if flip is None:
        return result
    # Last: the output is smaller than most windows, and uint8 a quarter of float32. As a choice: half need no copy.
    return tf.ensure_shape(tf.cond(flip, lambda: tf.reverse(result, [1]), lambda: result), result.shape)


def decode_for_device(
    features: Mapping[str, tf.Tensor], stored: StoredImages, config: PipelineConfig, decoded_size: tuple[int, int]
) -> tf.Tensor:
    """Decodes a whole image and squeezes it to one size, for a batch that the device crops from, or for a cache.

    Args:
      features: As in `decode_for_host`.
      stored: What is known of the images.
      config: Says whether libjpeg may reduce large images to no less than `decoded_size`, and of antialias.
      decoded_size: Height and width in pixels, as `config.resolve_decoded_size` has it.

    Returns:
      uint8 of shape [*decoded_size, 3].
    """
    image = _decode_whole(features, stored, decoded_size, config)
    if stored.size == decoded_size:
        return image
    options = config.augment_options
    return finish(resize_image(image, decoded_size, options.antialias), "uint8", options)


def decode_whole(features: Mapping[str, tf.Tensor], stored: StoredImages, config: PipelineConfig) -> tf.Tensor:
    """Decodes a whole image for `augment_on_host` to resize: uint8 of shape [h, w, 3].

    Args:
      features: As in `decode_for_host`.
      stored: What is known of the images.
      config: Says whether libjpeg may reduce large images to no less than the model's input.
    """
    return _decode_whole(features, stored, config.size, config)


def _decode_whole(
    features: Mapping[str, tf.Tensor], stored: StoredImages, out_size: tuple[int, int], config: PipelineConfig
) -> tf.Tensor:
    encoded = features[IMAGE_ENCODED]
    may_be_jpeg = not stored.formats or "JPEG" in stored.formats
    if not (config.dct_scaling and may_be_jpeg and stored.ratios_for(out_size)):
        return decode_image(encoded, stored)
    window = tf.stack([0, 0, *_stored_size(features, stored)])
    return decode_crop(encoded, window, out_size, stored, dct_scaling=True)


def _stored_size(features: Mapping[str, tf.Tensor], stored: StoredImages) -> Extent:
    return image_size_of(features[IMAGE_ENCODED], stored, features.get(IMAGE_HEIGHT), features.get(IMAGE_WIDTH))


def _original_size(features: Mapping[str, tf.Tensor], stored: StoredImages) -> Extent | None:
    """The original's where the stored image is squeezed and the record says what it was."""
    if stored.size is None or IMAGE_HEIGHT not in features or IMAGE_WIDTH not in features:
        return None
    return tf.cast(features[IMAGE_HEIGHT], tf.int32), tf.cast(features[IMAGE_WIDTH], tf.int32)


def _window(original: Extent, stored: Extent | None, seed: tf.Tensor | None, config: PipelineConfig) -> tf.Tensor:
    options = config.augment_options
    if not config.training:
        return center_window(original, stored, config.size, options.crop_fraction)
    if seed is None:
        raise ConfigError("Random crops need a seed for each record, got None. Give two int32, or set `training` off.")
    return sample_window(seed, original, stored, options)


def _flip(seed: tf.Tensor | None, config: PipelineConfig) -> tf.Tensor | None:
    return sample_flip(seed) if config.training and config.augment_options.flip and seed is not None else None
