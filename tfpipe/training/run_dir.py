"""The folder of a run, on a local disk or in an object store.

```
run.json            the options and the dataset of the run
metrics.jsonl       a line for every few steps, and one for each epoch
checkpoints/        the last few checkpoints
logs/               curves for TensorBoard
model/              the finished model, see `export.py`
model-int8.tflite   the same for TFLite, where it was asked for
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfpipe.errors import ConfigError, DataError, FormatError, first_line
from tfpipe.lookups.data_lock import EARLIER_KEY, RUN_KEY
from tfpipe.storage import file_io
from tfpipe.training.checkpoints import Position

RUN, METRICS, CHECKPOINTS, LOGS, MODEL = "run.json", "metrics.jsonl", "checkpoints", "logs", "model"

_VERSION = 1
_MAX_BYTES = 1 << 30

Line = dict[str, Any]


def get_tflite_name(kind: str) -> str:
    """Returns the name of the TFLite file in a run's folder."""
    return f"{MODEL}-{kind}.tflite"


class RunDir:
    """The folder of a run. If several processes train together, only the chief writes.

    Attributes:
        path: The path of the folder.
        metrics: The lines of metrics.jsonl so far.
    """

    def __init__(self, path: str, is_chief: bool = True) -> None:
        """Sets the path of the folder; `begin` looks into it.

        Args:
            path: A local path or a URL. The folder need not be there.
            is_chief: Whether this process writes.
        """
        self.path, self._is_chief = path.rstrip("/") or "/", is_chief
        self.metrics: list[Line] = []

    def file(self, name: str) -> str:
        """Returns the path of a file or folder in it."""
        return file_io.join(self.path, name)

    def begin(self, options: Mapping[str, Any], lock: Mapping[str, Any] | None = None) -> bool:
        """Begins a run, or goes on with a run that has the same options.

        Args:
            options: The options that decide the numbers of the run, as plain values.
            lock: The data and options that decide the records of its steps, as `DataLock.to_json` has it, for
                `tfpipe steps`; None if they come in no exact order.

        Returns:
            True if the run goes on, False if it begins.

        Raises:
            ConfigError: The folder holds a run with other options, or something that is not a run.
            DataError: The folder cannot be read or written.
            FormatError: run.json is damaged.
        """
        try:
            saved_options = self._read_options()
        except FileNotFoundError:
            if self._is_chief:
                self._create({**options, RUN_KEY: lock})
            return False
        self._check_same(saved_options, options)
        self.metrics = self._read_metrics()
        return True

    def read_option(self, name: str) -> Any:
        """Returns an option of the run in the folder; None if there is no run.

        Raises:
            DataError: The folder cannot be read.
            FormatError: run.json is damaged.
        """
        try:
            return self._read_options().get(name)
        except FileNotFoundError:
            return None

    def change_data(self, dataset: str, lock: Mapping[str, Any] | None, step: int) -> None:
        """Writes down that the run reads other records from a step on, because some were deleted.

        Args:
            dataset: The text that tells its records from others.
            lock: The lock of the steps to come, as for `begin`.
            step: The first of these steps.
        """
        options = self._read_options()
        earlier = [*options.get(EARLIER_KEY, []), {"until_step": step, RUN_KEY: options[RUN_KEY]}]
        self._write(
            RUN, json.dumps({**options, "dataset": dataset, RUN_KEY: lock, EARLIER_KEY: earlier}, indent=2) + "\n"
        )

    def _read_options(self) -> dict[str, Any]:
        """Reads run.json. Raises FileNotFoundError if there is no run."""
        try:
            options = json.loads(file_io.read_bytes(self.file(RUN), _MAX_BYTES))
        except ValueError:
            options = None
        if not isinstance(options, dict) or "version" not in options:
            raise FormatError(f"{self.file(RUN)} is damaged. Delete {self.path} to begin again.")
        return options

    def get_last_epoch(self) -> Line | None:
        """Returns the line of the last finished epoch; None before the first."""
        return next((line for line in reversed(self.metrics) if line["kind"] == "epoch"), None)

    def has(self, name: str) -> bool:
        """Returns whether the folder has a file or folder of this name."""
        return file_io.exists(self.file(name))

    def go_back(self, position: Position, steps_per_epoch: int) -> None:
        """Drops the lines after a checkpoint, since the run repeats these steps."""
        done_steps = position.count_steps(steps_per_epoch)
        self.metrics = [
            line
            for line in self.metrics
            if (line["step"] <= done_steps if line["kind"] == "step" else line["epoch"] < position.epoch)
        ]

    def write_metrics(self) -> None:
        """Writes all lines to metrics.jsonl, in one step."""
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in self.metrics))

    def _create(self, options: Mapping[str, Any]) -> None:
        try:
            # A process that was killed may have left a file under a temporary name.
            names = [name for name in file_io.list_names(self.path) if not name.endswith(".tmp")]
            if names:
                raise ConfigError(
                    f"{self.path} must be empty or hold a run, and holds {names[0]}. Choose another folder."
                )
            file_io.make_folder(self.path)
        except OSError as error:
            raise DataError(f"{self.path} cannot be created: {first_line(error)}.") from error
        self._write(RUN, json.dumps({"version": _VERSION, **options}, indent=2) + "\n")

    def _check_same(self, saved_options: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Checks that run.json has the same options."""
        if (version := saved_options["version"]) != _VERSION:
            raise FormatError(f"{self.file(RUN)} has version {version}, and this tfpipe reads {_VERSION}.")
        new_options = json.loads(json.dumps(options))  # JSON has lists in place of tuples
        for name, value in new_options.items():
            if saved_options.get(name) != value:
                why = " The learning rate falls to 0 with the last epoch." if name == "epochs" else ""
                raise ConfigError(
                    f"The run in {self.path} was begun with {name} {saved_options.get(name)}, got {value}.{why} Ask "
                    "for the same to go on, or choose another folder.",
                    page="symptoms#the-run-does-not-go-on",
                )

    def _read_metrics(self) -> list[Line]:
        try:
            text = file_io.read_bytes(self.file(METRICS), _MAX_BYTES).decode()
        except FileNotFoundError:
            return []
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            raise FormatError(f"{self.file(METRICS)} is damaged. Delete {self.path} to begin again.") from None

    def _write(self, name: str, text: str) -> None:
        if not self._is_chief:
            return
        path = self.file(name)
        try:
            file_io.write_file(path, text.encode())
        except OSError as error:
            raise DataError(f"{path} cannot be written: {first_line(error)}.") from error
