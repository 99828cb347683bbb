"""Decodes masks, the classes of an image's pixels, and crops them as the pipeline crops their images.

Each pixel of the result takes the class under its center, as in `tfpipe.images.masks`. The places are computed in whole
numbers, so all readers give the same classes. Until a batch is made the classes are uint16, which a cache keeps in less
memory than int32.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tfpipe.engine.plan import BatchPlan

_DEPTH_AT = 24  # the byte of a PNG that says the bits of a sample


def crop_masks(
    plan: BatchPlan, features: Mapping[str, tf.Tensor], crop_box: tf.Tensor, flip: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Decodes the masks of a record, and makes them what its image becomes on the host.

    Args:
        plan: The plan of the pipeline.
        features: The features of the record: masks as PNG, or as uint16 [height, width] from a cache.
        crop_box: int32 of shape [4]: y, x, height and width in pixels of the mask.
        flip: Scalar bool, whether to mirror them; None for no flip.

    Returns:
        uint16 of shape [*config.size] by the name of each mask.
    """
    return {name: crop_mask(_decode(features[name]), crop_box, flip, plan.config.size) for name in plan.masks}


def resize_masks(plan: BatchPlan, features: Mapping[str, tf.Tensor], size: tuple[int, int]) -> dict[str, tf.Tensor]:
    """Decodes the masks of a record and resizes them as a whole; the arguments are those of `crop_masks`."""
    masks = {}
    for name in plan.masks:
        mask = _decode(features[name])
        masks[name] = crop_mask(mask, tf.concat([[0, 0], tf.shape(mask)], 0), None, size)
    return masks


def decode_mask(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes a mask.

    Args:
        encoded: Scalar string: a gray PNG of 8 or 16 bits.

    Returns:
        uint16 of shape [height, width].

    Raises:
        tf.errors.InvalidArgumentError: While reading: the bytes are not a PNG, or a damaged one.
    """
    values = tf.io.decode_png(encoded, channels=1, dtype=tf.uint16)[..., 0]
    # The decoder scales 8 bits to 16 by writing each byte twice.
    has_8_bits = tf.equal(tf.strings.substr(encoded, _DEPTH_AT, 1), b"\x08")
    return tf.where(has_8_bits, tf.bitwise.right_shift(values, tf.constant(8, tf.uint16)), values)


def crop_mask(mask: tf.Tensor, crop_box: tf.Tensor, flip: tf.Tensor | None, size: tuple[int, int]) -> tf.Tensor:
    """Cuts a box out of a mask, resizes it, and mirrors it where `flip` says so.

    Args:
        mask: Integers of shape [height, width].
        crop_box: int32 of shape [4]: y, x, height and width in pixels, inside the mask and not empty.
        flip: Scalar bool; None for no flip.
        size: The height and width of the result.

    Returns:
        The dtype of `mask`, of shape [*size].
    """
    y, x, height, width = tf.unstack(tf.cast(crop_box, tf.int64))
    rows, columns = (_find_places(*axis) for axis in ((y, height, size[0]), (x, width, size[1])))
    if flip is not None:
        columns = tf.where(flip, columns[::-1], columns)
    return tf.ensure_shape(tf.gather(tf.gather(mask, rows), columns, axis=1), size)


def _find_places(begin: tf.Tensor, extent: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the pixels under the centers of `count` pixels that cover an axis of a box: int64 [count]."""
    return begin + (2 * tf.range(count, dtype=tf.int64) + 1) * extent // (2 * count)


def _decode(mask: tf.Tensor) -> tf.Tensor:
    return decode_mask(mask) if mask.dtype == tf.string else mask
