"""Checkpoints with all that a run needs to go on: the model, the optimizer, and its position (a few integers)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, DataError, first_line

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


class Saved(NamedTuple):
    """The part of a checkpoint that is not the model's or the optimizer's.

    Attributes:
        position: The place of the run.
        sums: The sums of the epoch so far, float64.
    """

    position: Position
    sums: NDArray[np.float64]


class Checkpoints(ABC):
    """The last few checkpoints of a run. If a process ends while it saves, the previous checkpoint stays valid.

    Attributes:
        directory: The folder, for the checkpoints alone.
        saved_by_all: Whether every process of a run must call `save`, and not its chief alone.
    """

    saved_by_all = False

    # The errors by which a framework says that a checkpoint cannot be read.
    _unreadable: tuple[type[Exception], ...] = (OSError, ValueError, RuntimeError, LookupError, DataError)

    def __init__(self, directory: str) -> None:
        """Sets the folder."""
        self.directory = directory

    @abstractmethod
    def save(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Writes a checkpoint, then deletes the oldest if there are too many.

        Raises:
            DataError: The checkpoint cannot be written.
        """

    @abstractmethod
    def _list(self) -> Sequence[str]:
        """Lists the paths of the checkpoints, the oldest first."""

    @abstractmethod
    def _load(self, path: str) -> Saved:
        """Restores model and optimizer.

        Raises:
            ConfigError: The run began in an order of another version.
        """

    def restore(self, seed: int) -> Saved | None:
        """Restores model and optimizer from the last checkpoint that can be read.

        Args:
            seed: The seed of the run.

        Returns:
            The position and the sums of the checkpoint; None if there is no checkpoint.

        Raises:
            ConfigError: The run began in an order of another version.
            DataError: There are checkpoints, and none of them can be read.
        """
        paths = list(reversed(self._list()))
        for path in paths:
            try:
                saved = self._load(path)
            except ConfigError:
                raise
            except self._unreadable as error:
                logger.warning("%s cannot be read (%s); the one before it is used.", path, first_line(error))
                continue
            if saved.position.seed != seed:
                raise DataError(f"{path} belongs to a run with another seed. Choose another folder for this one.")
            return saved
        if paths:
            raise DataError(
                f"None of the {len(paths)} checkpoints in {self.directory} can be read. Delete the folder of the run "
                "to begin again."
            )
        return None
