"""What a run needs to go on: model, optimizer, and where it is, as three integers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.errors import DataError, first_line

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """Where a run is: what comes next is `step` of `epoch`, both from 0."""

    seed: int
    epoch: int
    step: int
    """All steps of the epoch: they are done, and its evaluation is not."""

    def after(self, steps: int) -> Position:
        """So many steps later in the same epoch."""
        return replace(self, step=self.step + steps)

    def next_epoch(self) -> Position:
        """The first step of the next."""
        return replace(self, epoch=self.epoch + 1, step=0)


class Checkpoints:
    """The last few checkpoints of a run, on any file system that TensorFlow can write.

    A checkpoint counts once the list of checkpoints names it, which is written last and in one step: a process that
    ends while it saves leaves the one before.
    """

    def __init__(
        self, directory: str, model: tf.keras.Model, optimizer: Any, keep: int, num_sums: tuple[int, int]
    ) -> None:
        """Looks what is there.

        Args:
            directory: For the checkpoints alone.
            model: Built.
            optimizer: Built.
            keep: How many are kept.
            num_sums: Shape of the sums that are saved beside them, of parts of an epoch.
        """
        zero = tf.constant(0, tf.int64)
        # Not under the strategy: these three belong to no replica. A seed of 64 bits may lack the sign.
        self._position = {name: tf.Variable(zero, trainable=False) for name in ("seed", "epoch", "step")}
        self._sums = tf.Variable(tf.zeros(num_sums, tf.float64), trainable=False)
        # A model's checkpoint leaves out what its dropout draws from.
        generators = [one.value for one in model.non_trainable_variables if not one.value.dtype.is_floating]
        self._checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, generators=generators, position=self._position, sums=self._sums
        )
        self._manager = tf.train.CheckpointManager(self._checkpoint, directory, max_to_keep=keep)

    def save(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Writes a checkpoint, then deletes the oldest if there are too many.

        Raises:
            DataError: It cannot be written.
        """
        values = (_signed(position.seed), position.epoch, position.step)
        for variable, value in zip(self._position.values(), values, strict=True):
            variable.assign(value)
        self._sums.assign(sums)
        try:
            self._manager.save()
        except (tf.errors.OpError, OSError) as error:
            raise DataError(f"A checkpoint cannot be written: {first_line(error)}.") from error

    def restore(self, seed: int) -> tuple[Position, NDArray[np.float64]] | None:
        """Goes back to the last checkpoint that can be read.

        Args:
            seed: Of the run.

        Returns:
            Where it was, and the sums; None where none was ever saved.

        Raises:
            DataError: There are checkpoints, and none of them can be read.
        """
        paths = list(reversed(self._manager.checkpoints))
        for path in paths:
            try:
                self._checkpoint.restore(path).assert_consumed()  # else what is missing stays as it was made
            except (tf.errors.OpError, AssertionError, ValueError, RuntimeError, LookupError) as error:
                logger.warning("%s cannot be read (%s); the one before it is taken.", path, first_line(error))
                continue
            found = Position(seed, *(int(self._position[name]) for name in ("epoch", "step")))
            if int(self._position["seed"]) != _signed(seed):
                raise DataError(f"{path} belongs to a run with another seed. Choose another folder for this one.")
            return found, self._sums.numpy()
        if paths:
            raise DataError(
                f"None of the {len(paths)} checkpoints in {self._manager.directory} can be read. Delete the folder of "
                "the run to begin anew."
            )
        return None


def _signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed
