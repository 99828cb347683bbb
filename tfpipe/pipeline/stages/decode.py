"""The stage `decode`: pixels in place of stored bytes, one record at a time.

The decoder depends on the place where images are augmented:

    augment="host"    decode_for_host: just the crop, whose box and flip are drawn here
    augment="device"  decode_for_device: a whole image, squeezed to one size; also for a cache of decoded images
    augment="none"    decode_whole: a whole image

The manifest's promises are not checked again. If all images of a split are JPEGs, they are cropped while they are
decoded; PNGs and raw pixels have separate paths; images of one fixed size get a static shape. Only a split of several
forms, or files that tfpipe did not write, cost a look at each record's first bytes (7 us).

Costs are CPU time on one core of a busy machine. An operation that hardly computes costs about 1 us, also in a
branch that is not taken: hence arithmetic in front of a choice, and branches of a single operation.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.stored_images import StoredImages
from tfpipe.format.schema import IMAGE_ENCODED, IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.pipeline.mask_operations import crop_masks, resize_masks
from tfpipe.pipeline.stage import Stage
from tfpipe.pipeline.stages._crop_box import Extent, choose_crop, crop
from tfpipe.pipeline.stages.augment import convert_values, resize_image
from tfpipe.pipeline.stages.parse import Features, caches_whole, map_in_parallel, parallel_settings


def decode_images(plan: BatchPlan) -> Stage:
    """Decodes images; in training on the host just the crop of each."""
    config = plan.config
    settings = {**parallel_settings(plan), "images": " and ".join(sorted(plan.source.images.formats)) or "any"}
    settings["decoder"] = "tensorflow"
    if caches_whole(config):
        reason = "whole images, squeezed to one size: what the cache keeps"
    elif config.augment == "host":
        settings["dct_scaling"] = config.augment_options.dct_scaling
        reason = "the crop is fused with the decoder: what lies outside is not decoded"
    elif config.augment == "device":
        reason = "whole images, squeezed to one size: the device crops them"
    else:
        reason = "whole images"
    return Stage(
        "decode",
        lambda dataset: map_in_parallel(plan, dataset, lambda features: _decode(plan, features)),
        settings,
        reason,
    )


def _decode(plan: BatchPlan, features: Features) -> Features:
    """Replaces the bytes by the image, or by a tuple of several, which may differ in size."""
    if plan.num_images is None:
        return _decode_image(plan, features)
    own = [name for name in ("encoded", "height", "width", "seed") if name in features]
    others = {name: value for name, value in features.items() if name not in own}
    images = [_decode_image(plan, {name: features[name][k] for name in own}) for k in range(plan.num_images)]
    made = {name: tf.stack([image[name] for image in images]) for name in images[0] if name != "image"}
    pixels = [image["image"] for image in images]
    return {**others, **made, "image": tf.stack(pixels) if plan.config.augment == "device" else (*pixels,)}


def _decode_image(plan: BatchPlan, features: Features) -> Features:
    """Replaces the bytes by the image, and adds whether to flip it if that is drawn with the crop."""
    config, images = plan.config, plan.source.images
    used = ("encoded", "height", "width")
    others = {name: value for name, value in features.items() if name not in used}
    sizes: Features = {name: features[name] for name in ("height", "width") if name in features}
    record = {f"image/{name}": features[name] for name in ("encoded", *sizes)}
    if config.augment == "device" or caches_whole(config):
        others |= sizes
    elif config.augment == "host":
        image, crop_box, flip = decode_for_host(record, others.pop("seed", None), images, config)
        others |= crop_masks(plan, features, crop_box, flip)
        return {**others, "image": image} | ({} if flip is None else {"flip": flip})
    whole_size = plan.decoded_size if config.augment == "device" or caches_whole(config) else config.size
    others |= resize_masks(plan, features, whole_size)
    if config.augment == "device" or caches_whole(config):
        return {**others, "image": decode_for_device(record, images, config, plan.decoded_size)}
    return {**others, "image": decode_whole(record, images, config.size, config)}


def decode_for_host(
    features: Mapping[str, tf.Tensor], seed: tf.Tensor | None, stored: StoredImages, config: PipelineConfig
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Decodes the random crop of training, or the centered one of evaluation.

    Args:
        features: A record's `image/encoded`, and its `image/height` and `image/width` where it has them.
        seed: int32 of shape [2], another for each record and epoch; not used in evaluation.
        stored: The facts about the images.
        config: The options of the crop and of the decoder.

    Returns:
        uint8 of shape [h, w, 3], of the crop box's size or a fraction of it; the crop box, int32 of shape [4]; and a
        scalar bool, whether to flip, None where nothing is flipped.
    """
    size, original_size = read_image_size(features, stored), None
    if stored.size is not None and IMAGE_HEIGHT in features and IMAGE_WIDTH in features:
        original_size = tf.cast(features[IMAGE_HEIGHT], tf.int32), tf.cast(features[IMAGE_WIDTH], tf.int32)
    crop_box, flip = choose_crop(size, original_size, seed, config)
    dct_scaling = config.augment_options.dct_scaling
    image = decode_crop(features[IMAGE_ENCODED], crop_box, size, config.size, stored, dct_scaling)
    return image, crop_box, flip


def decode_for_device(
    features: Mapping[str, tf.Tensor],
    stored: StoredImages,
    config: PipelineConfig,
    decoded_size: tuple[int, int],
) -> tf.Tensor:
    """Decodes a whole image and squeezes it to one size, for a batch that the device crops from, or for a cache.

    Args:
        features: The record's features, as in `decode_for_host`.
        stored: The facts about the images.
        config: The options, of which `dct_scaling` and `antialias` are used. libjpeg may reduce large images, but to no
            less than `decoded_size`.
        decoded_size: Height and width in pixels, as `config.resolve_decoded_size` has it.

    Returns:
        uint8 of shape [*decoded_size, 3].
    """
    image = decode_whole(features, stored, decoded_size, config)
    if stored.size == decoded_size:
        return image
    options = config.augment_options
    return convert_values(resize_image(image, decoded_size, options.antialias), "uint8", options)


def decode_whole(
    features: Mapping[str, tf.Tensor], stored: StoredImages, out_size: tuple[int, int], config: PipelineConfig
) -> tf.Tensor:
    """Decodes a whole image, which is then resized: uint8 of shape [h, w, 3].

    Args:
        features: The record's features, as in `decode_for_host`.
        stored: The facts about the images.
        out_size: The height and width to which the image is resized. libjpeg may reduce large images, but to no less.
        config: The options, of which `dct_scaling` is used.
    """
    encoded = features[IMAGE_ENCODED]
    may_be_jpeg = not stored.formats or "JPEG" in stored.formats
    if not (config.augment_options.dct_scaling and may_be_jpeg and stored.find_ratios(out_size)):
        return decode_image(encoded, stored)
    size = read_image_size(features, stored)
    return decode_crop(encoded, tf.stack([0, 0, *size]), size, out_size, stored, dct_scaling=True)


def decode_image(encoded: tf.Tensor, stored: StoredImages) -> tf.Tensor:
    """Decodes a whole image.

    A 256 x 256 JPEG takes 400 us, raw pixels 20 us.

    Args:
        encoded: Scalar string: the file's bytes, or raw pixels.
        stored: The facts about the images.

    Returns:
        uint8 of shape [height, width, 3], static where `stored.size` is known. Gray becomes three equal channels.

    Raises:
        tf.errors.InvalidArgumentError: While reading: the bytes are not an image, or the image is damaged or not of
            `stored.size`.
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


def decode_crop(
    encoded: tf.Tensor,
    crop_box: tf.Tensor,
    size: Extent,
    out_size: tuple[int, int],
    stored: StoredImages,
    dct_scaling: bool,
) -> tf.Tensor:
    """Decodes the part of an image inside a crop box; a JPEG is decoded no further than needed.

    JPEGs skip rows above the box and blocks beside it. The result equals a slice of the whole image. Where color is
    stored at half the width, the first and the last column need a neighbor to blend with, or they differ by up to 20
    of 255. So two columns more are decoded on either side, and left out (30 us). Other formats are decoded whole and
    sliced.

    With `dct_scaling` a JPEG crop at least 2, 4 or 8 times as large as the output, on both axes, is decoded at
    1/2, 1/4 or 1/8. The box's sides are then rounded to pixels of the reduced image, half an output pixel at
    most. Choosing costs 18 us a record, nothing where `stored` rules it out. Of a 2000 x 2000 JPEG, 1000 x 1000 for
    224 x 224 then take 5.2 ms, not 6.4, and 1900 x 1900 7.8 ms, not 13.6; of ImageNet's training crops only 2 % are
    large enough. Against full decoding and a resize without antialias, photographs differ by 7.5 of 255 on average
    at 1/2, 11 at 1/4 and 15 at 1/8, single pixels by up to 205. Most of that is the aliasing which it avoids: from
    an antialiased resize they differ by 4.7, 4.7 and 5.6, a resize without antialias itself by 6.1, 10 and 15.

    Args:
        encoded: Scalar string: the file's bytes, or raw pixels.
        crop_box: int32 of shape [4]: y, x, height, width in pixels of the stored image, inside it and not empty.
        size: The stored image's size; it is used for JPEGs.
        out_size: Height and width in pixels to which the result will be resized.
        stored: The facts about the images.
        dct_scaling: Whether libjpeg may reduce large crops.

    Returns:
        uint8 of shape [h, w, 3], h and w unknown when the graph is built: the box's, or a 2nd, 4th or 8th.

    Raises:
        tf.errors.InvalidArgumentError: While reading: the bytes are not an image, or a damaged one, or the box leaves
            it.
    """
    if stored.formats == {"JPEG"}:
        ratios = stored.find_ratios(out_size) if dct_scaling else ()
        return _decode_jpeg_crop(encoded, crop_box, size, ratios, out_size)
    if stored.formats and "JPEG" not in stored.formats:
        return crop(decode_image(encoded, stored), crop_box)
    ratios = stored.find_ratios(out_size) if dct_scaling else ()
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _decode_jpeg_crop(encoded, crop_box, size, ratios, out_size),
        lambda: crop(decode_image(encoded, stored), crop_box),
    )
    return tf.ensure_shape(image, [None, None, 3])


def read_image_size(features: Mapping[str, tf.Tensor], stored: StoredImages) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the stored image's height and width, from the cheapest source that is right.

    Args:
        features: A record's `image/encoded`, and its `image/height` and `image/width` where it has them. These are used
            where tfpipe wrote the record and images have no fixed size; with one they are the original's.
        stored: The facts about the images. A fixed size is a constant of the graph.

    Returns:
        Two int32 scalars, in pixels. They come from a JPEG's header where the record does not say (2 us and more), and
        from decoding where the bytes are not a JPEG either.
    """
    encoded, height, width = (features.get(name) for name in (IMAGE_ENCODED, IMAGE_HEIGHT, IMAGE_WIDTH))
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


def _decode_jpeg_crop(
    encoded: tf.Tensor, crop_box: tf.Tensor, size: Extent, ratios: tuple[int, ...], out_size: tuple[int, int]
) -> tf.Tensor:
    # Restart markers are not used here. To find them takes 75 us, to splice the crop's intervals to a small JPEG 110 us
    # more, which is most of what decoding saves: whole pipelines became no faster, also if large boxes are left alone.
    if not ratios:
        window, place = _widen(crop_box, size[1])
        return _cut_columns(tf.io.decode_and_crop_jpeg(encoded, window, channels=3), place)
    begin, extent = tf.split(crop_box, 2)
    bounds = [[ratio * side for side in out_size] for ratio in ratios]
    # Ratios rise, so those that the box is large enough for come first, and their number is the branch.
    branch = tf.reduce_sum(tf.cast(tf.reduce_all(extent >= bounds, axis=1), tf.int32))
    ratio = tf.bitwise.left_shift(1, branch)
    # The decoder wants the box in pixels of the reduced image, whose sides are rounded up: so rounding to the
    # nearest stays inside. Before the choice, not in its branches: once, and those not taken cost too.
    near = (begin + ratio // 2) // ratio
    far = (begin + extent + ratio // 2) // ratio
    window, place = _widen(tf.concat([near, far - near], 0), (size[1] + ratio - 1) // ratio)
    image = tf.switch_case(
        branch,
        [lambda r=r: tf.io.decode_and_crop_jpeg(encoded, window, channels=3, ratio=r) for r in (1, *ratios)],
    )
    return _cut_columns(image, place)


_MARGIN = 2  # columns that are blended with the same neighbor in color, which is stored at half the width at least


def _widen(crop_box: tf.Tensor, image_width: tf.Tensor | int) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
    """Adds the margin to a crop box where the image has it.

    Returns:
        The wider box, and the place of the crop in it: its first column, its height and width, and the box's width.
    """
    y, x, height, width = tf.unstack(crop_box)
    left = tf.minimum(x, _MARGIN)
    wide = left + width + tf.clip_by_value(image_width - x - width, 0, _MARGIN)  # a box that leaves it stays so
    return tf.stack([y, x - left, height, wide]), (left, height, width, wide)


def _cut_columns(image: tf.Tensor, place: tuple[tf.Tensor, ...]) -> tf.Tensor:
    """Slices a crop out of a wider one. As a matrix of bytes it is sliced in a third of the time."""
    left, height, width, wide = place
    rows = tf.reshape(image, tf.stack([height, 3 * wide]))
    return tf.reshape(
        tf.slice(rows, tf.stack([0, 3 * left]), tf.stack([height, 3 * width])), tf.stack([height, width, 3])
    )
