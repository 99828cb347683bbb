"""Builds the models that the trainer knows by name, and the user's own: from images to float32 logits.

All weights start from scratch. Batch normalization (resnet50, mobilenet_v3_small) is as in Keras: each replica
normalizes by its own part of the batch, as in Goyal et al. 2017, and evaluation uses moving averages, which are the
mean over replicas. small_cnn normalizes each image by itself, so its numbers do not depend on how many replicas share
a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.training.config import SMALL_CHANNELS, SMALL_EPSILON, SMALL_GROUPS, check_side

BuildModel: TypeAlias = Callable[[int, tuple[int, int]], "tf.keras.Model"]
"""A function from the number of classes and the (height, width) of images to a model. The model takes normalized float
images, [batch, height, width, 3], and returns logits, [batch, classes]."""


def build_model(name: str, num_classes: int, config: PipelineConfig, build: BuildModel | None = None) -> tf.keras.Model:
    """Builds a model for the batches of a pipeline. Call it under a strategy's scope, after `set_precision`.

    Args:
        name: small_cnn, resnet50 or mobilenet_v3_small; for the user's own model the name to use in messages.
        num_classes: The number of logits for an image.
        config: The options of the pipeline, of which `size` and `image_dtype` are used.
        build: A function that builds the user's own model.

    Returns:
        A model from images, `image_dtype` [batch, height, width, 3], to logits, float32 [batch, classes]. It normalizes
        uint8 images itself, with the mean and deviation of `augment_options`. Floats come normalized from the pipeline.

    Raises:
        ConfigError: The images are too small for the model, or `build` does not return such a model.
    """
    height, width = config.size
    if build is not None:
        net = _build_users_own(name, build, num_classes, (height, width))
    else:
        net = _build_by_name(name, num_classes, (height, width))
    images = tf.keras.Input((height, width, 3), dtype=config.image_dtype, name="image")
    x = images
    if config.image_dtype == "uint8":
        options = config.augment_options
        scale = [1 / (255 * std) for std in options.std]
        offset = [-mean / std for mean, std in zip(options.mean, options.std, strict=True)]
        # In float32 under any dtype policy, and rounded once, as in `tfpipe.pipeline.device.augment.normalize`.
        x = tf.keras.layers.Rescaling(scale, offset, dtype="float32", name="normalize")(x)
    logits = tf.keras.layers.Activation("linear", dtype="float32", name="logits")(net(x))
    return tf.keras.Model(images, logits, name=net.name)


def _build_by_name(name: str, num_classes: int, size: tuple[int, int]) -> tf.keras.Model:
    if name == "small_cnn":
        return _build_small_cnn(num_classes, size)
    check_side(name, size)
    if name == "resnet50":
        body = tf.keras.applications.ResNet50(
            include_top=False, weights=None, input_shape=(*size, 3), pooling="avg", name="body"
        )
        features = body.output
    else:
        body = tf.keras.applications.MobileNetV3Small(
            weights=None, input_shape=(*size, 3), include_preprocessing=False, name="body"
        )
        # A new last layer takes the place of Keras' own, which a 16-bit policy would compute in 16 bits.
        features = tf.keras.layers.Flatten()(body.get_layer("logits").input)
    return tf.keras.Model(body.input, _make_head(num_classes)(features), name=name)


def _build_small_cnn(num_classes: int, size: tuple[int, int]) -> tf.keras.Model:
    """Builds three convolutions: 94,000 weights, and 10 million multiply-adds for an image of 64 x 64.

    The largest value of each channel goes on, wherever it is. With their means the net learns drawn shapes much slower:
    of 2,000 images of 64 x 64 67 % were right after 12 epochs, and 98 % after 3 with the largest values.
    """
    images = x = tf.keras.Input((*size, 3))
    for channels in SMALL_CHANNELS:
        x = tf.keras.layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = tf.keras.layers.GroupNormalization(SMALL_GROUPS, epsilon=SMALL_EPSILON)(x)
        x = tf.keras.layers.ReLU()(x)
    x = tf.keras.layers.GlobalMaxPooling2D()(x)
    return tf.keras.Model(images, _make_head(num_classes)(x), name="small_cnn")


def _make_head(num_classes: int) -> tf.keras.layers.Layer:
    return tf.keras.layers.Dense(num_classes, dtype="float32", name="head")


def _build_users_own(name: str, build: BuildModel, num_classes: int, size: tuple[int, int]) -> tf.keras.Model:
    """Builds the user's own model, and checks its type, its input and its output."""
    try:
        model = build(num_classes, size)
    except Exception as error:
        raise ConfigError(f"{name}({num_classes}, {size}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, tf.keras.Model):
        raise ConfigError(f"{name} must return a Keras model, got {type(model).__name__}.")
    shape = (None, *size, 3)
    try:
        output = model.compute_output_shape(shape)
    except Exception as error:
        raise ConfigError(f"{name} must take images of shape {shape}: {type(error).__name__}: {error}") from error
    if output != (None, num_classes):
        raise ConfigError(f"{name} must return logits of shape {(None, num_classes)}, got {output}.")
    return model
