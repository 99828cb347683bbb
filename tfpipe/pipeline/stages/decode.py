"""The stage `decode`: pixels in place of stored bytes, one record at a time, by TensorFlow's decoders.

JPEGs are cropped while they are decoded, if all images of a split are JPEGs. Only a split of several forms, or files
that tfpipe did not write, cost a look at each record's first bytes (7 us).
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.source import StoredImages
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages.augment import Extent, choose_crop, convert_values, crop, resize_image
from tfpipe.pipeline.stages.parse import Features, caches_whole, map_in_parallel, parallel_settings

_MARGIN = 2  # columns that are blended with the same neighbor in color, which is stored at half the width at least


def decode_images(plan: BatchPlan) -> Stage:
    """Decodes images; with augmentation on the host just the crop of each."""
    formats = " and ".join(sorted(plan.source.images.formats)) or "any"
    settings = {**parallel_settings(plan), "images": formats, "decoder": "tensorflow"}
    if caches_whole(plan.config):
        reason = "whole images, squeezed to one size: what the cache keeps"
    elif plan.config.augment == "host":
        reason = "the crop is fused with the decoder: what lies outside is not decoded"
    else:
        reason = "whole images"

    def apply(records: tf.data.Dataset) -> tf.data.Dataset:
        return map_in_parallel(plan, records, lambda features: _decode(plan, features))

    return Stage("decode", apply, settings, reason)


def _decode(plan: BatchPlan, features: Features) -> Features:
    """Replaces the bytes by the image, and adds whether to flip it if that is drawn with the crop."""
    config, stored, encoded = plan.config, plan.source.images, features["encoded"]
    if caches_whole(config):
        others = {name: value for name, value in features.items() if name != "encoded"}
        return {**others, "image": _squeeze(decode_image(encoded, stored), stored, plan.decoded_size, config)}
    others = {name: value for name, value in features.items() if name not in ("encoded", "height", "width", "seed")}
    if config.augment == "none":
        return {**others, "image": decode_image(encoded, stored)}
    crop_box, flip, size = find_crop(features, features.get("seed"), stored, config)
    image = decode_crop(encoded, crop_box, size, stored)
    return {**others, "image": image} | ({} if flip is None else {"flip": flip})


def _squeeze(image: tf.Tensor, stored: StoredImages, size: tuple[int, int], config: PipelineConfig) -> tf.Tensor:
    """Resizes a whole image to one size, whatever its shape: uint8 [*size, 3]."""
    if stored.size == size:
        return image
    options = config.augment_options
    return convert_values(resize_image(image, size, options.antialias), "uint8", options)


def find_crop(
    features: Mapping[str, tf.Tensor], seed: tf.Tensor | None, stored: StoredImages, config: PipelineConfig
) -> tuple[tf.Tensor, tf.Tensor | None, Extent]:
    """Finds the crop box of a record as `choose_crop` does, whether to flip it, and the size of the stored image."""
    size, original_size = read_image_size(features, stored), None
    if stored.size is not None and "height" in features and "width" in features:
        original_size = tf.cast(features["height"], tf.int32), tf.cast(features["width"], tf.int32)
    return (*choose_crop(size, original_size, seed, config), size)


def decode_image(encoded: tf.Tensor, stored: StoredImages) -> tf.Tensor:
    """Decodes a whole image: uint8 [height, width, 3], static where `stored.size` is known. Gray gets three channels.

    Bytes that are no image, or a damaged one, or one that is not of `stored.size`, are a
    `tf.errors.InvalidArgumentError` while reading.
    """
    if stored.formats == {"RAW"}:
        assert stored.size is not None
        return tf.reshape(tf.io.decode_raw(encoded, tf.uint8), [*stored.size, 3])
    if stored.formats == {"PNG"}:
        image = tf.io.decode_png(encoded, channels=3)
    elif stored.formats:
        # It reads PNG too, as its documentation says, so a mixed split needs no branch here.
        image = tf.io.decode_jpeg(encoded, channels=3)
    else:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [*(stored.size or (None, None)), 3])


def decode_crop(encoded: tf.Tensor, crop_box: tf.Tensor, size: Extent, stored: StoredImages) -> tf.Tensor:
    """Decodes the part of an image of this size that lies inside a crop box: uint8 [height, width, 3], as a slice."""
    if stored.formats == {"JPEG"}:
        return decode_jpeg_crop(encoded, crop_box, size[1])
    if stored.formats and "JPEG" not in stored.formats:
        return crop(decode_image(encoded, stored), crop_box)
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: decode_jpeg_crop(encoded, crop_box, size[1]),
        lambda: crop(decode_image(encoded, stored), crop_box),
    )
    return tf.ensure_shape(image, [None, None, 3])


def decode_jpeg_crop(
    encoded: tf.Tensor, crop_box: tf.Tensor, image_width: tf.Tensor | int, ratio: int = 1
) -> tf.Tensor:
    """Decodes a crop of a JPEG, without the rows above it and the blocks beside it. It equals a slice of the whole.

    Where color is stored at half the width, the first and the last column need a neighbor to blend with, or they differ
    by up to 20 of 255. So two columns more are decoded on either side, and left out (30 us). The sides of the image are
    divided by `ratio`, 1, 2, 4 or 8, while it is decoded; box and width are those of the result.
    """
    y, x, height, width = tf.unstack(crop_box)
    left = tf.minimum(x, _MARGIN)
    wide = left + width + tf.clip_by_value(image_width - x - width, 0, _MARGIN)  # a box that leaves it stays so
    window = tf.stack([y, x - left, height, wide])
    image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3, ratio=ratio)
    # As a matrix of bytes it is sliced in a third of the time.
    rows = tf.reshape(image, tf.stack([height, 3 * wide]))
    columns = tf.slice(rows, tf.stack([0, 3 * left]), tf.stack([height, 3 * width]))
    return tf.reshape(columns, tf.stack([height, width, 3]))


def read_image_size(features: Mapping[str, tf.Tensor], stored: StoredImages) -> Extent:
    """Returns the stored image's height and width, int32 scalars, from the cheapest source that is right.

    "height" and "width" of a record are used where tfpipe wrote it and images have no fixed size; with one they are the
    original's. Else the size comes from a JPEG's header (2 us and more), or from decoding.
    """
    encoded, height, width = (features.get(name) for name in ("encoded", "height", "width"))
    if stored.size is not None:
        return tf.constant(stored.size[0]), tf.constant(stored.size[1])
    if stored.formats and height is not None and width is not None:
        return tf.cast(height, tf.int32), tf.cast(width, tf.int32)
    if stored.formats == {"JPEG"}:
        shape = tf.io.extract_jpeg_shape(encoded)
    else:
        shape = tf.cond(
            tf.io.is_jpeg(encoded),
            lambda: tf.io.extract_jpeg_shape(encoded),
            lambda: tf.shape(decode_image(encoded, stored)),
        )
    return shape[0], shape[1]
