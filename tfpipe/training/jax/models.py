"""The model of the trainer for JAX, as plain functions: parameters are a dictionary, and images go to float32 logits.

small_cnn is that of `tfpipe.training.tensorflow.models`: the same layers, and weights drawn from the same ranges.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from tfpipe.training.config import SMALL_CHANNELS, SMALL_EPSILON, SMALL_GROUPS

Parameters: TypeAlias = dict[str, Any]

_draw = jax.nn.initializers.glorot_uniform()  # Keras' default


def init_small_cnn(key: jax.Array, num_classes: int) -> Parameters:
    """Draws the parameters of three convolutions: 94,000 weights."""
    channels = (3, *SMALL_CHANNELS)
    *keys, head_key = jax.random.split(key, len(channels))
    layers = [
        {"kernel": _draw(key, (3, 3, before, after)), "scale": jnp.ones(after), "offset": jnp.zeros(after)}
        for key, (before, after) in zip(keys, pairwise(channels), strict=True)
    ]
    head = {"kernel": _draw(head_key, (channels[-1], num_classes)), "bias": jnp.zeros(num_classes)}
    return {"layers": layers, "head": head}


def apply_small_cnn(parameters: Parameters, images: jax.Array, dtype: Any = jnp.float32) -> jax.Array:
    """Computes the logits of normalized images: float32 [batch, classes].

    Args:
        parameters: The parameters, float32.
        images: Floats of shape [batch, height, width, 3].
        dtype: The dtype of the convolutions; normalization and the last layer are computed in float32.
    """
    x = images
    for layer in parameters["layers"]:
        x = jax.lax.conv_general_dilated(
            x.astype(dtype), layer["kernel"].astype(dtype), (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(_normalize_groups(x.astype(jnp.float32)) * layer["scale"] + layer["offset"])
    head = parameters["head"]
    logits: jax.Array = jnp.max(x, axis=(1, 2)) @ head["kernel"] + head["bias"]
    return logits


def _normalize_groups(x: jax.Array) -> jax.Array:
    """Normalizes the channels of each image in groups."""
    groups = x.reshape(*x.shape[:3], SMALL_GROUPS, -1)
    mean = groups.mean((1, 2, 4), keepdims=True)
    variance = groups.var((1, 2, 4), keepdims=True)
    normalized: jax.Array = (groups - mean) * jax.lax.rsqrt(variance + SMALL_EPSILON)
    return normalized.reshape(x.shape)
