"""The number format in which Keras computes, chosen by the devices that train."""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias

import tensorflow as tf

from tfpipe.distribution.devices import get_device_kind
from tfpipe.errors import ConfigError

logger = logging.getLogger(__name__)

Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]

_BFLOAT16_CAPABILITY = (8, 0)
"""The compute capability of Ampere, the first GPUs that multiply bfloat16 faster than float32."""


def set_precision(precision: Precision = "auto", strategy: tf.distribute.Strategy | None = None) -> str:
    """Sets the Keras dtype policy for all layers made after this call. Call it after `resolve_strategy`.

    Args:
        precision: The number format. "auto" takes bfloat16 if the device is built for it: a TPU, or GPUs of compute
            capability 8.0 and above. On others it is slower than float32.
        strategy: The strategy that trains; by default the one in scope, else the devices that TensorFlow sees.

    Returns:
        The name of the policy, "mixed_bfloat16" (bfloat16 sums, float32 weights) or "float32".

    Raises:
        ConfigError: `precision` is not one of the three.
    """
    if precision not in ("auto", "float32", "bfloat16"):
        raise ConfigError(f"`precision` must be auto, float32 or bfloat16, got {precision!r}.")
    if precision == "auto":
        precision = "bfloat16" if _has_bfloat16(strategy or tf.distribute.get_strategy()) else "float32"
    policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
    # `tf.keras` and not `keras`: it is the Keras this TensorFlow trains with, be it 3 or the legacy one.
    tf.keras.mixed_precision.set_global_policy(policy)
    logger.info("Keras computes in %s.", policy)
    return policy


def _has_bfloat16(strategy: tf.distribute.Strategy) -> bool:
    kind = get_device_kind(strategy)
    if kind != "GPU":
        return kind == "TPU"
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.get_visible_devices("GPU")]
    return all(gpu.get("compute_capability", (0, 0)) >= _BFLOAT16_CAPABILITY for gpu in details)
