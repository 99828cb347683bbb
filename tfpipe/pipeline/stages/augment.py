"""The stage `augment`: crop, flip, resize and values, as the model gets them; on the device it leaves all that to it.

    augment="host"    augment_on_host, after crop_for_host where decoded images come from a cache
    augment="device"  nothing: `device.augment` does all of it
    augment="none"    augment_on_host without a flip

Costs of one 224 x 224 record, CPU time on one core of a busy machine, to about 15 %: resize from 256 x 256 230 us,
rounding to uint8 up to 150 us, normalizing 200 us, flip 130 us on average (twice that for those that are flipped).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfpipe.engine.config.augment_config import AugmentOptions, compute_scaling
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import BatchPlan
from tfpipe.pipeline.mask_operations import crop_masks, resize_masks
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages._crop_box import Extent, choose_crop, crop
from tfpipe.pipeline.stages.parse import Features, add_seeds, caches_whole, map_in_parallel, parallel_settings


def augment_images(plan: BatchPlan) -> Stage:
    """Augments images on the host, or leaves this to the device."""
    config = plan.config
    settings = {"where": config.augment, "image_dtype": config.image_dtype, **parallel_settings(plan)}
    size = plan.decoded_size if config.augment == "device" else config.size
    settings["size"] = f"{size[0]}x{size[1]}"
    reason = {
        "host": "random resized crop and flip" if config.training else "resize short side, center crop",
        "device": "left to the device: uint8 is handed over",
        "none": "plain resize",
    }[config.augment]

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        if caches_whole(config):
            dataset = add_seeds(plan, dataset)
        if config.augment == "device":  # the device does everything
            return dataset
        return map_in_parallel(plan, dataset, lambda features: _augment(plan, features))

    return Stage("augment", apply, settings, reason)


def _augment(plan: BatchPlan, features: Features) -> Features:
    """Replaces the decoded image by the image that the model gets."""
    config = plan.config
    image, flip = features["image"], features.get("flip")
    masks: Features = {}
    if config.augment == "host" and caches_whole(config):
        sizes = [tf.cast(features[name], tf.int32) for name in ("height", "width") if name in features]
        original_size = (sizes[0], sizes[1]) if sizes else None
        image, crop_box, flip = crop_for_host(image, original_size, features["seed"], config)
        masks = crop_masks(plan, features, crop_box, flip)
    elif caches_whole(config):
        masks = resize_masks(plan, features, config.size)
    used = ("image", "flip", "seed", "height", "width")
    others = {name: value for name, value in features.items() if name not in used}
    if plan.num_images is not None:
        flips = [None] * plan.num_images if flip is None else tf.unstack(flip, plan.num_images)
        images = [augment_on_host(one, is_flipped, config) for one, is_flipped in zip(image, flips, strict=True)]
        return {**others, "image": tf.stack(images)}
    return {**others, **masks, "image": augment_on_host(image, flip, config)}


def crop_for_host(
    image: tf.Tensor, original_size: Extent | None, seed: tf.Tensor | None, config: PipelineConfig
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Crops an image that is decoded already, such as one from a cache, as `decode_for_host` does.

    Args:
        image: uint8 of shape [height, width, 3].
        original_size: The original's size; None if the image has it.
        seed: int32 of shape [2]; not used in evaluation.
        config: The options of the crop.

    Returns:
        What `decode_for_host` returns.
    """
    height, width, _ = image.shape if image.shape.is_fully_defined() else tf.unstack(tf.shape(image))
    crop_box, flip = choose_crop((height, width), original_size, seed, config)
    return crop(image, crop_box), crop_box, flip


def augment_on_host(image: tf.Tensor, flip: tf.Tensor | None, config: PipelineConfig) -> tf.Tensor:
    """Resizes an image to the model's input, gives it its dtype, and mirrors it where `flip` says so.

    Args:
        image: uint8 of shape [h, w, 3].
        flip: Scalar bool; None for no flip.
        config: The size, the dtype and the options of both.

    Returns:
        `config.image_dtype` of shape [*config.size, 3].
    """
    options = config.augment_options
    result = convert_values(resize_image(image, config.size, options.antialias), config.image_dtype, options)
    if flip is None:
        return result
    # The flip comes last: the output is smaller than most crops, and uint8 a quarter of float32. Half need no copy.
    return tf.ensure_shape(tf.cond(flip, lambda: tf.reverse(result, [1]), lambda: result), result.shape)


def resize_image(image: tf.Tensor, out_size: tuple[int, int], antialias: bool = False) -> tf.Tensor:
    """Resizes bilinearly, with half-pixel centers.

    TensorFlow vectorizes this for float32 only: to 224 x 224 it takes 330 us from uint8 and 180 us from float32, with
    the same values to the last bit. So an image of up to 131,072 pixels is converted first, for 10 to 80 us.

    Args:
        image: uint8 of shape [height, width, 3].
        out_size: Height and width in pixels.
        antialias: Average over what an output pixel covers if the image shrinks; about three times the cost.

    Returns:
        float32 of shape [*out_size, 3], in 0..255 up to rounding.
    """
    if image.shape[:2] == out_size:
        return tf.cast(image, tf.float32)
    if antialias:  # it converts by itself
        return tf.image.resize(image, out_size, antialias=True)
    if image.shape.is_fully_defined():
        return tf.image.resize(tf.cast(image, tf.float32) if _is_small(image.shape.num_elements()) else image, out_size)
    return tf.cond(
        _is_small(tf.size(image)),
        lambda: tf.image.resize(tf.cast(image, tf.float32), out_size),
        lambda: tf.image.resize(image, out_size),
    )


def _is_small(num_values: tf.Tensor | int) -> tf.Tensor | bool:
    """Returns whether to convert an image to float32 costs less than it saves. Of a large one few pixels are used."""
    return num_values <= 3 * 2**17


def convert_values(image: tf.Tensor, dtype: str, options: AugmentOptions) -> tf.Tensor:
    """Converts pixels to the values that the model gets.

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
    # 680 us, and this takes 200.
    offset, factor = (np.tile(np.array(row, np.float32), width) for row in compute_scaling(options.mean, options.std))
    rows = (tf.reshape(image, [height, width * channels]) - offset) * factor
    return tf.reshape(tf.cast(rows, dtype), [height, width, channels])
