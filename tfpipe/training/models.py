"""Builds the models that the trainer knows by name, and the user's own: from images to float32 logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError

BuildModel: TypeAlias = Callable[[int, tuple[int, int]], "tf.keras.Model"]
"""A function from the number of classes and the (height, width) of images to a model. The model takes normalized float
images, [batch, height, width, 3], and returns logits, [batch, classes]."""


def build_model(name: str, num_classes: int, config: PipelineConfig, build: BuildModel | None = None) -> tf.keras.Model:
    """Builds a model from a pipeline's images to float32 logits, by name or by the user's own `build`.

    The model normalizes uint8 images itself; floats come normalized from the pipeline. Call it after `set_precision`.
    """
    size = config.size
    net = _build_by_name(name, num_classes, size) if build is None else build(num_classes, size)
    if not isinstance(net, tf.keras.Model):
        raise ConfigError(f"{name} must return a Keras model, got {net!r:.100}.")
    if (output := net.compute_output_shape((None, *size, 3))) != (None, num_classes):
        raise ConfigError(f"{name} must return logits of shape {(None, num_classes)}, got {output}.")
    images = x = tf.keras.Input((*size, 3), dtype=config.image_dtype, name="image")
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
        # Three convolutions, with 94,000 weights.
        images = x = tf.keras.Input((*size, 3))
        for channels in (32, 64, 128):
            x = tf.keras.layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
            # Within each image, so that the number of replicas that share a batch changes nothing.
            x = tf.keras.layers.GroupNormalization(8, epsilon=1e-3)(x)
            x = tf.keras.layers.ReLU()(x)
        # The maximum of each channel: with the means the model learns drawn shapes much more slowly.
        features = tf.keras.layers.GlobalMaxPooling2D()(x)
    elif min(size) < 32:  # the last feature maps would have no pixels
        raise ConfigError(f"{name} needs images of at least 32 pixels a side, got {size[0]} x {size[1]}.")
    else:
        body = tf.keras.applications.ResNet50(include_top=False, weights=None, input_shape=(*size, 3), pooling="avg")
        images, features = body.input, body.output
    return tf.keras.Model(images, tf.keras.layers.Dense(num_classes, dtype="float32", name="head")(features), name=name)
