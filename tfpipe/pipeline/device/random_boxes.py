"""Random crop boxes, flips, and the weights and patches of mixtures, for the augmentation on the device.

The weights with which `augment.crop_and_resize` cuts such a box out are computed here too.

Seeds go in, choices come out, for a whole batch at once with static shapes and no loop that depends on data,
so that XLA compiles it for any device. Each example has a seed of its own and its choices are a function of
that seed (and of the image's size) alone: not of the batch, the replica, or whether XLA compiled them.

TensorFlow's own `tf.random.stateless_*` cannot promise that: one call takes one seed for its whole tensor, and
the same seed gives other numbers under XLA than without. Hence this module has its own generator, Threefry-2x32
with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; also JAX's default): about
a hundred additions, shifts and xors for two numbers, nothing beside a crop.
"""

import math

import tensorflow as tf

CROP_ATTEMPTS = 10
"""Crops tried before the fallback, as in torchvision's RandomResizedCrop. All ten are drawn: a loop with an
early end would cost XLA more than the few numbers it saves."""

GAMMA_ATTEMPTS = 8
"""Tries of a sampler that accepts at least 95 % of them: all fail once in 10^10."""

# The stream of an example's random numbers that each choice draws from, so that one seed serves them all.
_CROPS, _FLIPS, _BETA, _PATCHES, _SPLIT = range(5)


def sample_crop_boxes(
    seeds: tf.Tensor,
    heights: tf.Tensor,
    widths: tf.Tensor,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tf.Tensor:
    """Draws random resized crops, the "Inception crop" of Szegedy et al. 2014, "Going deeper with convolutions".

    The algorithm is that of torchvision's RandomResizedCrop: an area uniform in `scale`, an aspect ratio
    log-uniform in `ratio`, the first of ten draws that fits in the image, at a uniform place; where none fits,
    the largest centered crop whose aspect ratio is allowed. Unlike there, a box may begin and end between pixels.

    Args:
        seeds: int32 of shape [batch, 2]. The same seed gives the same box, whatever the batch.
        heights: The originals' heights, of shape [batch] and any number type. Boxes have their aspect ratio as seen in
            the original, also where the stored image is squeezed to a square.
        widths: The originals' widths, of shape [batch].
        scale: Smallest and largest share of the image's area. Default: Szegedy et al. 2014.
        ratio: Smallest and largest aspect ratio, width / height. Default: Szegedy et al. 2014.

    Returns:
        float32 of shape [batch, 4]: ymin, xmin, ymax, xmax as fractions of the image, in 0..1.
    """
    numbers = uniform(seeds, _CROPS, 2 * CROP_ATTEMPTS + 2)
    image_ratio = (tf.cast(widths, tf.float32) / tf.cast(heights, tf.float32))[:, None]
    area = scale[0] + (scale[1] - scale[0]) * numbers[:, :CROP_ATTEMPTS]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = tf.exp(low + (high - low) * numbers[:, CROP_ATTEMPTS : 2 * CROP_ATTEMPTS])

    # As fractions: a box of aspect a in an image of aspect r is sqrt(area * a / r) wide and sqrt(area * r / a) high.
    tried = tf.stack([tf.sqrt(area * image_ratio / aspect), tf.sqrt(area * aspect / image_ratio)], axis=-1)
    nearest = tf.clip_by_value(image_ratio, ratio[0], ratio[1])
    fallback = tf.concat([tf.minimum(1.0, image_ratio / nearest), tf.minimum(1.0, nearest / image_ratio)], axis=-1)
    extent, fits = _first(tried, tf.reduce_all(tried <= 1.0, axis=-1), fallback)

    # The fallback lies in the middle.
    place = tf.where(fits[:, None], numbers[:, 2 * CROP_ATTEMPTS :], 0.5)
    return _place_boxes(place, extent)


def sample_flips(seeds: tf.Tensor) -> tf.Tensor:
    """Draws which images are mirrored left to right: half of them.

    Args:
        seeds: int32 of shape [batch, 2]; they may be the crops' seeds, the draws are independent.

    Returns:
        bool of shape [batch].
    """
    return uniform(seeds, _FLIPS, 1)[:, 0] < 0.5


def center_crop_boxes(
    heights: tf.Tensor, widths: tf.Tensor, crop_fraction: float = 0.875, aspect: float = 1.0
) -> tf.Tensor:
    """Computes the crops of evaluation: what resizing the short side and then cropping the middle would show.

    Args:
        heights: The originals' heights, of shape [batch] and any number type.
        widths: The originals' widths, of shape [batch].
        crop_fraction: Share of the largest centered crop's side that is kept, in (0, 1]. Default: 224 of 256, the
            single crop of He et al. 2015, "Deep residual learning for image recognition".
        aspect: Width / height of the crop in the original; 1 for a square output.

    Returns:
        float32 of shape [batch, 4]: ymin, xmin, ymax, xmax as fractions of the image.
    """
    image_ratio = tf.cast(widths, tf.float32) / tf.cast(heights, tf.float32)
    extent = tf.stack([tf.minimum(1.0, image_ratio / aspect), tf.minimum(1.0, aspect / image_ratio)], axis=-1)
    return _place_boxes(tf.constant(0.5), extent * crop_fraction)


def sample_beta(seeds: tf.Tensor, alpha: float) -> tf.Tensor:
    """Draws from the symmetric beta distribution Beta(alpha, alpha), for `mixup` and `cutmix`.

    A draw is G / (G + H) of two gamma draws, each by Marsaglia and Tsang 2000, "A simple method for generating gamma
    variables": `tf.random.stateless_gamma` does not compile with XLA. It is computed in logarithms, since a draw for a
    small `alpha` may be too small for float32.

    Args:
        seeds: int32 of shape [batch, 2].
        alpha: The parameter of the distribution, above 0.

    Returns:
        float32 of shape [batch], in 0..1.
    """
    count = 3 * GAMMA_ATTEMPTS + 1
    numbers = 1.0 - uniform(seeds, _BETA, 2 * count)  # in (0, 1]: each has a logarithm
    return tf.sigmoid(_log_gamma(numbers[:, :count], alpha) - _log_gamma(numbers[:, count:], alpha))


def sample_patches(seeds: tf.Tensor, kept: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Draws CutMix's patches as its authors' code does: the image's aspect ratio, any center, cut at the border.

    Args:
        seeds: int32 of shape [batch, 2].
        kept: float32 of shape [batch]: share of the image that stays, before the border cuts the patch.
        height: The height of the images in pixels.
        width: The width of the images in pixels.

    Returns:
        int32 of shape [batch, 4]: ymin, xmin, ymax, xmax in pixels, the last two exclusive. May be empty.
    """
    size = tf.constant([height, width], tf.float32)
    half = tf.floor(tf.floor(size * tf.sqrt(1.0 - kept)[:, None]) / 2.0)
    center = tf.floor(uniform(seeds, _PATCHES, 2) * size)
    corners = tf.concat([tf.maximum(center - half, 0.0), tf.minimum(center + half, size)], axis=-1)
    return tf.cast(corners, tf.int32)


def resize_weights(
    low: tf.Tensor, high: tf.Tensor, size: int, out_size: int, antialias: bool, flips: tf.Tensor | None = None
) -> tf.Tensor:
    """Computes what each input pixel of one axis gives to each output pixel.

    The weights are float32 [batch, out_size, size], and each row sums to 1.

    Lengths are in input pixels: pixel j covers j to j + 1, and `low` to `high` (fractions) is cut in `out_size` parts.
    """
    low, high = low[:, None] * size, high[:, None] * size
    part = tf.range(out_size, dtype=tf.float32)[None]
    if flips is not None:
        part = tf.where(flips[:, None], out_size - 1 - part, part)
    step = (high - low) / out_size
    center = low + (part + 0.5) * step
    pixel = tf.range(size, dtype=tf.float32)[None]
    covered = tf.clip_by_value(tf.minimum(pixel + 1, high) - tf.maximum(pixel, low), 0.0, 1.0)
    reach = tf.maximum(step, 1.0)[:, :, None] if antialias else 1.0
    kernel = tf.nn.relu(1.0 - tf.abs(center[:, :, None] - (pixel + 0.5)[:, None]) / reach)
    weights = kernel * covered[:, None]
    # At the border a part of the kernel lies outside: what is left counts as the whole, as in `tf.image.resize`.
    return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=-1, keepdims=True))


def split_seed(seed: tf.Tensor, count: int | tf.Tensor, replica: int | tf.Tensor = 0) -> tf.Tensor:
    """Makes a seed for each example from one for the batch.

    Args:
        seed: int32 of shape [2].
        count: The number of examples in the batch.
        replica: The number of the replica, so that replicas with one seed draw differently.

    Returns:
        int32 of shape [count, 2].
    """
    high = tf.cast(replica, tf.uint32) * 8 + _SPLIT
    words = _threefry(seed[None], high, tf.bitcast(tf.range(count), tf.uint32)[:, None])
    return tf.bitcast(tf.concat(words, axis=-1), tf.int32)


def uniform(seeds: tf.Tensor, stream: int, count: int) -> tf.Tensor:
    """Draws numbers uniform in [0, 1), the same for the same seed and stream everywhere.

    Args:
        seeds: int32 of shape [batch, 2].
        stream: The number of the seed's sequence, 0 to 7.
        count: The count of numbers for each seed.

    Returns:
        float32 of shape [batch, count]: multiples of 2^-24, as finely as float32 has them evenly.
    """
    counters = tf.range((count + 1) // 2, dtype=tf.int32)[None]
    words = tf.concat(_threefry(seeds, tf.constant(stream, tf.uint32), tf.bitcast(counters, tf.uint32)), axis=-1)
    return tf.cast(_shift_right(words[:, :count], 8), tf.float32) * 2.0**-24


def _threefry(seeds: tf.Tensor, high: tf.Tensor, low: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes Threefry-2x32-20 of the counter (`high`, `low`) under each key: two uint32 of the broadcast shape."""
    words = tf.bitcast(tf.cast(seeds, tf.int32), tf.uint32)
    key = [words[:, :1], words[:, 1:]]
    key.append(tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(key[0], key[1]), tf.constant(0x1BD11BDA, tf.uint32)))
    first, second = high + tf.zeros_like(low) + key[0], low + key[1]
    for group in range(5):
        for bits in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            first += second
            turned = tf.bitwise.left_shift(second, tf.constant(bits, tf.uint32))
            second = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_or(turned, _shift_right(second, 32 - bits)), first)
        first += key[(group + 1) % 3]
        second += key[(group + 2) % 3] + tf.constant(group + 1, tf.uint32)
    return first, second


def _shift_right(words: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(words, tf.constant(bits, tf.uint32))


def _log_gamma(numbers: tf.Tensor, alpha: float) -> tf.Tensor:
    """Computes the logarithm of a draw from Gamma(alpha), from 3 * GAMMA_ATTEMPTS + 1 numbers in (0, 1]: [batch]."""
    radius, angle, test = tf.split(numbers[:, :-1], 3, axis=-1)
    normal = tf.sqrt(-2.0 * tf.math.log(radius)) * tf.cos(2.0 * math.pi * angle)
    # For alpha + 1 and then down by a power of a uniform: exact for every alpha, the method itself only from 1 on.
    d = alpha + 2 / 3
    v = (1.0 + normal / math.sqrt(9.0 * d)) ** 3
    positive = v > 0.0
    log_v = tf.math.log(tf.where(positive, v, 1.0))
    accepted = positive & (tf.math.log(test) < 0.5 * normal**2 + d * (1.0 - v + log_v))
    log_v, _ = _first(log_v, accepted, tf.zeros_like(log_v[:, 0]))
    return math.log(d) + log_v + tf.math.log(numbers[:, -1]) / alpha


def _first(tried: tf.Tensor, accepted: tf.Tensor, fallback: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Selects the first accepted attempt of each row of `tried` ([batch, attempts, ...]), and whether there is one.

    A selection, not `argmax`: which of equals that returns is not promised.
    """
    chosen = fallback
    for attempt in reversed(range(tried.shape[1])):
        good = accepted[:, attempt]
        chosen = tf.where(good[:, None] if tried.shape.rank == 3 else good, tried[:, attempt], chosen)
    return chosen, tf.reduce_any(accepted, axis=-1)


def _place_boxes(place: tf.Tensor, extent: tf.Tensor) -> tf.Tensor:
    """Puts boxes of `extent` ([batch, 2]) in their free room by `place`: 0 is top left, 1 bottom right."""
    corner = place * (1.0 - extent)
    # Rounding may carry the far corner a hair past the image.
    return tf.concat([corner, tf.minimum(corner + extent, 1.0)], axis=-1)
