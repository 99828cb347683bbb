"""Checkpoints of a run in JAX, by Orbax: folders that appear when they are complete."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from tfpipe.engine.order import ORDER_VERSION, check_version
from tfpipe.errors import DataError, first_line
from tfpipe.storage import file_io
from tfpipe.system import host_limits
from tfpipe.training.checkpoints import Checkpoints, Position, Saved

_LOOP_IS_CLOSED = "Event loop is closed"  # asyncio's words


class JaxCheckpoints(Checkpoints):
    """The checkpoints of Orbax' `CheckpointManager`, on a disk or in an object store. Every process writes its part."""

    saved_by_all = True
    # What Orbax and tensorstore raise for a damaged file has no common base.
    _unreadable = (Exception,)

    def __init__(
        self,
        directory: str,
        get_state: Callable[[], Any],
        set_state: Callable[[Any], None],
        keep: int,
        steps_per_epoch: int,
    ) -> None:
        """Finds the checkpoints in a folder.

        Args:
            directory: A folder for the checkpoints alone.
            get_state: A function that returns the state: a tree of arrays.
            set_state: A function that takes a state of the same shapes and shardings.
            keep: The number of checkpoints to keep.
            steps_per_epoch: The number of steps in an epoch.
        """
        super().__init__(directory if file_io.is_url(directory) else os.path.abspath(directory))
        self._get_state, self._set_state = get_state, set_state
        self._steps_per_epoch = steps_per_epoch
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def save(self, position: Position, sums: NDArray[np.float64]) -> None:
        """Writes a checkpoint, then deletes the oldest if there are too many.

        Raises:
            DataError: The checkpoint cannot be written.
        """
        # JSON keeps every bit of a float64 and of a seed of 64 bits, which JAX' arrays do not.
        notes = {"seed": position.seed, "epoch": position.epoch, "step": position.step, "order": ORDER_VERSION}
        notes["sums"] = sums.tolist()
        state = self._get_state()
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(state), run=ocp.args.JsonSave(notes))
        # The end of an epoch, before its evaluation, has a number of its own.
        number = position.count_steps(self._steps_per_epoch + 1)
        try:
            self._check_room(state)
            with _quiet_writers():
                self._manager.save(number, args=arguments, force=True)
        except (OSError, ValueError) as error:
            raise DataError(f"A checkpoint cannot be written: {_explain(error)}.") from error

    def _check_room(self, state: Any) -> None:
        """Refuses a disk without room for the state. Orbax would say so by a traceback of each of its writes.

        Raises:
            OSError: There is not enough room.
        """
        if not file_io.is_url(self.directory):
            needed = sum(array.nbytes for array in jax.tree.leaves(state))
            if host_limits.free_disk_bytes(self.directory) < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _list(self) -> Sequence[str]:
        return [file_io.join(self.directory, str(number)) for number in sorted(self._manager.all_steps())]

    def _load(self, path: str) -> Saved:
        number = int(path.rpartition("/")[2])
        notes = self._manager.restore(number, args=ocp.args.Composite(run=ocp.args.JsonRestore()))["run"]
        check_version(notes["order"], f"The run of {path}")
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(self._get_state()))
        self._set_state(self._manager.restore(number, args=arguments)["state"])
        for damaged in [later for later in self._manager.all_steps() if later > number]:
            self._manager.delete(damaged)  # Orbax saves no step below the last one
        return Saved(Position(notes["seed"], notes["epoch"], notes["step"]), np.array(notes["sums"]))


@contextmanager
def _quiet_writers() -> Iterator[None]:
    """Hides that writers of tensorstore find no event loop, which each would tell by a traceback.

    After an error Orbax closes its loop, and the other writers end later. So the hook stays after an error.
    """
    before = sys.unraisablehook

    def report(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == _LOOP_IS_CLOSED):
            before(unraisable)

    sys.unraisablehook = report
    yield
    sys.unraisablehook = before


def _explain(error: OSError | ValueError) -> str:
    """Returns the error of the operating system, which tensorstore writes at the end of a long chain of paths."""
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return first_line(error) if code is None else f"[Errno {code[1]}] {os.strerror(int(code[1]))}"
