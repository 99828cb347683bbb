"""The native TensorFlow operations: one call in place of many of TensorFlow's own, with the same values to the bit.

`decode_jpegs` decodes crops, resizes, mirrors and converts them, row by row. No image lies in memory between these
steps. `draw_crops` draws the crops of a batch. `read_records` reads records from their places in files.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from tfpipe.engine.config.augment_config import AugmentOptions, compute_scaling
from tfpipe.errors import ConfigError, first_line
from tfpipe.native import library

_OK = 0  # what the operation says of an image that it has decoded
_MAX_PIXELS = 2**29 // 3  # `tf.io.decode_jpeg` refuses larger images too


@functools.cache
def _load_operations() -> Any:
    try:
        return tf.load_op_library(library.OPERATIONS_PATH)
    except tf.errors.OpError as error:
        raise ConfigError(
            f"This TensorFlow cannot load tfpipe's operations: {first_line(error)}. Set `decoder` to tensorflow."
        ) from error


class Result(NamedTuple):
    """The image that becomes of a crop.

    Attributes:
        size: The height and width of the result in pixels.
        dtype: "uint8", "float32" or "bfloat16".
        max_ratio: The largest reduction while decoding: 1, 2, 4 or 8. A crop is never reduced below `size`.
        options: `mean` and `std` are used.
    """

    size: tuple[int, int]
    dtype: str
    max_ratio: int
    options: AugmentOptions


def read_records(paths: tf.Tensor, places: tf.Tensor, threads: int, ahead: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads records of TFRecord files, each from its place, and checks them.

    Adjacent records are read at once. Storage is asked for all that is not in the page cache before one is waited for.

    Args:
        paths: string [files]: the paths of local files.
        places: int64 [n, 3]: the number of the file, the first byte of the record with its framing, and the byte
            behind it.
        threads: The most threads that wait for storage, of all calls together.
        ahead: The bytes, from a record on that is not in the page cache, that storage is asked for.

    Returns:
        The payloads, string [n], and whether each record is there and whole, bool [n]. The payload of one that is not
        is empty.

    Raises:
        tf.errors.InvalidArgumentError: While reading: a place is of no file.
        ConfigError: TensorFlow cannot load the operation.
    """
    payloads, whole = _load_operations().tfpipe_read(paths, places, threads=threads, ahead=ahead)
    return tf.ensure_shape(payloads, places.shape[:1]), tf.ensure_shape(whole, places.shape[:1])


def draw_crops(
    seeds: tf.Tensor, sizes: tf.Tensor, stored_size: tuple[int, int] | None, options: AugmentOptions
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws random resized crops and flips, as `_crop_box.sample_crop_box` and `sample_flip` do for one record.

    Args:
        seeds: int32 of shape [n, 2].
        sizes: int32 of shape [n, 2]: the height and width of the originals.
        stored_size: The size of the stored images if all were squeezed to one; None if they have the originals' sizes.
        options: `scale` and `ratio` are used.

    Returns:
        The crop boxes, int32 [n, 4], and whether to flip, bool [n].

    Raises:
        tf.errors.InvalidArgumentError: While reading: a size is below 1.
        ConfigError: TensorFlow cannot load the operation.
    """
    height, width = stored_size or (0, 0)
    drawn: tuple[tf.Tensor, tf.Tensor] = _load_operations().tfpipe_draw_crops(
        seeds, sizes, scale=options.scale, ratio=options.ratio, stored_height=height, stored_width=width
    )
    return drawn


def decode_jpegs(
    encoded: tf.Tensor, crop_box: tf.Tensor, flip: tf.Tensor, result: Result, threads: int = 1
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes the part of a JPEG inside a crop box, resizes it bilinearly, converts its values and mirrors it.

    It takes one JPEG, or a batch of them: then all arguments but `result` and `threads` have an axis more.

    Args:
        encoded: Scalar string: the JPEG.
        crop_box: int32 of shape [4]: y, x, height, width in pixels of the stored image.
        flip: Scalar bool.
        result: The size and the values of the result.
        threads: The most threads that decode a batch, of all calls together.

    Returns:
        `result.dtype` of shape [*result.size, 3], or [n, *result.size, 3]; and whether it was decoded, bool. It was not
        if the bytes are of a rare kind, no JPEG or a damaged one, or if the box leaves the image.

    Raises:
        ConfigError: TensorFlow cannot load the operation.
    """
    height, width = result.size
    offset, factor = compute_scaling(result.options.mean, result.options.std)
    image, code = _load_operations().tfpipe_decode(
        encoded,
        crop_box,
        flip,
        dtype=tf.as_dtype(result.dtype),
        height=height,
        width=width,
        max_ratio=result.max_ratio,
        max_pixels=_MAX_PIXELS,
        threads=threads,
        seeks=True,
        offset=offset,
        factor=factor,
    )
    return tf.ensure_shape(image, [*encoded.shape, height, width, 3]), tf.ensure_shape(code == _OK, encoded.shape)
