"""The folder of a run, on a local disk or in an object store.

```
run.json            the options and the dataset of the run
metrics.jsonl       a line for every few steps, and one for each epoch
checkpoints/        the last few: ckpt-000002-000000004.npz after 4 steps of epoch 2, which `numpy.load` opens, holds
                    position (seed, epoch, step, version of the order), sums, and state/NAME of model and optimizer
logs/               curves for TensorBoard
model/              the finished model; model-int8.tflite  the same for TFLite, where it was asked for
```
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.order import ORDER_VERSION, check_version
from tfpipe.errors import ConfigError, DataError, FormatError, first_line
from tfpipe.lookups.data_lock import EARLIER_KEY, RUN_KEY
from tfpipe.storage import file_io

logger = logging.getLogger(__name__)

RUN, METRICS, CHECKPOINTS, LOGS, MODEL = "run.json", "metrics.jsonl", "checkpoints", "logs", "model"
PROGRAM, LABELS, NOTES = "saved_model.pb", "labels.txt", "tfpipe.json"
"""The files of an exported model. A folder without the first is not a model."""

_VERSION = NOTES_VERSION = 1
_MAX_BYTES, _MAX_CHECKPOINT_BYTES = 1 << 30, 1 << 36

Options = Mapping[str, Any]
State = dict[str, NDArray[Any]]
Saved = tuple[int, int, NDArray[np.float64]]
"""The epoch and the steps of it that are done, and the sums of the epoch so far."""


class RunDir:
    """The folder of a run. If several processes train together, only the chief writes.

    Attributes:
        path: The path of the folder.
        metrics: The lines of metrics.jsonl so far.
    """

    def __init__(self, path: str, is_chief: bool = True) -> None:
        """Sets the path, a local one or a URL. The folder need not be there."""
        self.path, self._is_chief = path.rstrip("/") or "/", is_chief
        self.metrics: list[dict[str, Any]] = []

    def file(self, name: str) -> str:
        """Returns the path of a file or folder in it."""
        return file_io.join(self.path, name)

    def begin(self, options: Options, lock: Options | None = None) -> bool:
        """Begins a run, or goes on with one of the same options, which decide its numbers. Returns True if it goes on.

        The lock decides the records of its steps; it is None if they come in no exact order.
        """
        if (saved := self.read_options()) is None:
            if self._is_chief:
                self._create({"version": _VERSION, **options, RUN_KEY: lock})
            return False
        if (version := saved["version"]) != _VERSION:
            raise FormatError(f"{self.file(RUN)} has version {version}, and this tfpipe reads {_VERSION}.")
        for name, value in json.loads(json.dumps(options)).items():  # JSON has lists in place of tuples
            if saved.get(name) != value:
                why = " The learning rate falls to 0 with the last epoch." if name == "epochs" else ""
                raise ConfigError(
                    f"The run in {self.path} was begun with {name} {saved.get(name)}, got {value}.{why} Ask for the "
                    "same to go on, or choose another folder.",
                    page="symptoms#the-run-does-not-go-on",
                )
        self.metrics = self._read(METRICS, lambda data: [json.loads(line) for line in data.splitlines()]) or []
        return True

    def read_options(self) -> dict[str, Any] | None:
        """Reads run.json; None if there is no run."""

        def parse(data: bytes) -> Any:
            options = json.loads(data)
            if not isinstance(options, dict) or "version" not in options:
                raise ValueError
            return options

        options: dict[str, Any] | None = self._read(RUN, parse)
        return options

    def change_data(self, dataset: str, lock: Options | None, step: int) -> None:
        """Writes down that the run reads other records from a step on, because some were deleted."""
        options = self.read_options() or {}
        earlier = [*options.get(EARLIER_KEY, []), {"until_step": step, RUN_KEY: options[RUN_KEY]}]
        options |= {"dataset": dataset, RUN_KEY: lock, EARLIER_KEY: earlier}
        self._write(RUN, json.dumps(options, indent=2) + "\n")

    def get_last_epoch(self) -> dict[str, Any] | None:
        """Returns the line of the last finished epoch; None before the first."""
        return next((line for line in reversed(self.metrics) if line["kind"] == "epoch"), None)

    def is_finished(self, num_epochs: int, tflite: str | None) -> bool:
        """Returns whether the last epoch is done and all models are exported."""
        last, names = self.get_last_epoch(), [f"{MODEL}/{PROGRAM}", *([f"{MODEL}-{tflite}.tflite"] if tflite else [])]
        return last is not None and last["epoch"] + 1 == num_epochs and all(map(file_io.exists, map(self.file, names)))

    def go_back(self, epoch: int, steps: int) -> None:
        """Drops the lines after an epoch's checkpoint at a step of the run, since these steps are repeated."""
        self.metrics = [
            line
            for line in self.metrics
            if (line["step"] <= steps if line["kind"] == "step" else line["epoch"] < epoch)
        ]

    def write_metrics(self) -> None:
        """Writes all lines to metrics.jsonl, in one step."""
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in self.metrics))

    def save(self, seed: int, saved: Saved, state: State, keep: int) -> None:
        """Writes a checkpoint, which appears when it is complete, then deletes the oldest if there are too many."""
        (epoch, step, sums), buffer = saved, io.BytesIO()
        arrays: Any = {f"state/{name}": values for name, values in state.items()}
        np.savez(buffer, position=np.array([seed, epoch, step, ORDER_VERSION], np.uint64), sums=sums, **arrays)
        try:
            file_io.make_folder(self.file(CHECKPOINTS))
            # The numbers have a fixed width, so the order of the names is that of the steps.
            file_io.write_file(self.file(f"{CHECKPOINTS}/ckpt-{epoch:06}-{step:09}.npz"), buffer.getvalue())
            # A process that was killed while it saved may have left a file under a temporary name.
            for path in [*self._list_checkpoints()[:-keep], *self._list_checkpoints(".tmp")]:
                file_io.remove(path)
        except OSError as error:
            raise DataError(f"A checkpoint cannot be written: {first_line(error)}.") from error

    def restore(self, seed: int, set_state: Callable[[State], None]) -> Saved | None:
        """Restores the last checkpoint that can be read; returns None if there is none."""
        paths = self._list_checkpoints()
        for path in reversed(paths):
            try:
                return _load_checkpoint(path, seed, set_state)
            except (ConfigError, DataError):
                raise
            except Exception as error:  # a damaged file, or one of another model, raises anything
                logger.warning("%s cannot be read (%s); the one before it is used.", path, first_line(error))
        if paths:
            raise DataError(
                f"None of the {len(paths)} checkpoints in {self.file(CHECKPOINTS)} can be read. Delete the folder of "
                "the run to begin again."
            )
        return None

    def _list_checkpoints(self, suffix: str = ".npz") -> list[str]:
        names = file_io.list_names(self.file(CHECKPOINTS))
        return [self.file(f"{CHECKPOINTS}/{name}") for name in names if name.endswith(suffix)]

    def _create(self, options: Options) -> None:
        try:
            # A process that was killed may have left a file under a temporary name.
            for name in file_io.list_names(self.path):
                if not name.endswith(".tmp"):
                    found = f"{self.path} must be empty or hold a run, and holds {name}."
                    raise ConfigError(f"{found} Choose another folder.")
            file_io.make_folder(self.path)
        except OSError as error:
            raise DataError(f"{self.path} cannot be created: {first_line(error)}.") from error
        self._write(RUN, json.dumps(options, indent=2) + "\n")

    def _read(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        try:
            return parse(file_io.read_bytes(self.file(name), _MAX_BYTES))
        except FileNotFoundError:
            return None
        except ValueError:
            raise FormatError(f"{self.file(name)} is damaged. Delete {self.path} to begin again.") from None

    def _write(self, name: str, text: str) -> None:
        if self._is_chief:
            with file_io.explain_os_errors(f"write {self.file(name)}"):
                file_io.write_file(self.file(name), text.encode())


def _load_checkpoint(path: str, seed: int, set_state: Callable[[State], None]) -> Saved:
    data = io.BytesIO(file_io.read_bytes(path, _MAX_CHECKPOINT_BYTES))
    with zipfile.ZipFile(data) as archive:
        if (damaged := archive.testzip()) is not None:  # compares all checksums
            raise ValueError(f"{damaged} in it is damaged")
    data.seek(0)
    with np.load(data, allow_pickle=False) as arrays:
        found, epoch, step, version = map(int, arrays["position"])
        check_version(version, f"The run of {path}")
        if found != seed:
            raise DataError(f"{path} belongs to a run with another seed. Choose another folder for this one.")
        names = [name for name in arrays.files if name.startswith("state/")]
        set_state({name.removeprefix("state/"): arrays[name] for name in names})
        return epoch, step, arrays["sums"]
