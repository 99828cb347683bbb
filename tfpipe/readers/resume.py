"""Where a run is: what a loader keeps in a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from tfpipe.errors import ConfigError


class Position(NamedTuple):
    """Epoch, and step in it, of the batch that comes next."""

    epoch: int
    step: int

    def after(self, steps_per_epoch: int) -> Position:
        """The next one."""
        return Position(self.epoch, self.step + 1) if self.step + 1 < steps_per_epoch else Position(self.epoch + 1, 0)

    def state(self, seed: int) -> dict[str, int]:
        """With the seed, all that is needed to go on."""
        return {"seed": seed, "epoch": self.epoch, "step": self.step}


class Resumable(ABC):
    """A loader that goes on where a checkpoint says."""

    position: Position
    """Of the batch that comes next."""

    @property
    @abstractmethod
    def _run_seed(self) -> int:
        """By which a state is known to be of this run."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches of a whole epoch."""

    def set_epoch(self, epoch: int) -> None:
        """The next pass begins with this epoch."""
        self.position = Position(epoch, 0)

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps: "seed", "epoch" and "step" of the batch that comes next."""
        return self.position.state(self._run_seed)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where `state_dict` was asked, with the same data and config, however many take part.

        Raises:
          ConfigError: It is of a run with another seed, or of a longer epoch.
        """
        self.position = checked_state(state, self._run_seed, len(self))


def checked_state(state: Mapping[str, int], seed: int, steps_per_epoch: int) -> Position:
    """The position in a state that was saved.

    Raises:
      ConfigError: It is of a run with another seed, or the epoch has fewer steps.
    """
    if set(state) != {"seed", "epoch", "step"}:
        raise ConfigError(f"A position must have seed, epoch and step, got {', '.join(map(str, state)) or 'nothing'}.")
    if state["seed"] != seed:
        raise ConfigError(f"The position must be of a run with seed {seed}, got seed {state['seed']}.")
    if state["epoch"] < 0 or not 0 <= state["step"] < steps_per_epoch:
        raise ConfigError(
            f"The position must lie in an epoch of {steps_per_epoch} steps, got epoch {state['epoch']} and step "
            f"{state['step']}. Use the batch size and the data that it was saved with."
        )
    return Position(state["epoch"], state["step"])
