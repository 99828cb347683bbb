"""The folder of a run, on a local disk or in an object store.

run.json            the options and the dataset of the run
metrics.jsonl       a line for every few steps, and one for each epoch
checkpoints/        the last two: ckpt-000002-000000004.npz after 4 steps of epoch 2, for `numpy.load`, holds the
                    position (epoch, step, lines of metrics, version of the order), sums, weights and optimizer
logs/               curves for TensorBoard
model/              the finished model; model-int8.tflite  the same for TFLite, where it was asked for
"""

import io
import json
import logging
from collections.abc import Callable
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

State = list[NDArray[Any]]
Saved = tuple[int, int, NDArray[np.float64]]  # the epoch, its steps that are done, and the sums so far


class RunDir:
    """The folder of a run and the lines of its metrics. If several processes train together, only the chief writes."""

    def __init__(self, path: str, is_chief: bool = True) -> None:
        """Sets the path, a local one or a URL. The folder need not be there."""
        self.path, self._is_chief = path.rstrip("/") or "/", is_chief
        self.metrics: list[dict[str, Any]] = []

    def file(self, name: str) -> str:
        """Returns the path of a file or folder in the run's folder."""
        return file_io.join(self.path, name)

    def begin(self, options: dict[str, Any], lock: dict[str, Any] | None = None) -> None:
        """Begins a run, or resumes one that has the same options; the lock decides the records of its steps."""
        options = {"version": _VERSION, **options}
        if (saved := self.read_options()) is None:
            if self._is_chief:
                others = [name for name in file_io.list_names(self.path) if not name.endswith(".tmp")]
                if others:
                    must = f"{self.path} must be empty or hold a run, and holds {others[0]}"
                    raise ConfigError(f"{must}. Choose another folder.")
                self._write(RUN, json.dumps({**options, RUN_KEY: lock}, indent=2) + "\n")
            return
        for name, value in json.loads(json.dumps(options)).items():  # JSON has lists in place of tuples
            if saved.get(name) != value:
                begun = f"The run in {self.path} was begun with {name} {saved.get(name)}, got {value}."
                page = "symptoms#the-run-does-not-go-on"
                raise ConfigError(f"{begun} Ask for the same to go on, or choose another folder.", page=page)
        self.metrics = self._read(METRICS, lambda data: [json.loads(line) for line in data.splitlines()]) or []

    def read_options(self) -> dict[str, Any] | None:
        """Reads run.json; None if there is no run."""
        return self._read(RUN, lambda data: dict(json.loads(data)))  # type: ignore[no-any-return]

    def change_data(self, dataset: str, lock: dict[str, Any] | None, step: int) -> None:
        """Writes down that the run reads other records from a step on, because some were deleted."""
        options = self.read_options() or {}
        earlier = [*options.get(EARLIER_KEY, []), {"until_step": step, RUN_KEY: options[RUN_KEY]}]
        options |= {"dataset": dataset, RUN_KEY: lock, EARLIER_KEY: earlier}
        self._write(RUN, json.dumps(options, indent=2) + "\n")

    def save(self, saved: Saved, state: State) -> None:
        """Writes the metrics and then a checkpoint, each in one step, and deletes all but the last two checkpoints."""
        self._write(METRICS, "".join(json.dumps(line) + "\n" for line in self.metrics))
        if not self._is_chief:
            return
        (epoch, step, sums), buffer = saved, io.BytesIO()
        np.savez(buffer, *state, position=[epoch, step, len(self.metrics), ORDER_VERSION], sums=sums)
        # The numbers have a fixed width, so the order of the names is that of the steps.
        path = self.file(f"{CHECKPOINTS}/ckpt-{epoch:06}-{step:09}.npz")
        with file_io.explain_os_errors(f"write {path}"):
            file_io.write_file(path, buffer.getvalue(), makes_folders=True)
            # A process that was killed while it saved may have left a file under a temporary name.
            for old in [*self._list_checkpoints()[:-2], *self._list_checkpoints(".tmp")]:
                file_io.remove(old)

    def restore(self, set_state: Callable[[State], None]) -> Saved | None:
        """Restores the last checkpoint that can be read, if there is one, and drops the metrics after it."""
        paths = self._list_checkpoints()
        for path in reversed(paths):
            try:
                data = io.BytesIO(file_io.read_bytes(path, _MAX_CHECKPOINT_BYTES))
                with np.load(data, allow_pickle=False) as archive:
                    arrays = dict(archive)  # reading an array to its end compares its checksum
                epoch, step, lines, version = map(int, arrays.pop("position"))
                check_version(version, f"The run of {path}")
                sums = arrays.pop("sums")
                set_state([arrays[f"arr_{k}"] for k in range(len(arrays))])
                del self.metrics[lines:]
                return epoch, step, sums
            except ConfigError:
                raise
            except Exception as error:  # a damaged file, or one of another model, raises anything
                logger.warning("%s cannot be read (%s); the one before it is used.", path, first_line(error))
        if paths:
            where = f"None of the {len(paths)} checkpoints in {self.file(CHECKPOINTS)} can be read"
            raise DataError(f"{where}. Delete the folder of the run to begin again.")
        self.metrics.clear()
        return None

    def _list_checkpoints(self, suffix: str = ".npz") -> list[str]:
        names = file_io.list_names(self.file(CHECKPOINTS))
        return [self.file(f"{CHECKPOINTS}/{name}") for name in names if name.endswith(suffix)]

    def _read(self, name: str, parse: Callable[[bytes], Any]) -> Any:
        try:
            return parse(file_io.read_bytes(self.file(name), _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise FormatError(f"{self.file(name)} is damaged. Delete {self.path} to begin again.") from None

    def _write(self, name: str, text: str) -> None:
        if self._is_chief:
            with file_io.explain_os_errors(f"write {self.file(name)}"):
                file_io.write_file(self.file(name), text.encode(), makes_folders=True)
