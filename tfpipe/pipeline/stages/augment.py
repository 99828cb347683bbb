"""The stage `augment`: crop, flip, resize and values, one record at a time, as the model gets them.

A crop box is an int32 of shape [4]: y, x, height, width in pixels of the stored image. It and the flip are functions
of a seed, those of `tfpipe.engine.crops`.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.augment_config import AugmentOptions, compute_scaling
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages.parse import Features, add_seeds, caches_whole, map_in_parallel, parallel_settings

_CROP_ATTEMPTS = 10  # boxes tried before the whole image is taken, as in torchvision's RandomResizedCrop
_FLIP_KEY = (0x243F6A88, 0x05A308D3)  # the first digits of pi: the seed itself would draw the crop box's own numbers
_SMALL = 3 * 2**17  # values of an image: of a larger one few are used, so converting it to float32 saves nothing
_HALF_MARGIN = 1e-9  # sides have at most five digits, and float64 sixteen

Extent = tuple[tf.Tensor | int, tf.Tensor | int]
"""Height and width in pixels: int32 scalars, or numbers where they are known when the graph is built."""


def augment_images(plan: BatchPlan) -> Stage:
    """Augments images."""
    config, (height, width) = plan.config, plan.config.size
    settings = {"where": config.augment, "image_dtype": config.image_dtype, **parallel_settings(plan)}
    settings["size"] = f"{height}x{width}"
    reason = "random resized crop and flip" if config.training else "resize short side, center crop"

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if caches_whole(config):
            dataset = add_seeds(plan, dataset)
        return map_in_parallel(plan, dataset, lambda features: _augment(plan, features))

    return Stage("augment", apply, settings, "plain resize" if config.augment == "none" else reason)


def _augment(plan: BatchPlan, features: Features) -> Features:
    """Replaces the decoded image by the image that the model gets."""
    config = plan.config
    image, flip = features["image"], features.get("flip")
    if config.augment == "host" and caches_whole(config):
        sizes = [tf.cast(features[name], tf.int32) for name in ("height", "width") if name in features]
        original_size = (sizes[0], sizes[1]) if sizes else None
        crop_box, flip = choose_crop(plan.decoded_size, original_size, features["seed"], config)
        image = crop(image, crop_box)
    used = ("image", "flip", "seed", "height", "width")
    others = {name: value for name, value in features.items() if name not in used}
    return {**others, "image": augment_on_host(image, flip, config)}


def choose_crop(
    size: Extent, original_size: Extent | None, seed: tf.Tensor | None, config: PipelineConfig
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Draws the crop box of training, and whether to flip, or computes the centered crop box of evaluation.

    `original_size` is the original's size where the stored image was squeezed, else None. The seed, int32 [2], is not
    used in evaluation. The flip is None where nothing is flipped.
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
    """Draws a random resized crop (Szegedy et al. 2014, "Going deeper with convolutions"), in the original's shape.

    By one operation, as TensorFlow's own ImageNet trainers do: an aspect ratio uniform in `options.ratio`, then a
    height uniform among those that keep the area in `options.scale`, at a uniform place; after ten misses the whole
    image. `stored_size` is the size to which the image was squeezed, if it was.
    """
    begin, size, box = tf.image.stateless_sample_distorted_bounding_box(
        tf.stack([*original_size, 3]),
        tf.zeros([1, 0, 4]),
        seed,
        min_object_covered=0.0,
        aspect_ratio_range=options.ratio,
        area_range=options.scale,
        max_attempts=_CROP_ATTEMPTS,
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

    Its size is rounded, halves up; its place is rounded up and to the left. The output's aspect ratio is seen in the
    original, of whose largest centered crop `crop_fraction` of each side is kept.
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
    """Draws whether to mirror left to right: true for half of the seeds, whatever their crop boxes."""
    key = tf.bitwise.bitwise_xor(seed, tf.constant(_FLIP_KEY, tf.int32))
    return tf.equal(tf.random.stateless_uniform([], key, minval=0, maxval=2, dtype=tf.int32), 1)


def crop(image: tf.Tensor, crop_box: tf.Tensor) -> tf.Tensor:
    """Slices [height, width, 3] to a crop box. About 100 us for 200 x 200."""
    begin, size = tf.split(crop_box, 2)
    return tf.slice(image, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))


def augment_on_host(image: tf.Tensor, flip: tf.Tensor | None, config: PipelineConfig) -> tf.Tensor:
    """Resizes uint8 [h, w, 3] to the model's input, gives it its dtype, and mirrors it where `flip` says so."""
    options = config.augment_options
    result = convert_values(resize_image(image, config.size, options.antialias), config.image_dtype, options)
    if flip is None:
        return result
    # The flip comes last: the output is smaller than most crops, and uint8 a quarter of float32. Half need no copy.
    return tf.ensure_shape(tf.cond(flip, lambda: tf.reverse(result, [1]), lambda: result), result.shape)


def resize_image(image: tf.Tensor, out_size: tuple[int, int], antialias: bool = False) -> tf.Tensor:
    """Resizes uint8 [height, width, 3] bilinearly, with half-pixel centers: float32 in 0..255 up to rounding.

    TensorFlow vectorizes this for float32 only: to 224 x 224 it takes 330 us from uint8 and 180 us from float32, with
    the same values to the last bit. So an image of up to 131,072 pixels is converted first, for 10 to 80 us.
    """
    if image.shape[:2] == out_size:
        return tf.cast(image, tf.float32)
    if antialias:  # it converts by itself
        return tf.image.resize(image, out_size, antialias=True)
    if image.shape.is_fully_defined():
        return tf.image.resize(tf.cast(image, tf.float32) if image.shape.num_elements() <= _SMALL else image, out_size)
    return tf.cond(
        tf.size(image) <= _SMALL,
        lambda: tf.image.resize(tf.cast(image, tf.float32), out_size),
        lambda: tf.image.resize(image, out_size),
    )


def convert_values(image: tf.Tensor, dtype: str, options: AugmentOptions) -> tf.Tensor:
    """Converts float32 pixels in 0..255, of static shape, to the values that the model gets.

    "uint8" is rounded to the nearest, halves up; "float32" and "bfloat16" are normalized as `device.normalize` does.
    """
    if dtype == "uint8":
        return tf.cast(image + 0.5, tf.uint8)
    height, width, channels = image.shape
    # A row at a time: with 3 channels as the last axis TensorFlow repeats the constants pixel by pixel, which takes
    # 680 us, and this takes 200.
    offset, factor = (np.tile(np.array(row, np.float32), width) for row in compute_scaling(options.mean, options.std))
    rows = (tf.reshape(image, [height, width * channels]) - offset) * factor
    return tf.reshape(tf.cast(rows, dtype), [height, width, channels])
