"""Builds the models that the trainer knows by name, and the user's own: from images to float32 logits.

All weights start from scratch. Batch normalization is as in Keras: each replica normalizes by its own part of the
batch, and evaluation uses moving averages, the mean over replicas. small_cnn normalizes each image by itself, so its
numbers do not depend on how many replicas share a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError

BuildModel: TypeAlias = Callable[[int, tuple[int, int]], "tf.keras.Model"]
"""A function from the number of classes and the (height, width) of images to a model. The model takes normalized float
images, [batch, height, width, 3], and returns logits, [batch, classes]."""

_SMALLEST_SIDE = 32  # the last feature maps of the large models have no pixels for smaller images


def build_model(name: str, num_classes: int, config: PipelineConfig, build: BuildModel | None = None) -> tf.keras.Model:
    """Builds a model for the batches of a pipeline, or by the user's own `build`. Call it after `set_precision`.

    Returns:
        A model from images, `image_dtype` [batch, height, width, 3], to logits, float32 [batch, classes]. It normalizes
        uint8 images itself, with the mean and deviation of `augment_options`. Floats come normalized from the pipeline.
    """
    height, width = config.size
    net = (
        _build_by_name(name, num_classes, config.size)
        if build is None
        else _build_users_own(name, build, num_classes, config.size)
    )
    images = x = tf.keras.Input((height, width, 3), dtype=config.image_dtype, name="image")
    if config.image_dtype == "uint8":
        options = config.augment_options
        scale = [1 / (255 * std) for std in options.std]
        offset = [-mean / std for mean, std in zip(options.mean, options.std, strict=True)]
        # In float32 under any dtype policy, and rounded once, as in `tfpipe.pipeline.device.augment.normalize`.
        x = tf.keras.layers.Rescaling(scale, offset, dtype="float32", name="normalize")(x)
    logits = tf.keras.layers.Activation("linear", dtype="float32", name="logits")(net(x))
    return tf.keras.Model(images, logits, name=net.name)


def _build_by_name(name: str, num_classes: int, size: tuple[int, int]) -> tf.keras.Model:
    if name != "small_cnn" and min(size) < _SMALLEST_SIDE:
        height, width = size
        raise ConfigError(f"{name} needs images of at least {_SMALLEST_SIDE} pixels a side, got {height} x {width}.")
    shape, applications = (*size, 3), tf.keras.applications
    if name == "small_cnn":
        images, features = _build_small_cnn(shape)
    elif name == "resnet50":
        body = applications.ResNet50(include_top=False, weights=None, input_shape=shape, pooling="avg", name="body")
        images, features = body.input, body.output
    else:
        body = applications.MobileNetV3Small(weights=None, input_shape=shape, include_preprocessing=False, name="body")
        # A new last layer takes the place of Keras' own, which a 16-bit policy would compute in 16 bits.
        images, features = body.input, tf.keras.layers.Flatten()(body.get_layer("logits").input)
    return tf.keras.Model(images, tf.keras.layers.Dense(num_classes, dtype="float32", name="head")(features), name=name)


def _build_small_cnn(shape: tuple[int, int, int]) -> tuple[Any, Any]:
    """Returns the images and the features of three convolutions, with 94,000 weights.

    The largest value of each channel goes on, wherever it is. With their means the net learns drawn shapes much slower:
    of 2,000 images of 64 x 64 67 % were right after 12 epochs, and 98 % after 3 with the largest values.
    """
    images = x = tf.keras.Input(shape)
    for channels in (32, 64, 128):
        x = tf.keras.layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = tf.keras.layers.GroupNormalization(8, epsilon=1e-3)(x)
        x = tf.keras.layers.ReLU()(x)
    return images, tf.keras.layers.GlobalMaxPooling2D()(x)


def _build_users_own(name: str, build: BuildModel, num_classes: int, size: tuple[int, int]) -> tf.keras.Model:
    """Builds the user's own model, and checks its type, its input and its output."""
    shape = (None, *size, 3)
    try:
        model = build(num_classes, size)
    except Exception as error:
        raise ConfigError(f"{name}({num_classes}, {size}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(model, tf.keras.Model):
        raise ConfigError(f"{name} must return a Keras model, got {type(model).__name__}.")
    try:
        output = model.compute_output_shape(shape)
    except Exception as error:
        raise ConfigError(f"{name} must take images of shape {shape}: {type(error).__name__}: {error}") from error
    if output != (None, num_classes):
        raise ConfigError(f"{name} must return logits of shape {(None, num_classes)}, got {output}.")
    return model
