"""The folder of a run, on any file system that TensorFlow can write.

```
run.json            what was asked for, and of which data
metrics.jsonl       a line for every few steps, and one for each epoch
checkpoints/        the last few
logs/               for TensorBoard
model/              the finished model, see `tfpipe.training.export`
model-int8.tflite   where it was asked for
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfpipe.errors import ConfigError, DataError, FormatError, first_line
from tfpipe.system import file_io
from tfpipe.training.checkpoints import Position

RUN, METRICS, CHECKPOINTS, LOGS, MODEL = "run.json", "metrics.jsonl", "checkpoints", "logs", "model"

_VERSION = 1
_MAX_BYTES = 1 << 30

Line = dict[str, Any]


class RunFolder:
    """Where a run writes. Of several processes only the chief does."""

    def __init__(self, path: str, is_chief: bool = True) -> None:
        """Looks at nothing yet.

        Args:
            path: Of the folder, which need not be there.
            is_chief: Whether this process writes.
        """
        self.path, self._is_chief = path.rstrip("/") or "/", is_chief
        self.metrics: list[Line] = []
        """Lines of metrics.jsonl so far."""

    def file(self, name: str) -> str:
        """Path of something in it."""
        return file_io.join(self.path, name)

    def begin(self, asked: Mapping[str, Any]) -> bool:
        """Begins a run, or goes on with one for which the same was asked.

        Args:
            asked: Plain values.

        Returns:
            Whether it goes on.

        Raises:
            ConfigError: The folder holds a run for which something else was asked, or something else than a run.
            DataError: It cannot be read or written.
            FormatError: run.json is damaged.
        """
        try:
            text = file_io.read_bytes(self.file(RUN), _MAX_BYTES)
        except FileNotFoundError:
            if self._is_chief:
                self._make(asked)
            return False
        self._compare(text, asked)
        self.metrics = self._read_metrics()
        return True

    def last_epoch(self) -> Line | None:
        """The line of the last epoch that was finished."""
        return next((line for line in reversed(self.metrics) if line["kind"] == "epoch"), None)

    def has(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        return bool(tf.io.gfile.exists(self.file(name)))

    def go_back(self, position: Position, steps_per_epoch: int) -> None:
        """Drops the lines of what comes after a checkpoint: it will be done once more."""
        step = position.epoch * steps_per_epoch + position.step
        kept = {"step": lambda line: line["step"] <= step, "epoch": lambda line: line["epoch"] < position.epoch}
        self.metrics = [line for line in self.metrics if kept[line["kind"]](line)]

    def write_metrics(self) -> None:
        """Writes all lines, in one step."""
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in self.metrics))

    def _make(self, asked: Mapping[str, Any]) -> None:
        try:
            if tf.io.gfile.exists(self.path):
                others = [name for name in tf.io.gfile.listdir(self.path) if not name.endswith(".tmp")]
                if others:
                    raise ConfigError(
                        f"{self.path} holds something else than a run, such as {others[0].rstrip('/')}. Choose another "
                        "folder."
                    )
            tf.io.gfile.makedirs(self.path)
        except tf.errors.OpError as error:
            raise DataError(f"{self.path} cannot be made: {first_line(error)}.") from error
        self._write(RUN, json.dumps({"version": _VERSION, **asked}, indent=2) + "\n")

    def _compare(self, text: bytes, asked: Mapping[str, Any]) -> None:
        try:
            found = json.loads(text)
            version = found.pop("version")
        except (ValueError, AttributeError, KeyError, TypeError):
            raise FormatError(f"{self.file(RUN)} is damaged. Delete {self.path} to begin anew.") from None
        if version != _VERSION:
            raise FormatError(f"{self.file(RUN)} has version {version}, and this tfpipe reads {_VERSION}.")
        wanted = json.loads(json.dumps(asked))  # as a file has it: lists for tuples
        for name in wanted:
            if found.get(name) != wanted[name]:
                why = " The learning rate falls to 0 with the last epoch." if name == "epochs" else ""
                raise ConfigError(
                    f"The run in {self.path} was begun with {name} {found.get(name)}, got {wanted[name]}.{why} Ask for "
                    "the same to go on, or choose another folder."
                )

    def _read_metrics(self) -> list[Line]:
        try:
            text = file_io.read_bytes(self.file(METRICS), _MAX_BYTES).decode()
        except FileNotFoundError:
            return []
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            raise FormatError(f"{self.file(METRICS)} is damaged. Delete {self.path} to begin anew.") from None

    def _write(self, name: str, text: str) -> None:
        if not self._is_chief:
            return
        path = self.file(name)
        try:
            if file_io.is_url(path):  # an object store shows a file when it is whole
                with tf.io.gfile.GFile(path, "w") as file:
                    file.write(text)
            else:
                file_io.write_file(path, text.encode())
        except (OSError, tf.errors.OpError) as error:
            raise DataError(f"{path} cannot be written: {first_line(error)}.") from error
