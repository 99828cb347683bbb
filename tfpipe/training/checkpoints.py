"""Checkpoints with all that a run needs to go on: the model, the optimizer, and its position (a few integers)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.order import ORDER_VERSION, check_version

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """The place of a run.

    Attributes:
        seed: The seed of the run.
        epoch: The number of the epoch, from 0.
        step: The step of the epoch that comes next, from 0. The number of steps in an epoch means that all steps are
            done, and the evaluation is not.
    """

    seed: int
    epoch: int
    step: int

    def after(self, steps: int) -> Position:
        """Returns the position some steps later in the same epoch."""
        return replace(self, step=self.step + steps)

    def next_epoch(self) -> Position:
        """Returns the position of the next epoch's first step."""
        return replace(self, epoch=self.epoch + 1, step=0)

    def count_steps(self, steps_per_epoch: int) -> int:
        """Returns the number of steps done since the run began."""
        return self.epoch * steps_per_epoch + self.step


class Checkpoints:
    """The last few checkpoints of a run, on any file system that TensorFlow can write.

    A checkpoint counts once the list of checkpoints names it. The list is written last and in one step. So if a process
    ends while it saves, the previous checkpoint stays valid.
    """

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

    def restore(self, seed: int) -> tuple[Position, NDArray[np.float64]] | None:
        """Restores model and optimizer from the last checkpoint that can be read.

        Args:
            seed: The seed of the run.

        Returns:
            The position and the sums of the checkpoint; None if there is no checkpoint.

        Raises:
            ConfigError: The run began in an order of another version.
            DataError: There are checkpoints, and none of them can be read.
        """
        paths = list(reversed(self._manager.checkpoints))
        for path in paths:
            try:
                check_version(_read_order_version(path), f"The run of {path}")
                self._checkpoint.restore(path).assert_consumed()  # a missing value must not keep its initial one
            except ConfigError:
                raise
            except (tf.errors.OpError, AssertionError, ValueError, RuntimeError, LookupError) as error:
                logger.warning("%s cannot be read (%s); the one before it is used.", path, first_line(error))
                continue
            position = Position(seed, *(int(self._position[name]) for name in ("epoch", "step")))
            if int(self._position["seed"]) != _to_signed(seed):
                raise DataError(f"{path} belongs to a run with another seed. Choose another folder for this one.")
            return position, self._sums.numpy()
        if paths:
            raise DataError(
                f"None of the {len(paths)} checkpoints in {self._manager.directory} can be read. Delete the folder of "
                "the run to begin again."
            )
        return None


def _read_order_version(path: str) -> int:
    """Reads in which version of the order a run began; the first version was not saved."""
    key, reader = "position/order/.ATTRIBUTES/VARIABLE_VALUE", tf.train.load_checkpoint(path)
    return int(reader.get_tensor(key)) if reader.has_tensor(key) else 1


def _to_signed(seed: int) -> int:
    """Returns the signed integer of 64 bits that has the same bits as an unsigned one."""
    return seed - 2**64 if seed >= 2**63 else seed
