"""From stored bytes to pixels, one record at a time: for functions that `tf.data` maps over records.

What the manifest promises is not looked up again: a split that is all JPEG is cut out while it is decoded, all PNG
and raw pixels have paths of their own, and images of one fixed size come out with a static shape. Only a split of
several forms, or files that tfpipe did not write, cost a look at each record's first bytes (7 us).

Costs are CPU time on one core of a busy machine. An operation that hardly computes costs about 1 us, also in a
branch that is not taken: hence arithmetic in front of a choice, and branches of a single operation.
"""

from __future__ import annotations

import tensorflow as tf

from tfpipe.pipeline.plan.stored_images import StoredImages


def decode_image(encoded: tf.Tensor, stored: StoredImages) -> tf.Tensor:
    """Decodes a whole image.

    A 256 x 256 JPEG takes 400 us, raw pixels 20 us.

    Args:
      encoded: Scalar string: the file's bytes, or raw pixels.
      stored: What is known of the images.

    Returns:
      uint8 of shape [height, width, 3], static where `stored.size` is known. Grey becomes three equal channels.

    Raises:
      tf.errors.InvalidArgumentError: While reading: no image, a damaged one, or not of `stored.size`.
    """
    if stored.formats == {"RAW"}:
        assert stored.size is not None
        return tf.reshape(tf.io.decode_raw(encoded, tf.uint8), [*stored.size, 3])
    if stored.formats == {"PNG"}:
        image = tf.io.decode_png(encoded, channels=3)
    elif stored.formats:
        # It reads PNG too, as its documentation says: a mixed split pays for no choice here.
        image = tf.io.decode_jpeg(encoded, channels=3)
    else:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [*(stored.size or (None, None)), 3])


def decode_crop(
    encoded: tf.Tensor, window: tf.Tensor, out_size: tuple[int, int], stored: StoredImages, dct_scaling: bool
) -> tf.Tensor:
    """Decodes what a window shows; of a JPEG no more than needed.

    JPEGs skip rows above the window and blocks beside it. What is left equals a slice of the whole image but for
    the window's first and last column, where colour stored at half the width has no neighbour to blend with: up
    to 20 of 255. Other formats are decoded whole and sliced.

    With `dct_scaling` a JPEG window at least 2, 4 or 8 times as large as the output, on both axes, is decoded at
    1/2, 1/4 or 1/8. The window's sides are then rounded to pixels of the reduced image, half an output pixel at
    most. Choosing costs 18 us a record, nothing where `stored` rules it out. Of a 2000 x 2000 JPEG, 1000 x 1000 for
    224 x 224 then take 5.2 ms, not 6.4, and 1900 x 1900 7.8 ms, not 13.6; of ImageNet's training crops only 2 % are
    large enough. Against full decoding and a resize without antialias, photographs differ by 7.5 of 255 on average
    at 1/2, 11 at 1/4 and 15 at 1/8, single pixels by up to 205. Most of that is the aliasing which it avoids: from
    an antialiased resize they differ by 4.7, 4.7 and 5.6, a resize without antialias itself by 6.1, 10 and 15.

    Args:
      encoded: Scalar string: the file's bytes, or raw pixels.
      window: int32 of shape [4]: y, x, height, width in pixels of the stored image, inside it and not empty.
      out_size: Height and width in pixels to which the result will be resized.
      stored: What is known of the images.
      dct_scaling: Let libjpeg reduce large windows.

    Returns:
      uint8 of shape [h, w, 3], h and w unknown when the graph is built: the window's, or a 2nd, 4th or 8th.

    Raises:
      tf.errors.InvalidArgumentError: While reading: no image, a damaged one, or a window that leaves it.
    """
    if stored.formats == {"JPEG"}:
        return _decode_jpeg_crop(encoded, window, stored.ratios_for(out_size) if dct_scaling else (), out_size)
    if stored.formats and "JPEG" not in stored.formats:
        return crop(decode_image(encoded, stored), window)
    ratios = stored.ratios_for(out_size) if dct_scaling else ()
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _decode_jpeg_crop(encoded, window, ratios, out_size),
        lambda: crop(decode_image(encoded, stored), window),
    )
    return tf.ensure_shape(image, [None, None, 3])


def crop(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Slices [height, width, 3] to the window: y, x, height, width in pixels. About 100 us for 200 x 200."""
    begin, size = tf.split(window, 2)
    return tf.slice(image, tf.concat([begin, [0]], 0), tf.concat([size, [3]], 0))


def image_size_of(
    encoded: tf.Tensor, stored: StoredImages, height: tf.Tensor | None = None, width: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """The stored image's height and width, from the cheapest source that is right.

    Args:
      encoded: Scalar string: the file's bytes, or raw pixels.
      stored: What is known of the images. A fixed size is a constant of the graph.
      height: Scalar of any integer type: the record's own word, taken where tfpipe wrote the record. With a fixed
        size it is the original's, and not used.
      width: Likewise.

    Returns:
      Two int32 scalars, in pixels. From a JPEG's header where the record does not say (2 us and more), and by
      decoding where that is no JPEG either.
    """
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
    encoded: tf.Tensor, window: tf.Tensor, ratios: tuple[int, ...], out_size: tuple[int, int]
) -> tf.Tensor:
    if not ratios:
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    begin, size = tf.split(window, 2)
    bounds = [[ratio * side for side in out_size] for ratio in ratios]
    # Of rising ratios those that the window allows come first, so their number is the branch.
    branch = tf.reduce_sum(tf.cast(tf.reduce_all(size >= bounds, axis=1), tf.int32))
    ratio = tf.bitwise.left_shift(1, branch)
    # The decoder wants the window in pixels of the reduced image, whose sides are rounded up: so rounding to the
    # nearest stays inside. Before the choice, not in its branches: once, and those not taken cost too.
    near = (begin + ratio // 2) // ratio
    far = (begin + size + ratio // 2) // ratio
    scaled = tf.concat([near, far - near], 0)
    return tf.switch_case(
        branch,
        [lambda r=r: tf.io.decode_and_crop_jpeg(encoded, scaled, channels=3, ratio=r) for r in (1, *ratios)],
    )
