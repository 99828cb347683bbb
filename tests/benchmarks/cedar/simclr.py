"""cedar's SimCLR pipeline: random resized crop, flip, color jitter, grey, blur, and standardized pixels, 244 x 244 x 1.

    tfpipe profile DATASET --stages tests.benchmarks.cedar.simclr:add_simclr --images-per-second 2000

`add_simclr` writes it as stages of tfpipe, `make_plain` as a careful user of tf.data does. Both call the same functions
on each image. As in cedar the grey stage may go in front of the jitter: a grey image has no saturation and no hue, so
what their jitter does to the grey values is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

import tfpipe
from tests.benchmarks.pipeline_by_hand import shuffled_records

SIZE = 244
"""The height and the width of a crop in cedar's pipeline."""

_JITTER = 0.1
_BLUR_SIZE = 11
_BLUR_SIGMAS = (0.1, 2.0)

CONFIG = tfpipe.PipelineConfig(batch_size=64, image_size=SIZE, seed=1)


def add_simclr(stages: tfpipe.Stages, grey_first: bool = False) -> tfpipe.Stages:
    """Adds the stages behind the random crop and the flip, which are the stage `augment`."""
    colors = [_make_stage("jitter", jitter, random=True), _make_stage("grey", make_grey, random=False)]
    return stages.insert_after(
        "augment",
        *(reversed(colors) if grey_first else colors),
        _make_stage("blur", blur, random=True),
        _make_stage("standardize", tf.image.per_image_standardization, random=False),
    )


def add_moved_simclr(stages: tfpipe.Stages) -> tfpipe.Stages:
    """Adds the same stages, with grey in front of the jitter, where it saves most."""
    return add_simclr(stages, grey_first=True)


def _make_stage(name: str, function: Callable[[tf.Tensor], tf.Tensor], **declared: object) -> tfpipe.Stage:
    def change(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {**features, "image": function(features["image"])}

    def apply(dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.map(change, num_parallel_calls=tf.data.AUTOTUNE)

    return tfpipe.Stage(name, apply, per_image=True, **declared)


def jitter(image: tf.Tensor) -> tf.Tensor:
    """Changes brightness and contrast, and of an image with colors saturation and hue, by a tenth at most."""
    image = tf.image.random_brightness(_make_float(image), _JITTER)
    image = tf.image.random_contrast(image, 1 - _JITTER, 1 + _JITTER)
    if image.shape[-1] == 3:
        image = tf.image.random_saturation(image, 1 - _JITTER, 1 + _JITTER)
        image = tf.image.random_hue(image, _JITTER)
    return tf.clip_by_value(image, 0.0, 1.0)


def make_grey(image: tf.Tensor) -> tf.Tensor:
    """Leaves one channel, the brightness."""
    return tf.image.rgb_to_grayscale(_make_float(image))


def blur(image: tf.Tensor) -> tf.Tensor:
    """Blurs a grey image by a Gaussian of 11 x 11 pixels, first its columns and then its rows."""
    places = tf.range(-(_BLUR_SIZE // 2), _BLUR_SIZE // 2 + 1, dtype=tf.float32)
    weights = tf.nn.softmax(-(places**2) / (2 * tf.random.uniform([], *_BLUR_SIGMAS) ** 2))
    margin = [_BLUR_SIZE // 2] * 2
    padded = tf.pad(image, [margin, margin, [0, 0]], "REFLECT")[None]
    blurred = tf.nn.conv2d(padded, tf.reshape(weights, [-1, 1, 1, 1]), 1, "VALID")
    return tf.nn.conv2d(blurred, tf.reshape(weights, [1, -1, 1, 1]), 1, "VALID")[0]


def _make_float(image: tf.Tensor) -> tf.Tensor:
    return tf.image.convert_image_dtype(image, tf.float32)


def make_plain(directory: str, grey_first: bool = False) -> tf.data.Dataset:
    """Writes the pipeline with tf.data alone: side by side files, a shuffle buffer, a fused crop, one parallel map.

    Args:
        directory: The folder of the shards.
        grey_first: Whether the user has put grey in front of the jitter.
    """

    def make_image(record: tf.Tensor) -> dict[str, tf.Tensor]:
        image, label = _crop(record)
        image = jitter(make_grey(image)) if grey_first else make_grey(jitter(image))
        return {"image": tf.image.per_image_standardization(blur(image)), "label": label}

    images = shuffled_records(directory).map(make_image, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    return images.batch(CONFIG.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _crop(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes a random part of an image, and resizes and flips it."""
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(features["image/encoded"]),
        tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], 0)
    crop = tf.io.decode_and_crop_jpeg(features["image/encoded"], window, channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(crop, [SIZE, SIZE])) / 255.0
    return image, tf.cast(features["image/class/label"], tf.int32)
