"""Checkpoints of a run in PyTorch: one file each, which appears when it is complete."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tfpipe.engine.order import ORDER_VERSION, check_version
from tfpipe.errors import DataError, first_line
from tfpipe.storage import file_io
from tfpipe.training.checkpoints import Checkpoints, Position, Saved

_MAX_BYTES = 1 << 36


class TorchCheckpoints(Checkpoints):
    """The files `ckpt-EPOCH-STEP.pt`, which `torch.load` opens."""

    _unreadable = (*Checkpoints._unreadable, pickle.UnpicklingError)

    def __init__(
        self, directory: str, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int, device: torch.device
    ) -> None:
        """Sets the folder and what a checkpoint holds.

        Args:
            directory: A folder for the checkpoints alone, which may be a URL.
            model: The model.
            optimizer: Its optimizer.
            keep: The number of checkpoints to keep.
            device: The device of the model.
        """
        super().__init__(directory)
        self._model, self._optimizer, self._keep, self._device = model, optimizer, keep, device

    def save(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Writes a checkpoint, then deletes the oldest if there are too many.

        Raises:
            DataError: The checkpoint cannot be written.
        """
        position_values = {"epoch": position.epoch, "step": position.step, "seed": position.seed}
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "position": {**position_values, "order": ORDER_VERSION},
            "sums": torch.from_numpy(sums),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        try:
            file_io.make_folder(self.directory)
            name = f"ckpt-{position.epoch:06}-{position.step:09}.pt"
            file_io.write_file(file_io.join(self.directory, name), buffer.getvalue())
            for path in self._list()[: -self._keep]:
                file_io.remove(path)
        except OSError as error:
            raise DataError(f"A checkpoint cannot be written: {first_line(error)}.") from error

    def _list(self) -> Sequence[str]:
        # The numbers have a fixed width, so the order of the names is that of the steps.
        names = [
            name for name in file_io.list_names(self.directory) if name.startswith("ckpt-") and name.endswith(".pt")
        ]
        return [file_io.join(self.directory, name) for name in names]

    def _load(self, path: str) -> Saved:
        data = io.BytesIO(file_io.read_bytes(path, _MAX_BYTES))
        try:
            with zipfile.ZipFile(data) as archive:
                damaged = archive.testzip()  # compares the checksums, which `torch.load` does not
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error
        if damaged is not None:
            raise ValueError(f"{damaged} in it is damaged")
        data.seek(0)
        state = torch.load(data, map_location=self._device, weights_only=True)
        position = state["position"]
        check_version(position["order"], f"The run of {path}")
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        sums = state["sums"].cpu().numpy()
        return Saved(Position(position["seed"], position["epoch"], position["step"]), sums)
