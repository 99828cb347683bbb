"""Writes curves for TensorBoard, which need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

# The metadata that `tf.summary.scalar` writes; that function asks for TensorBoard to be installed.
_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class=1
)


class Scalars:
    """The curves of one run in TensorBoard."""

    def __init__(self, log_dir: str | Path) -> None:
        """Sets the folder, in which a file appears with the first point.

        Args:
            log_dir: A folder for this run alone, which may be a URL.
        """
        self._log_dir = str(log_dir)
        self._writer: tf.summary.SummaryWriter | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the values of some curves, by name, at one step."""
        self._writer = self._writer or tf.summary.create_file_writer(self._log_dir)
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), metadata=_SCALAR)
        self._writer.flush()
