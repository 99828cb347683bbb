"""The losses of a training's records, 4 bytes for each row of each step, and the records that have the largest.

```
run/losses.f32       float32 [steps, batch_size], little-endian, in the order of the steps
```

The rows need no names: `tfpipe.lookups.steps` knows the record of each. A trainer of one's own writes the same file,
for example by `losses.astype("<f4").tofile(file)` after each step.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.epoch_weights import strip_copies
from tfpipe.engine.open_maker import locate_split
from tfpipe.engine.plan import BatchPlan
from tfpipe.errors import ConfigError, DataError
from tfpipe.readers.data_source import Record, data_source
from tfpipe.storage.file_io import explain_os_errors

LOSSES = "losses.f32"
"""The name of the file in the folder of a run."""

_DTYPE = np.dtype("<f4")
_STEPS_AT_ONCE = 1024

IntArray = NDArray[np.int64]


class LossFile:
    """The file of a run that is being trained. A run that goes on writes over the losses of the steps it repeats.

    Args:
        path: The path of the file, on this machine.
        batch_size: The number of rows of a step.
    """

    def __init__(self, path: str, batch_size: int) -> None:
        self._path, self._batch_size = path, batch_size
        self._file: BinaryIO | None = None

    def write(self, step: int, losses: NDArray[Any]) -> None:
        """Writes the losses of a step.

        Args:
            step: The step, counted since the start of the run.
            losses: The losses of its rows: [batch_size].

        Raises:
            DataError: The file cannot be written.
        """
        with explain_os_errors(f"write {self._path}"):
            if self._file is None:
                self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
            self._file.seek(step * self._batch_size * _DTYPE.itemsize)
            self._file.write(np.asarray(losses, _DTYPE).tobytes())

    def save(self) -> None:
        """Brings what was written to the disk, before a checkpoint says that its steps are done.

        Raises:
            DataError: The file cannot be written.
        """
        if self._file is not None:
            with explain_os_errors(f"write {self._path}"):
                self._file.flush()
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True)
class RankedRecord:
    """A record with its loss.

    Attributes:
        record: The record.
        relative: The mean of its losses, each as a multiple of the mean loss of all records in that epoch.
        loss: The mean of its losses.
        times: The number of its losses.
    """

    record: Record
    relative: float
    loss: float
    times: int


def rank_by_loss(plan: BatchPlan, path: str, count: int) -> list[RankedRecord]:
    """Returns the records of a training with the largest losses, the largest first.

    A loss counts as a multiple of the mean loss in its epoch. So the first epochs, in which the model knows nothing and
    all losses are large, say less than the later ones, in which only records that it cannot learn have large losses.

    Args:
        plan: The training, from `DataLock.open`.
        path: The file of losses.
        count: The number of records, at most.

    Raises:
        ConfigError: Records that were damaged may be in the batches in place of others.
        DataError: The file holds no losses, or cannot be read.
        FormatError: A record is damaged.
    """
    if plan.config.max_bad_records:
        raise ConfigError("Losses belong to no certain record where `max_bad_records` lets others take a place.")
    chosen = plan.source.chosen
    sums = np.zeros(plan.order.num_records if chosen is None else chosen.records, np.float64)
    times, relative = np.zeros(len(sums), np.int64), np.zeros(len(sums), np.float64)
    for numbers, losses in _read_epochs(plan, path):
        scale = float(np.abs(losses).mean(dtype=np.float64))
        np.add.at(sums, numbers, losses)
        np.add.at(relative, numbers, losses / scale if scale else losses)
        np.add.at(times, numbers, 1)
    manifest, split = locate_split(plan)
    stored = np.arange(len(sums)) if chosen is None else chosen.numbers
    times[np.isin(stored, manifest.withheld.get(split, []))] = 0
    seen = np.flatnonzero(times)
    if not len(seen):
        raise DataError(f"{path} holds no losses of batches of {plan.batch_size:,} rows.")
    worst = seen[np.argsort(-relative[seen] / times[seen], kind="stable")[:count]]
    with data_source(manifest, split) as records:
        return [
            RankedRecord(records[k], relative[k] / times[k], sums[k] / times[k], int(times[k])) for k in worst.tolist()
        ]


def _read_epochs(plan: BatchPlan, path: str) -> Iterator[tuple[IntArray, NDArray[np.float32]]]:
    """Yields the records of each epoch, int64 [rows], and the loss of each, float32 [rows]; those that are numbers."""
    steps = ((*plan.order.locate(step), losses) for step, losses in _read(path, plan.batch_size))
    for epoch, rows in itertools.groupby(steps, key=lambda step: step[0]):
        places, parts = zip(*((step, losses) for _, step, losses in rows), strict=True)
        numbers = np.concatenate([strip_copies(plan.list_numbers(epoch, step)) for step in places])
        losses = np.concatenate(parts)
        known = np.isfinite(losses)
        if known.any():
            yield numbers[known], losses[known]


def _read(path: str, batch_size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yields each whole step of a file with its losses, float32 [batch_size]."""
    step, bytes_at_once = 0, _STEPS_AT_ONCE * batch_size * _DTYPE.itemsize
    try:
        with open(path, "rb") as file:
            while data := file.read(bytes_at_once):
                rows = np.frombuffer(data, _DTYPE, len(data) // _DTYPE.itemsize)
                for losses in rows[: len(rows) // batch_size * batch_size].reshape(-1, batch_size):
                    yield step, losses
                    step += 1
    except FileNotFoundError:
        raise DataError(f"There is no file {path}. Train with --record-losses.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
