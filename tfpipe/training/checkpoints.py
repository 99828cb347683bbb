"""Checkpoints with all that a run needs to go on: the model, the optimizer, and its position (a few integers).

```
RUN/checkpoints/ckpt-000002-000000004.npz    after 4 steps of epoch 2; `numpy.load` opens it
    position                                 seed, epoch, step, and the version of the order of records
    sums                                     the figures of the epoch so far
    state/NAME                               the arrays of the model and its optimizer, which the framework names
```
"""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.order import ORDER_VERSION, check_version
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.storage import file_io

logger = logging.getLogger(__name__)

State: TypeAlias = dict[str, NDArray[Any]]
"""The arrays of a model and its optimizer, by names of the framework's."""

_MAX_BYTES = 1 << 36
_PREFIX, _SUFFIX, _TEMPORARY, _STATE = "ckpt-", ".npz", ".tmp", "state/"


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


Saved: TypeAlias = tuple[Position, NDArray[np.float64]]
"""The part of a checkpoint that is not the model's or the optimizer's: the place of the run, and the sums of the epoch
so far."""


class Stateful(Protocol):
    """A model and its optimizer, whose arrays a checkpoint holds."""

    def get_state(self) -> State:
        """Returns copies of all arrays."""

    def set_state(self, state: State) -> None:
        """Takes arrays that `get_state` returned, of a model of the same shapes."""


class Checkpoints:
    """The last few checkpoints of a run, a file each, which appears when it is complete.

    Attributes:
        directory: The folder, for the checkpoints alone.
    """

    def __init__(self, directory: str, trained: Stateful, keep: int) -> None:
        """Sets what a checkpoint holds."""
        self.directory, self._trained, self._keep = directory, trained, keep

    def save(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Writes a checkpoint, then deletes the oldest if there are too many.

        Raises:
            DataError: The checkpoint cannot be written.
        """
        arrays: State = {_STATE + name: values for name, values in self._trained.get_state().items()}
        arrays["position"] = np.array([position.seed, position.epoch, position.step, ORDER_VERSION], np.uint64)
        buffer = io.BytesIO()
        np.savez(buffer, sums=sums, **arrays)  # type: ignore[arg-type]  # NumPy's own flag has a name of no array here
        # The numbers have a fixed width, so the order of the names is that of the steps.
        name = f"{_PREFIX}{position.epoch:06}-{position.step:09}{_SUFFIX}"
        try:
            file_io.make_folder(self.directory)
            file_io.write_file(file_io.join(self.directory, name), buffer.getvalue())
            # A process that was killed while it saved may have left a file under a temporary name.
            for path in [*self._list()[: -self._keep], *self._list(_TEMPORARY)]:
                file_io.remove(path)
        except OSError as error:
            raise DataError(f"A checkpoint cannot be written: {first_line(error)}.") from error

    def restore(self, seed: int) -> Saved | None:
        """Restores model and optimizer from the last checkpoint that can be read.

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
            except Exception as error:  # a damaged file, or one of another model, raises anything
                logger.warning("%s cannot be read (%s); the one before it is used.", path, first_line(error))
                continue
            if saved[0].seed != seed:
                raise DataError(f"{path} belongs to a run with another seed. Choose another folder for this one.")
            return saved
        if paths:
            raise DataError(
                f"None of the {len(paths)} checkpoints in {self.directory} can be read. Delete the folder of the run "
                "to begin again."
            )
        return None

    def _list(self, suffix: str = _SUFFIX) -> Sequence[str]:
        """Lists the paths of the checkpoints, the oldest first; or of files with another suffix."""
        names = file_io.list_names(self.directory)
        names = [name for name in names if name.startswith(_PREFIX) and name.endswith(suffix)]
        return [file_io.join(self.directory, name) for name in names]

    def _load(self, path: str) -> Saved:
        """Restores model and optimizer.

        Raises:
            ConfigError: The run began in an order of another version.
        """
        data = io.BytesIO(file_io.read_bytes(path, _MAX_BYTES))
        with zipfile.ZipFile(data) as archive:
            damaged = archive.testzip()  # compares all checksums
        if damaged is not None:
            raise ValueError(f"{damaged} in it is damaged")
        data.seek(0)
        with np.load(data, allow_pickle=False) as arrays:
            seed, epoch, step, version = map(int, arrays["position"])
            check_version(version, f"The run of {path}")
            names = [name for name in arrays.files if name.startswith(_STATE)]
            self._trained.set_state({name.removeprefix(_STATE): arrays[name] for name in names})
            return Position(seed, epoch, step), arrays["sums"]
