"""Checkpoints of a run in TensorFlow, on any file system that TensorFlow can write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.engine.order import ORDER_VERSION, check_version
from tfpipe.errors import DataError, first_line
from tfpipe.training.checkpoints import Checkpoints, Position, Saved


class TensorFlowCheckpoints(Checkpoints):
    """The checkpoints of `tf.train.CheckpointManager`.

    A checkpoint counts once the list of checkpoints names it. The list is written last and in one step.
    """

    _unreadable = (*Checkpoints._unreadable, AssertionError, tf.errors.OpError)

    def __init__(
        self, directory: str, model: tf.keras.Model, optimizer: Any, keep: int, sums_shape: tuple[int, int]
    ) -> None:
        """Finds the checkpoints in a folder.

        Args:
            directory: A folder for the checkpoints alone.
            model: The model, built.
            optimizer: Its optimizer, built.
            keep: The number of checkpoints to keep.
            sums_shape: The shape of the sums that are saved with each checkpoint.
        """
        super().__init__(directory)
        zero = tf.constant(0, tf.int64)
        # Created outside the strategy: these four belong to no replica. The seed has 64 bits without a sign.
        self._position = {name: tf.Variable(zero, trainable=False) for name in ("seed", "epoch", "step", "order")}
        self._sums = tf.Variable(tf.zeros(sums_shape, tf.float64), trainable=False)
        # A model's checkpoint leaves out the random generators of its dropout.
        values = [variable.value for variable in model.non_trainable_variables]
        generators = [value for value in values if not value.dtype.is_floating]
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, generators=generators, position=self._position, sums=self._sums
        )
        self._manager = tf.train.CheckpointManager(self._checkpoint, directory, max_to_keep=keep)

    def save(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Writes a checkpoint, then deletes the oldest if there are too many.

        Raises:
            DataError: The checkpoint cannot be written.
        """
        values = (_to_signed(position.seed), position.epoch, position.step, ORDER_VERSION)
        for variable, value in zip(self._position.values(), values, strict=True):
            variable.assign(value)
        self._sums.assign(sums)
        try:
            self._manager.save()
        except (tf.errors.OpError, OSError) as error:
            raise DataError(f"A checkpoint cannot be written: {first_line(error)}.") from error

    def _list(self) -> Sequence[str]:
        paths: Sequence[str] = self._manager.checkpoints
        return paths

    def _load(self, path: str) -> Saved:
        check_version(_read_order_version(path), f"The run of {path}")
        self._checkpoint.restore(path).assert_consumed()  # a missing value must not keep its initial one
        seed, epoch, step = (int(self._position[name]) for name in ("seed", "epoch", "step"))
        return Saved(Position(seed % 2**64, epoch, step), self._sums.numpy())


def _read_order_version(path: str) -> int:
    """Reads in which version of the order a run began."""
    return int(tf.train.load_checkpoint(path).get_tensor("position/order/.ATTRIBUTES/VARIABLE_VALUE"))


def _to_signed(seed: int) -> int:
    """Returns the signed integer of 64 bits that has the same bits as an unsigned one."""
    return seed - 2**64 if seed >= 2**63 else seed
