"""A column of bytes that is put together from parts, and lies in a temporary file once it is large.

The file is mapped into memory, where the system lets its pages go if others need the room.
"""

import contextlib
import mmap
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.storage.file_io import explain_os_errors

_MEMORY_BYTES = 64 << 20
_IF_FULL = "Free some, or set TMPDIR to a folder with more room, and run the same command again."


def explain_temporary_errors() -> contextlib.AbstractContextManager[None]:
    """Turns an error of writing a temporary file in the block into one sentence."""
    return explain_os_errors(f"write to the temporary folder {tempfile.gettempdir()}", _IF_FULL)


class LargeColumn:
    """A column of Arrow's type `large_binary`, without nulls, to which parts are added."""

    def __init__(self) -> None:
        # It goes when the last array does that is mapped to it, or this process ends.
        self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115
        self._offsets = [np.zeros(1, np.int64)]
        self._num_bytes = 0

    def append(self, part: Any) -> None:
        """Adds an array of the same type."""
        _, offsets_buffer, values = part.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int64, len(part) + 1, 8 * part.offset)
        begin, end = int(offsets[0]), int(offsets[-1])
        with explain_temporary_errors():
            if end > begin:
                self._file.write(memoryview(values)[begin:end])
        self._offsets.append(offsets[1:] - begin + self._num_bytes)
        self._num_bytes += end - begin

    def finish(self) -> tuple[NDArray[np.int64], Any]:
        """Returns the buffers of an array of all parts, its offsets and its values. Nothing can be added afterwards."""
        offsets = np.concatenate(self._offsets)
        self._offsets = []
        with explain_temporary_errors(), self._file as file:
            if self._num_bytes > _MEMORY_BYTES:
                file.flush()
                values: Any = mmap.mmap(file.fileno(), self._num_bytes, access=mmap.ACCESS_READ)
            else:
                file.seek(0)
                values = file.read()
        return offsets, values
