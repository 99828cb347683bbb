"""Augmentation on the accelerator: a batch of uint8 images of one size in, the train step's input out.

The host sends images squeezed to one size, with the originals' heights and widths; crop, resize, flip and normalization
run here, as one function of static shapes for the whole batch. It belongs inside the function that is compiled for the
train step: XLA joins the cast, the weights and the normalization with the products, the host only reads and decodes,
and uint8 is a quarter of float32 on the way to the device.

It is made for devices with matrix units. A crop and resize is two dense matrix products, 82 million multiply-adds for
256 x 256 to 224 x 224: about a microsecond at an accelerator's peak rate, but more than two milliseconds of a
CPU core, several times what slicing and `tf.image.resize` take. So on a CPU augment in the pipeline, not here.
`random_boxes` draws crops and flips from seeds. Only `AugmentLayer` without seeds keeps state.
"""

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
from tfpipe.errors import ConfigError
from tfpipe.pipeline.device.random_boxes import (
    center_crop_boxes,
    resize_weights,
    sample_beta,
    sample_crop_boxes,
    sample_flips,
    sample_patches,
    split_seed,
)

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "AugmentLayer",
    "AugmentOptions",
    "augment",
    "augment_masks",
    "center_crop_boxes",
    "crop_and_resize",
    "cutmix",
    "mixup",
    "normalize",
    "sample_crop_boxes",
    "sample_flips",
]


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
    boxes: tf.Tensor,
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
    Mirroring is another order of the weights and costs nothing.

    Args:
        images: uint8 or float of shape [batch, height, width, channels], in 0..255; all but batch static.
        boxes: float32 of shape [batch, 4]: ymin, xmin, ymax, xmax as fractions of the image.
        flips: bool of shape [batch]: whether to mirror each image left to right; None for none.
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
    row_weights = tf.cast(resize_weights(boxes[:, 0], boxes[:, 2], rows, height, antialias), matmul_dtype)
    column_weights = tf.cast(resize_weights(boxes[:, 1], boxes[:, 3], columns, width, antialias, flips), matmul_dtype)
    # Rank 3 on purpose: as `einsum` over the last axes the second product has a side of 3 channels, which no
    # matrix unit fills.
    pixels = tf.reshape(tf.cast(images, matmul_dtype), [-1, rows, columns * channels])
    pixels = tf.reshape(tf.matmul(row_weights, pixels), [-1, height, columns, channels])
    pixels = tf.reshape(tf.transpose(pixels, [0, 2, 1, 3]), [-1, columns, height * channels])
    pixels = tf.reshape(tf.matmul(column_weights, pixels), [-1, width, height, channels])
    return tf.cast(tf.transpose(pixels, [0, 2, 1, 3]), tf.float32)


def augment(
    images: tf.Tensor,
    seeds: tf.Tensor | None,
    heights: tf.Tensor | None,
    widths: tf.Tensor | None,
    size: ImageSize,
    training: bool,
    dtype: tf.DType = tf.float32,
    options: AugmentOptions | None = None,
) -> tf.Tensor:
    """Makes a model's input from stored images: crops and flips them at random or takes the middle, and normalizes.

    Args:
        images: uint8 or float of shape [batch, height, width, channels], in 0..255; all but batch static. Where records
            have several images, [batch, images, height, width, channels]; then the next three have an axis more too.
        seeds: int32 of shape [batch, 2], one for each image and epoch; not used in evaluation.
        heights: The originals' heights, of shape [batch]; None where stored images have the originals' shape.
        widths: The originals' widths, of shape [batch]; None where stored images have the originals' shape.
        size: The side of the output in pixels, or its height and width.
        training: Whether crop and flip are random; otherwise the crop is the middle, and there is no flip.
        dtype: float32 or bfloat16.
        options: The options of the augmentation; None for the defaults.

    Returns:
        `dtype` of shape [batch, height, width, channels], or [batch, images, height, width, channels].

    Raises:
        ConfigError: There are no seeds in training.
    """
    options = options or AugmentOptions()
    if images.shape.rank == 5:
        seeds, heights, widths = (None if part is None else _join_rows(part) for part in (seeds, heights, widths))
        result = augment(_join_rows(images), seeds, heights, widths, size, training, dtype, options)
        return tf.reshape(result, [-1, images.shape[1], *result.shape[1:]])
    boxes, flips = _choose_crops(images, seeds, heights, widths, as_pair(size), training, options)
    pixels = crop_and_resize(images, boxes, flips, size, matmul_dtype=options.matmul_dtype, antialias=options.antialias)
    return normalize(pixels, dtype, options.mean, options.std)


def augment_masks(
    masks: tf.Tensor,
    seeds: tf.Tensor | None,
    heights: tf.Tensor | None,
    widths: tf.Tensor | None,
    size: ImageSize,
    training: bool,
    options: AugmentOptions | None = None,
) -> tf.Tensor:
    """Crops and flips masks as `augment` does their images. Each pixel takes the class under its center.

    Args:
        masks: Integers of shape [batch, height, width], height and width static.
        seeds: The seeds, as for `augment`.
        heights: The originals' heights, as for `augment`.
        widths: The originals' widths, as for `augment`.
        size: The side of the output in pixels, or its height and width.
        training: Whether crop and flip are random.
        options: The options of the augmentation; None for the defaults.

    Returns:
        The dtype of `masks`, of shape [batch, height, width].

    Raises:
        ConfigError: There are no seeds in training.
    """
    options = options or AugmentOptions()
    height, width = as_pair(size)
    boxes, flips = _choose_crops(masks, seeds, heights, widths, (height, width), training, options)
    rows = _find_places(boxes[:, 0], boxes[:, 2], height, masks.shape[1])
    columns = _find_places(boxes[:, 1], boxes[:, 3], width, masks.shape[2])
    if flips is not None:
        columns = tf.where(flips[:, None], columns[:, ::-1], columns)
    return tf.gather(tf.gather(masks, rows, batch_dims=1), columns, axis=2, batch_dims=1)


def _join_rows(values: tf.Tensor) -> tf.Tensor:
    """Makes one axis of the first two."""
    return tf.reshape(values, [-1, *values.shape[2:]])


def _find_places(begin: tf.Tensor, end: tf.Tensor, count: int, pixels: int) -> tf.Tensor:
    """Returns the pixels under the centers of `count` pixels that cover an axis of each box: int32 [batch, count]."""
    centers = (tf.range(count, dtype=tf.float32) + 0.5) / count
    places = (begin[:, None] + centers * (end - begin)[:, None]) * pixels
    return tf.clip_by_value(tf.cast(tf.floor(places), tf.int32), 0, pixels - 1)


def _choose_crops(
    images: tf.Tensor,
    seeds: tf.Tensor | None,
    heights: tf.Tensor | None,
    widths: tf.Tensor | None,
    size: tuple[int, int],
    training: bool,
    options: AugmentOptions,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns the box of each image, float32 [batch, 4], and whether to mirror it; arguments as for `augment`."""
    if heights is None or widths is None:
        heights, widths = (tf.fill(tf.shape(images)[:1], images.shape[axis]) for axis in (1, 2))
    if not training:
        return center_crop_boxes(heights, widths, options.crop_fraction, size[1] / size[0]), None
    if seeds is None:
        raise ConfigError("`augment` needs `seeds` in training, got None. Give each image two int32.")
    boxes = sample_crop_boxes(seeds, heights, widths, options.scale, options.ratio)
    return boxes, sample_flips(seeds) if options.flip else None


@tf.keras.utils.register_keras_serializable(package="tfpipe")
class AugmentLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """A layer in front of a model that does what `augment` does: `layer(images, seeds, heights, widths)`.

    The output has the dtype policy's compute dtype, bfloat16 under "mixed_bfloat16". With `seeds` the layer uses no
    state; without, it draws them from a Keras seed generator, which is saved with the model.

    Args:
        size: The side of the output in pixels, or its height and width.
        options: The options of the augmentation; None for the defaults.
        seed: The seed of the seed generator; None for a random one.
        name: The name of the layer.
        dtype: The dtype or the dtype policy of the layer.
        trainable: Whether the layer counts as trainable; it has no weights.
    """

    def __init__(
        self,
        size: ImageSize,
        options: AugmentOptions | None = None,
        seed: int | None = None,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = False,
    ) -> None:
        # Without autocast: under a 16-bit policy it would round images that come as float before the crop.
        super().__init__(name=name, dtype=dtype, trainable=trainable, autocast=False)
        self.size = as_pair(size)
        self.options = options or AugmentOptions()
        self.seed = seed
        self.seed_generator = tf.keras.random.SeedGenerator(seed)

    def call(
        self,
        images: tf.Tensor,
        seeds: tf.Tensor | None = None,
        heights: tf.Tensor | None = None,
        widths: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tf.Tensor:
        """Calls `augment`; `training` comes from Keras where None, and is False outside of a model's training."""
        if training and seeds is None:
            # Every replica reads the same generator.
            context = tf.distribute.get_replica_context()
            replica = context.replica_id_in_sync_group if context else 0
            seeds = split_seed(tf.cast(self.seed_generator.next(), tf.int32), tf.shape(images)[0], replica)
        dtype = tf.as_dtype(self.compute_dtype)
        return augment(images, seeds, heights, widths, self.size, bool(training), dtype, self.options)

    def get_config(self) -> dict[str, Any]:
        """Returns the layer's arguments as JSON has them."""
        options = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self.options).items()}
        return {**super().get_config(), "size": list(self.size), "options": options, "seed": self.seed}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AugmentLayer":
        """Makes a layer from what `get_config` returned."""
        options: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in config["options"].items()}
        return cls(**{**config, "size": tuple(config["size"]), "options": AugmentOptions(**options)})


def mixup(
    images: tf.Tensor, one_hot_labels: tf.Tensor, seed: tf.Tensor, alpha: float = 0.2
) -> tuple[tf.Tensor, tf.Tensor]:
    """Blends each image and its label with another's (Zhang et al. 2018, "mixup: Beyond empirical risk minimization").

    Its partner is the image at the same place in the reversed batch, as in timm: the batch is shuffled already, and a
    reversal costs a device less than a permutation. Each image draws a weight of its own.

    Args:
        images: float of shape [batch, height, width, channels]; normalized or not.
        one_hot_labels: float of shape [batch, classes].
        seed: int32 of shape [2], another for each step and replica.
        alpha: The parameter of the weights' distribution Beta(alpha, alpha). The default lies within the paper's 0.1 to
            0.4 for ImageNet.

    Returns:
        Images of the same dtype and shape; labels of shape [batch, classes] with unchanged sums.
    """
    weights = sample_beta(split_seed(seed, tf.shape(images)[0]), alpha)
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
    seeds = split_seed(seed, tf.shape(images)[0])
    ymin, xmin, ymax, xmax = tf.split(sample_patches(seeds, sample_beta(seeds, alpha), height, width), 4, axis=-1)
    y, x = tf.range(height)[None], tf.range(width)[None]
    patch = ((y >= ymin) & (y < ymax))[:, :, None, None] & ((x >= xmin) & (x < xmax))[:, None, :, None]
    area = tf.cast((ymax - ymin) * (xmax - xmin), tf.float32)
    return tf.where(patch, images[::-1], images), _blend(one_hot_labels, 1.0 - area / (height * width))


def _blend(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Blends values with those of their partners by weight, in float32, and rounds the result once."""
    floats = tf.cast(values, tf.float32)
    return tf.cast(floats * weights + floats[::-1] * (1.0 - weights), values.dtype)
