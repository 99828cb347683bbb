"""The stages for single records, by TensorFlow's operations: `parse`, `decode`, `augment`, `batch`; and `prefetch`.

JPEGs are cropped while they are decoded. Only if a split has several formats, or files that tfpipe did not write, each
record's first bytes must be tested (7 us).

A crop box is an int32 of shape [4]: y, x, height, width in pixels of the stored image. The box and the flip are
functions of a seed, as in `tfpipe.native.batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfpipe.engine.batch import make_pair
from tfpipe.engine.config.augment_config import AugmentOptions, compute_scaling
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.plan import BatchPlan, has_true_size
from tfpipe.engine.source import StoredImages
from tfpipe.errors import ConfigError
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.pipeline.stage import Stage
from tfpipe.system.hash_permutation import EXAMPLE, key_of

TF_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
"""The type of a feature's values in TensorFlow, by its type in a schema."""

_CROP_ATTEMPTS = 10  # boxes tried before the whole image is taken, as in torchvision's RandomResizedCrop
_FLIP_KEY = (0x243F6A88, 0x05A308D3)  # the first digits of pi: the seed itself would draw the crop box's own numbers
_SMALL = 3 * 2**17  # values of an image: resizing uses few of a larger one's, so a conversion to float32 saves nothing
_HALF_MARGIN = 1e-9  # sides have at most five digits, and float64 sixteen

_MARGIN = 2  # columns more on either side, whose color the decoder blends with that of the crop

Features = dict[str, tf.Tensor]

Extent = tuple[tf.Tensor | int, tf.Tensor | int]
"""Height and width in pixels: int32 scalars, or numbers where they are known when the graph is built."""


def parse_records(plan: BatchPlan) -> Stage:
    """Parses the features that the pipeline needs out of each record, and adds a seed if a crop is drawn next.

    The result has "encoded" (string), "label" (int64) if there are labels, "height" and "width" (int64, of the
    original) if the manifest says that every record has them, and each further feature under its own name.
    """
    source, config = plan.source, plan.config
    draws = config.training and source.has_images and config.augment != "none" and config.cache != "decoded"
    keys = {} if source.image_key is None else {"encoded": source.image_key}
    if source.label_key is not None:
        keys["label"] = source.label_key
    if source.has_sizes:
        keys |= {"height": IMAGE_HEIGHT, "width": IMAGE_WIDTH}
    keys |= {feature.name: feature.name for feature in plan.features}
    specs = {key: source.schema[key] for key in keys.values()}
    parsers = {key: tf.io.FixedLenFeature(spec.shape, TF_DTYPES[spec.dtype]) for key, spec in specs.items()}

    def parse(payload: tf.Tensor, seed: tf.Tensor | None = None) -> Features:
        example = tf.io.parse_single_example(payload, parsers)
        features = {name: example[key] for name, key in keys.items()}
        if source.label_base:
            features["label"] -= source.label_base
        return features if seed is None else {**features, "seed": seed}

    def apply(records: tf.data.Dataset) -> tf.data.Dataset:
        return map_in_parallel(plan, _add_seeds(plan, records) if draws else records, parse)

    return Stage("parse", apply, parallel_settings(plan), "only the features that are needed")


def caches_whole(config: PipelineConfig) -> bool:
    """Returns whether a cache keeps whole decoded images, to be augmented anew every epoch."""
    return config.cache == "decoded" and config.training


def _add_seeds(plan: BatchPlan, elements: tf.data.Dataset) -> tf.data.Dataset:
    """Gives each element a seed, int32 [2]."""
    key = key_of(EXAMPLE, plan.config.seed, plan.host.start_step, plan.host.index) >> 1
    numbers = tf.data.Dataset.random(seed=key).batch(2, drop_remainder=True)
    return tf.data.Dataset.zip((elements, numbers.map(lambda pair: tf.cast(pair, tf.int32))))


def map_in_parallel(plan: BatchPlan, dataset: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Maps a function over a dataset with as many parallel calls as the config asks for."""
    calls = plan.config.tf_data.num_parallel_calls
    if calls is None:
        # Without autotuning, AUTOTUNE would mean at most 16 threads.
        calls = tf.data.AUTOTUNE if plan.config.autotunes else plan.config.max_threads
    return dataset.map(function, num_parallel_calls=calls, deterministic=plan.config.keeps_order)


def parallel_settings(plan: BatchPlan) -> dict[str, object]:
    """Returns the options that `map_in_parallel` uses, for the settings of a stage."""
    return {"num_parallel_calls": plan.config.tf_data.num_parallel_calls, "deterministic": plan.config.keeps_order}


def decode_images(plan: BatchPlan) -> Stage:
    """Decodes images: with augmentation on the host only each image's crop, to which it adds whether to flip it."""
    config, stored = plan.config, plan.source.images
    formats = " and ".join(sorted(stored.formats)) or "any"
    settings = {**parallel_settings(plan), "images": formats, "decoder": "tensorflow"}
    if caches_whole(config):
        reason = "whole images, squeezed to one size: what the cache keeps"
    elif config.augment == "host":
        reason = "the crop is fused with the decoder: what lies outside is not decoded"
    else:
        reason = "whole images"

    def decode(features: Features) -> Features:
        encoded = features["encoded"]
        if caches_whole(config):
            others = {name: value for name, value in features.items() if name != "encoded"}
            image, size, options = decode_image(encoded, stored), plan.decoded_size, config.augment_options
            if stored.size != size:  # squeezed to one size, whatever the aspect ratio
                image = convert_values(resize_image(image, size, options.antialias), "uint8", options)
            return {**others, "image": image}
        others = {name: value for name, value in features.items() if name not in ("encoded", "height", "width", "seed")}
        if config.augment == "none":
            return {**others, "image": decode_image(encoded, stored)}
        crop_box, flip, size = find_crop(features, features.get("seed"), stored, config)
        image = decode_crop(encoded, crop_box, size, stored)
        return {**others, "image": image} | ({} if flip is None else {"flip": flip})

    return Stage("decode", lambda records: map_in_parallel(plan, records, decode), settings, reason)


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
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [*(stored.size or (None, None)), 3])


def decode_crop(encoded: tf.Tensor, crop_box: tf.Tensor, size: Extent, stored: StoredImages) -> tf.Tensor:
    """Decodes the crop box of an image of this size: uint8 [height, width, 3], equal to a slice of the whole image."""
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
    """Decodes a crop of a JPEG, without the rows above it and the blocks beside it. It equals a slice of the image.

    Where color is stored at half the width, the first and the last column need a neighbor to blend with, or they differ
    by up to 20 of 255. So two columns more are decoded on either side, and left out (30 us). The sides of the image are
    divided by `ratio`, 1, 2, 4 or 8, while it is decoded; box and width are those of the result.
    """
    y, x, height, width = tf.unstack(crop_box)
    left = tf.minimum(x, _MARGIN)
    wide = left + width + tf.clip_by_value(image_width - x - width, 0, _MARGIN)  # a box beyond the edge stays so
    image = tf.io.decode_and_crop_jpeg(encoded, tf.stack([y, x - left, height, wide]), channels=3, ratio=ratio)
    # Slicing the pixels as a matrix of bytes takes a third of the time.
    rows = tf.reshape(image, tf.stack([height, 3 * wide]))
    columns = tf.slice(rows, tf.stack([0, 3 * left]), tf.stack([height, 3 * width]))
    return tf.reshape(columns, tf.stack([height, width, 3]))


def read_image_size(features: Mapping[str, tf.Tensor], stored: StoredImages) -> Extent:
    """Returns the stored image's height and width, int32 scalars, from the cheapest source that is right.

    A record's "height" and "width" are used if tfpipe wrote it and images have no fixed size; with a fixed size they
    are the original's. Else the size comes from a JPEG's header (2 us and more), or from decoding.
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


def augment_images(plan: BatchPlan) -> Stage:
    """Crops, resizes, flips and converts decoded images to the model's input."""
    config, (height, width) = plan.config, plan.config.size
    settings = {"where": config.augment, "image_dtype": config.image_dtype, **parallel_settings(plan)}
    settings["size"] = f"{height}x{width}"
    reason = "random resized crop and flip" if config.training else "resize short side, center crop"

    def augment(features: Features, seed: tf.Tensor | None = None) -> Features:
        image, flip = features["image"], features.get("flip")
        if config.augment == "host" and caches_whole(config):
            sizes = [tf.cast(features[name], tf.int32) for name in ("height", "width") if name in features]
            crop_box, flip = choose_crop(plan.decoded_size, (sizes[0], sizes[1]) if sizes else None, seed, config)
            image = crop(image, crop_box)
        others = {name: value for name, value in features.items() if name not in ("image", "flip", "height", "width")}
        return {**others, "image": augment_on_host(image, flip, config)}

    def apply(images: tf.data.Dataset) -> tf.data.Dataset:
        draws = caches_whole(config) and config.augment != "none"
        return map_in_parallel(plan, _add_seeds(plan, images) if draws else images, augment)

    return Stage("augment", apply, settings, "plain resize" if config.augment == "none" else reason)


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

    The box's size is rounded, halves up; its corner is rounded to the top left. In the original the box has the
    output's aspect ratio, and `crop_fraction` of each side of the largest such box.
    """
    shape = tf.cast(tf.stack([*original_size]), tf.float64)
    extent = tf.stack([*original_size]) if stored_size is None else tf.stack([*stored_size])
    # The original's sides in units of the output's: the largest box has the smaller number of units on both axes.
    units = shape / tf.constant(out_size, tf.float64)
    share = tf.reduce_min(units) / units * crop_fraction
    # The margin, far above the rounding error, takes halves up: TensorFlow multiplies in another order from graph to
    # graph, and a crop box must not depend on whether tf.data or a served model computes it.
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
    if antialias:  # this resize converts to float32 itself
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


def batch_examples(plan: BatchPlan) -> Stage:
    """Makes batches of static shape, in the form that the config asks for."""
    config, is_whole = plan.config, not is_true_size(plan)

    def form(batch: Features) -> Any:
        result = dict(batch)
        if "label" in result:
            result["label"] = tf.cast(result["label"], tf.int32)
            if config.one_hot:
                result["label"] = tf.one_hot(result["label"], plan.source.num_classes)
        if config.as_supervised and "mask" in result:
            result["mask"] = tf.cast(result["mask"], tf.float32)  # Keras takes it as sample weights
        return make_pair(result, config) if config.as_supervised else result

    def apply(examples: tf.data.Dataset) -> tf.data.Dataset:
        if not config.training:
            examples = examples.map(lambda features: {**features, "mask": tf.constant(True)})
            examples = _pad_evaluation(plan, examples) if is_whole else examples
        return examples.batch(plan.replica_batch_size, drop_remainder=is_whole).map(form)

    settings = {"batch_size": config.batch_size, "per_replica": plan.replica_batch_size}
    return Stage("batch", apply, settings, describe_shapes(plan))


def is_true_size(plan: BatchPlan) -> bool:
    """Returns whether the last batch has no padding; with several replicas, or for a TPU, the batch has some."""
    return has_true_size(plan.config, plan.replica_batch_size) and not tf.config.list_logical_devices("TPU")


def describe_shapes(plan: BatchPlan) -> str:
    """Describes the sizes of the batches."""
    if plan.config.training:
        return "static shapes"
    return (
        "the last batch is smaller" if is_true_size(plan) else "static shapes; the last batch is filled up and masked"
    )


def masked_sum(values: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums a metric over the real examples of a batch, and counts them.

    Add up both results over batches and replicas, then divide the sum by the count.

    Args:
        values: The metric of each example, of shape [batch] and any number type or bool, such as
            `tf.equal(prediction, label)`.
        mask: The batch's mask, of shape [batch]: bool, or float32 from a batch with `as_supervised`.

    Returns:
        Two float32 scalars: the sum and the count.
    """
    weights = tf.cast(mask, tf.float32)
    # A product is not enough: the metric of a padded image may be NaN.
    real_values = tf.where(weights > 0, tf.cast(values, tf.float32), 0.0)
    return tf.reduce_sum(real_values * weights), tf.reduce_sum(weights)


def _pad_evaluation(plan: BatchPlan, marked: tf.data.Dataset) -> tf.data.Dataset:
    """Fills up the last batch with zeros, so that all hosts yield the same number of batches."""
    zeros = {}
    for name, spec in marked.element_spec.items():
        shape = [size or 0 for size in spec.shape]  # an axis whose size a stage of the user's left unknown is empty
        zeros[name] = tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    padding, records = tf.data.Dataset.from_tensors(zeros), plan.source.num_records
    if records is None:
        padded = marked.concatenate(padding.repeat(plan.batch_size - 1))
        # Either all replicas of the host get a batch, or none does.
        return padded.window(plan.batch_size, drop_remainder=True).flat_map(tf.data.Dataset.zip)
    missing = plan.steps_per_epoch * plan.batch_size - len(plan.host.share(records))
    return marked.concatenate(padding.repeat(missing))


def prefetch_batches(plan: BatchPlan) -> Stage:
    """Prepares batches ahead of the trainer, and tells tf.data how many there will be.

    The number is unknown if nobody counted the records, or if a later stage ends each pass.
    """
    config = plan.config
    count: int | None = None
    if config.training and plan.host.epochs is None:
        count = tf.data.INFINITE_CARDINALITY
    elif not config.training and plan.source.num_records is not None:
        count = plan.steps_per_epoch * plan.batch_size // plan.replica_batch_size

    def apply(batches: tf.data.Dataset) -> tf.data.Dataset:
        if count is not None:
            batches = batches.apply(tf.data.experimental.assert_cardinality(count))
        if config.prefetch_batches == 0:
            return batches
        return batches.prefetch(config.prefetch_batches or tf.data.AUTOTUNE)

    reason = "the next batch is made while the device works on this one"
    return Stage("prefetch", apply, {"buffer_size": config.prefetch_batches}, reason)
