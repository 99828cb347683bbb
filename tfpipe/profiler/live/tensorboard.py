"""Writes curves for TensorBoard, which need not be installed.

```
events.out.tfevents.*   TFRecords, each an Event: the time, the step, and a Summary with the values of some curves
```

The messages are those that `tf.summary.scalar` writes; that function asks for TensorBoard to be installed. They are
written without TensorFlow, since the trainers for PyTorch and JAX do not load it.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tfpipe.errors import DataError, first_line
from tfpipe.format.protobuf_wire import FIXED32, FIXED64, LENGTH, VARINT, varint
from tfpipe.format.tfrecord import record_footer, record_header
from tfpipe.storage import file_io

_VERSION = b"brain.Event:2"  # of the file, in its first event
_SCALARS, _DATA_CLASS_SCALAR, _FLOAT = b"scalars", 1, 1


class Scalars:
    """The curves of one run in TensorBoard."""

    def __init__(self, log_dir: str | Path) -> None:
        """Sets the folder, in which a file appears with the first point.

        Args:
            log_dir: A folder for this run alone, which may be a URL.
        """
        self._log_dir = str(log_dir)
        self._path, self._events = "", b""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the values of some curves, by name, at one step.

        Raises:
            DataError: The file cannot be written.
        """
        event = _frame(_encode_event(time.time(), step, values))
        try:
            if not self._path:
                file_io.make_folder(self._log_dir)
                name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
                self._path = file_io.join(self._log_dir, name)
                event = _frame(_encode_header(time.time())) + event
            if file_io.is_url(self._path):  # an object store cannot append
                self._events += event
                file_io.write_file(self._path, self._events)
                return
            with open(self._path, "ab") as file:
                file.write(event)
        except OSError as error:
            raise DataError(f"The curves in {self._log_dir} cannot be written: {first_line(error)}.") from error


def _frame(payload: bytes) -> bytes:
    return record_header(len(payload)) + payload + record_footer(payload)


def _encode_header(now: float) -> bytes:
    return _field(1, FIXED64, struct.pack("<d", now)) + _message(3, _VERSION)


def _encode_event(now: float, step: int, values: Mapping[str, float]) -> bytes:
    summary = b"".join(_message(1, _encode_value(name, value)) for name, value in values.items())
    return _field(1, FIXED64, struct.pack("<d", now)) + _field(2, VARINT, varint(step)) + _message(5, summary)


def _encode_value(name: str, value: float) -> bytes:
    """Encodes a point: the name of the curve, a scalar tensor of float32, and the plugin that draws it."""
    tensor = _field(1, VARINT, varint(_FLOAT)) + _message(2, b"") + _field(5, FIXED32, struct.pack("<f", value))
    metadata = _message(1, _message(1, _SCALARS)) + _field(4, VARINT, varint(_DATA_CLASS_SCALAR))
    return _message(1, name.encode()) + _message(8, tensor) + _message(9, metadata)


def _message(number: int, data: bytes) -> bytes:
    return _field(number, LENGTH, varint(len(data)) + data)


def _field(number: int, wire: int, data: bytes) -> bytes:
    return varint(number << 3 | wire) + data
