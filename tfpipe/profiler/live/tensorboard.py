"""Curves for TensorBoard, which need not be installed to write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

# What `tf.summary.scalar` writes, which asks for TensorBoard to be installed.
_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class=1
)


class Scalars:
    """Points of curves; the file is made with the first one."""

    def __init__(self, log_dir: str | Path) -> None:
        """Curves of a folder, which may be a URL.

        Args:
            log_dir: A run of its own in TensorBoard.
        """
        self._log_dir = str(log_dir)
        self._writer: tf.summary.SummaryWriter | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A point of each curve, by its name, at this step."""
        self._writer = self._writer or tf.summary.create_file_writer(self._log_dir)
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=_SCALAR)
        self._writer.flush()
