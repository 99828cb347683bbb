"""Augmentation on the accelerator: a batch of uint8 images of one size in, the train step's input out.

With augment="device" the host sends whole images squeezed to one size, and the crop and the flip of each, which the
engine draws as it does for itself. Crop, resize, flip and normalization run here, as one function of static shapes for
the whole batch. It belongs inside the function that is compiled for the train step: XLA joins the cast, the weights and
the normalization with the products, the host only reads and decodes, and uint8 is a quarter of float32 on the way to
the device.

It is made for devices with matrix units. A crop and resize is two dense matrix products, 82 million multiply-adds for
256 x 256 to 224 x 224: about a microsecond at an accelerator's peak rate, but more than two milliseconds of a
CPU core, several times what slicing and `tf.image.resize` take. So on a CPU augment in the pipeline, not here.
"""

import math
from dataclasses import asdict
from typing import Any

import tensorflow as tf

from tfpipe.engine.config.augment_config import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    AugmentOptions,
    ImageSize,
    as_pair,
    compute_scaling,
)

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AugmentLayer",
    "AugmentOptions",
    "augment",
    "augment_masks",
    "crop_and_resize",
    "cutmix",
    "mixup",
    "normalize",
]

_GAMMA_ATTEMPTS = 8  # of a sampler that accepts at least 95 % of them: all fail once in 10^10


def normalize(
    images: tf.Tensor,
    dtype: tf.DType = tf.float32,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> tf.Tensor:
    """Shifts and scales each channel to about mean 0 and deviation 1.

    Args:
        images: uint8 or float of shape [..., channels], in 0..255.
        dtype: float32, or bfloat16; computed in float32 and rounded once.
        mean: The mean of each channel, where white is 1.
        std: The standard deviation of each channel, where white is 1.

    Returns:
        `dtype` of the images' shape.
    """
    offset, factor = (tf.constant(row, tf.float32) for row in compute_scaling(mean, std))
    return tf.cast((tf.cast(images, tf.float32) - offset) * factor, dtype)


def crop_and_resize(
    images: tf.Tensor,
    crops: tf.Tensor,
    flips: tf.Tensor | None,
    size: ImageSize,
    *,
    matmul_dtype: tf.DType = tf.float32,
    antialias: bool = False,
) -> tf.Tensor:
    """Cuts a box out of each image, resizes it bilinearly, and mirrors it where `flips` says so.

    For a box of whole pixels this is `tf.image.resize` of the slice (half-pixel centers, with `antialias` or
    without), borders included: what lies outside the box never shows. A pixel that a box covers in part counts for
    that part. An empty box gives black.

    It multiplies with dense weights, rows and then columns: accelerators multiply far faster than they gather.
    Mirroring reorders the weights and costs nothing.

    Args:
        images: uint8 or float of shape [batch, height, width, channels], in 0..255; all but batch static.
        crops: float32 of shape [batch, 4]: ymin, xmin, ymax, xmax as shares of the image.
        flips: bool or uint8 of shape [batch]: whether to mirror each image left to right; None for none.
        size: The side of the output in pixels, or its height and width.
        matmul_dtype: The dtype of the products. bfloat16 holds each of 0..255 exactly but rounds weights and sums: it
            differs from float32 by at most about 2 of 255, 0.3 to 0.45 on average. A TPU multiplies float32 in bfloat16
            by default, with float32 sums.
        antialias: Whether an output pixel is the average over its area when the crop shrinks.

    Returns:
        float32 of shape [batch, height, width, channels], in 0..255 up to rounding.
    """
    height, width = as_pair(size)
    _, rows, columns, channels = images.shape
    row_weights = tf.cast(_weigh(crops[:, 0], crops[:, 2], rows, height, antialias), matmul_dtype)
    column_weights = tf.cast(_weigh(crops[:, 1], crops[:, 3], columns, width, antialias, flips), matmul_dtype)
    # Rank 3 on purpose: as `einsum` over the last axes the second product has a side of 3 channels, which no
    # matrix unit fills.
    pixels = tf.reshape(tf.cast(images, matmul_dtype), [-1, rows, columns * channels])
    pixels = tf.reshape(tf.matmul(row_weights, pixels), [-1, height, columns, channels])
    pixels = tf.reshape(tf.transpose(pixels, [0, 2, 1, 3]), [-1, columns, height * channels])
    pixels = tf.reshape(tf.matmul(column_weights, pixels), [-1, width, height, channels])
    return tf.cast(tf.transpose(pixels, [0, 2, 1, 3]), tf.float32)


def augment(
    images: tf.Tensor,
    crops: tf.Tensor,
    flips: tf.Tensor | None,
    size: ImageSize,
    dtype: tf.DType = tf.float32,
    options: AugmentOptions | None = None,
) -> tf.Tensor:
    """Makes a model's input from whole images, in training and in evaluation: crops, flips and normalizes them.

    Args:
        images: "image" of a batch: uint8 or float of shape [batch, height, width, channels], in 0..255; all but batch
            static. Where records have several images, [batch, images, height, width, channels]; then crops and flips
            have an axis more too.
        crops: "crop" of the batch: float32 of shape [batch, 4], ymin, xmin, ymax, xmax as shares of the image.
        flips: "flip" of the batch: uint8 or bool of shape [batch]; None for none.
        size: The side of the output in pixels, or its height and width.
        dtype: float32 or bfloat16.
        options: `antialias`, `matmul_dtype`, `mean` and `std` are used; None for the defaults.

    Returns:
        `dtype` of shape [batch, height, width, channels], or [batch, images, height, width, channels].
    """
    options = options or AugmentOptions()
    if images.shape.rank == 5:
        flips = None if flips is None else tf.reshape(flips, [-1])
        flat = tf.reshape(images, [-1, *images.shape[2:]])
        result = augment(flat, tf.reshape(crops, [-1, 4]), flips, size, dtype, options)
        return tf.reshape(result, [-1, images.shape[1], *result.shape[1:]])
    pixels = crop_and_resize(images, crops, flips, size, matmul_dtype=options.matmul_dtype, antialias=options.antialias)
    return normalize(pixels, dtype, options.mean, options.std)


def augment_masks(masks: tf.Tensor, crops: tf.Tensor, flips: tf.Tensor | None, size: ImageSize) -> tf.Tensor:
    """Crops and flips masks as `augment` does their images. Each pixel takes the class under its center.

    Args:
        masks: Integers of shape [batch, height, width], height and width static.
        crops: The crops, as for `augment`.
        flips: The flips, as for `augment`.
        size: The side of the output in pixels, or its height and width.

    Returns:
        The dtype of `masks`, of shape [batch, height, width].
    """
    height, width = as_pair(size)
    rows = _find_centers(crops[:, 0], crops[:, 2], height, masks.shape[1])
    columns = _find_centers(crops[:, 1], crops[:, 3], width, masks.shape[2])
    if flips is not None:
        columns = tf.where(tf.cast(flips, tf.bool)[:, None], columns[:, ::-1], columns)
    return tf.gather(tf.gather(masks, rows, batch_dims=1), columns, axis=2, batch_dims=1)


@tf.keras.utils.register_keras_serializable(package="tfpipe")
class AugmentLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """A layer in front of a model that does what `augment` does: `layer(images, crops, flips)`.

    The output has the dtype policy's compute dtype, bfloat16 under "mixed_bfloat16". The layer draws nothing and keeps
    no state: crops and flips come from the batch.

    Args:
        size: The side of the output in pixels, or its height and width.
        options: The options of the augmentation; None for the defaults.
        name: The name of the layer.
        dtype: The dtype or the dtype policy of the layer.
        trainable: Whether the layer counts as trainable; it has no weights.
    """

    def __init__(
        self,
        size: ImageSize,
        options: AugmentOptions | None = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = False,
    ) -> None:
        # Without autocast, which under a 16-bit policy would round float images before the crop, and the crops too.
        super().__init__(name=name, dtype=dtype, trainable=trainable, autocast=False)
        self.size = as_pair(size)
        self.options = options or AugmentOptions()

    def call(self, images: tf.Tensor, crops: tf.Tensor, flips: tf.Tensor | None = None) -> tf.Tensor:
        """Calls `augment`."""
        return augment(images, crops, flips, self.size, tf.as_dtype(self.compute_dtype), self.options)

    def get_config(self) -> dict[str, Any]:
        """Returns the layer's arguments as JSON has them."""
        options = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self.options).items()}
        return {**super().get_config(), "size": list(self.size), "options": options}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AugmentLayer":
        """Makes a layer from what `get_config` returned."""
        options: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in config["options"].items()}
        return cls(**{**config, "size": tuple(config["size"]), "options": AugmentOptions(**options)})


def mixup(
    images: tf.Tensor, one_hot_labels: tf.Tensor, seed: tf.Tensor, alpha: float = 0.2
) -> tuple[tf.Tensor, tf.Tensor]:
    """Blends each image and its label with another's (Zhang et al. 2018, "mixup: Beyond empirical risk minimization").

    Its partner is the image at the same index in the reversed batch, as in timm: the batch is shuffled already, and a
    reversal costs a device less than a permutation. Each image draws a weight of its own. One seed gives other weights
    where XLA compiles than where it does not.

    Args:
        images: float of shape [batch, height, width, channels]; normalized or not.
        one_hot_labels: float of shape [batch, classes].
        seed: int32 of shape [2], another for each step and replica.
        alpha: The parameter of the weights' distribution Beta(alpha, alpha). The default lies within the paper's 0.1 to
            0.4 for ImageNet.

    Returns:
        Images of the same dtype and shape; labels of shape [batch, classes] with unchanged sums.
    """
    weights = _draw_beta(seed, tf.shape(images)[0], alpha)
    return _blend(images, weights[:, None, None, None]), _blend(one_hot_labels, weights[:, None])


def cutmix(
    images: tf.Tensor, one_hot_labels: tf.Tensor, seed: tf.Tensor, alpha: float = 1.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Pastes a patch of another image into each, and mixes labels by area (Yun et al. 2019, "CutMix").

    Partners are those of `mixup`. A label's weights are the areas of whole pixels as pasted, not as drawn.

    Args:
        images: Any dtype, of shape [batch, height, width, channels]; height and width static.
        one_hot_labels: float of shape [batch, classes].
        seed: int32 of shape [2], another for each step and replica.
        alpha: The parameter of the kept share's distribution Beta(alpha, alpha). The default is the paper's 1, which is
            uniform.

    Returns:
        Images of the same dtype and shape; labels of shape [batch, classes], each summing to what it did.
    """
    height, width = images.shape[1:3]
    count, size = tf.shape(images)[0], tf.constant([height, width], tf.float32)
    # As in the authors' code, a patch has the image's aspect ratio, any center, and ends at the border, or is empty.
    half = tf.floor(tf.floor(size * tf.sqrt(1.0 - _draw_beta(seed, count, alpha))[:, None]) / 2.0)
    center = tf.floor(tf.random.stateless_uniform([count, 2], tf.random.fold_in(seed, 1)) * size)
    corners = tf.concat([tf.maximum(center - half, 0.0), tf.minimum(center + half, size)], axis=-1)
    ymin, xmin, ymax, xmax = tf.split(tf.cast(corners, tf.int32), 4, axis=-1)
    y, x = tf.range(height)[None], tf.range(width)[None]
    patch = ((y >= ymin) & (y < ymax))[:, :, None, None] & ((x >= xmin) & (x < xmax))[:, None, :, None]
    area = tf.cast((ymax - ymin) * (xmax - xmin), tf.float32)
    return tf.where(patch, images[::-1], images), _blend(one_hot_labels, 1.0 - area / (height * width))


def _weigh(
    low: tf.Tensor, high: tf.Tensor, size: int, out_size: int, antialias: bool, flips: tf.Tensor | None = None
) -> tf.Tensor:
    """Computes the weight of each input pixel in each output pixel of one axis: float32 [batch, out_size, size].

    Lengths are in input pixels: pixel j covers j to j + 1. Output pixels cover `low` to `high`, fractions of the axis.
    """
    low, high = low[:, None] * size, high[:, None] * size
    out_pixel = tf.range(out_size, dtype=tf.float32)[None]
    if flips is not None:
        out_pixel = tf.where(tf.cast(flips, tf.bool)[:, None], out_size - 1 - out_pixel, out_pixel)
    step = (high - low) / out_size
    center = low + (out_pixel + 0.5) * step
    pixel = tf.range(size, dtype=tf.float32)[None]
    covered = tf.clip_by_value(tf.minimum(pixel + 1, high) - tf.maximum(pixel, low), 0.0, 1.0)
    reach = tf.maximum(step, 1.0)[:, :, None] if antialias else 1.0
    kernel = tf.nn.relu(1.0 - tf.abs(center[:, :, None] - (pixel + 0.5)[:, None]) / reach)
    weights = kernel * covered[:, None]
    # At the border a part of the kernel lies outside, so the weights are scaled to sum to 1, as in `tf.image.resize`.
    return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=-1, keepdims=True))


def _find_centers(begin: tf.Tensor, end: tf.Tensor, count: int, pixels: int) -> tf.Tensor:
    """Returns the input pixels under the centers of `count` output pixels on one axis: int32 [batch, count]."""
    centers = (tf.range(count, dtype=tf.float32) + 0.5) / count
    positions = (begin[:, None] + centers * (end - begin)[:, None]) * pixels
    return tf.clip_by_value(tf.cast(tf.floor(positions), tf.int32), 0, pixels - 1)


def _draw_beta(seed: tf.Tensor, count: tf.Tensor, alpha: float) -> tf.Tensor:
    """Draws from Beta(alpha, alpha), float32 [count]: G / (G + H) of two gamma draws.

    Each is by Marsaglia and Tsang 2000, "A simple method for generating gamma variables": `tf.random.stateless_gamma`
    does not compile with XLA. They are logarithms, since a gamma for a small `alpha` may be too small for float32.
    """
    numbers = 1.0 - tf.random.stateless_uniform([count, 2, 3 * _GAMMA_ATTEMPTS + 1], seed)  # above 0, for logarithms
    radius, angle, test = tf.split(numbers[..., :-1], 3, axis=-1)
    normal = tf.sqrt(-2.0 * tf.math.log(radius)) * tf.cos(2.0 * math.pi * angle)
    # Draws for alpha + 1, and scales by a power of a uniform number: the method itself needs an alpha of 1 or more.
    d = alpha + 2 / 3
    v = (1.0 + normal / math.sqrt(9.0 * d)) ** 3
    log_v = tf.math.log(tf.where(v > 0.0, v, 1.0))
    accepted = (v > 0.0) & (tf.math.log(test) < 0.5 * normal**2 + d * (1.0 - v + log_v))
    chosen = tf.zeros_like(log_v[..., 0])
    for attempt in reversed(range(_GAMMA_ATTEMPTS)):  # the first that is accepted
        chosen = tf.where(accepted[..., attempt], log_v[..., attempt], chosen)
    gammas = chosen + tf.math.log(numbers[..., -1]) / alpha
    return tf.sigmoid(gammas[:, 0] - gammas[:, 1])


def _blend(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Blends values with those of their partners by weight, in float32, and rounds the result once."""
    floats = tf.cast(values, tf.float32)
    return tf.cast(floats * weights + floats[::-1] * (1.0 - weights), values.dtype)
