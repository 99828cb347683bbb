"""Messages between a trainer and a worker: a header in JSON, and arrays as they lie in memory.

```
prefix    24 bytes: "tfpS", bytes of the header, bytes of the payload, CRC32C of the header, CRC32C of the payload
header    JSON
payload   arrays, each from a multiple of 64 bytes on

send(connection, {"kind": "batch", "parts": parts}, pieces)
message = receive(connection, Limits())
decode_batch(message.header["parts"], message.payload)
```

A message comes from a network, so every size in it is checked before it is used, and nothing in it is ever run.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch
from tfpipe.engine.buffers import allocate

Bytes = NDArray[np.uint8]

TICK_S = 0.5
"""The seconds after which a connection that waits looks whether it still should."""

_PREFIX = struct.Struct("<4sIQII")
_MAGIC = b"tfpS"
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
_ALIGNMENT = 64
_PIECE_BYTES = 1 << 20  # are received at once, so that their checksum is taken from the processor's cache
_COPIED_BYTES = 1 << 20  # smaller arrays are copied, so that whoever keeps one does not keep the images
_DTYPES = {
    np.dtype(name).name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


class BrokenMessage(Exception):
    """The other end sent something that is not a message, or a damaged one, or closed the connection."""


@dataclass(frozen=True)
class Limits:
    """The largest message that is taken.

    Attributes:
        header_bytes: The most bytes of a header.
        payload_bytes: The most bytes of a payload.
    """

    header_bytes: int = 1 << 26
    payload_bytes: int = 1 << 34


@dataclass(frozen=True)
class Message:
    """A message that came whole.

    Attributes:
        header: The header.
        payload: The payload: uint8 [bytes].
    """

    header: dict[str, Any]
    payload: Bytes


Waiting = Callable[[float], None]
"""A function that is called with the seconds in which nothing came, and raises an error if nobody should wait on."""


def prepare(connection: socket.socket) -> None:
    """Sets the options of a connection: small messages go at once, and it ends soon after its other end is gone."""
    connection.settimeout(TICK_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def send(
    connection: socket.socket, header: Mapping[str, Any], pieces: Sequence[Bytes] = (), waiting: Waiting | None = None
) -> None:
    """Sends a message.

    Args:
        connection: A connection from `prepare`.
        header: The header.
        pieces: The pieces of the payload, each uint8 [bytes].
        waiting: See `Waiting`. None: the other end must take some bytes within `TICK_S`.

    Raises:
        OSError: The connection broke.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    checksum = 0
    for piece in pieces:
        checksum = google_crc32c.extend(checksum, piece)
    size = sum(map(len, pieces))
    start = _PREFIX.pack(_MAGIC, len(text), size, google_crc32c.value(text), checksum) + text
    for data in (memoryview(start), *(piece.data for piece in pieces)):
        _send_all(connection, data, waiting)


def receive(connection: socket.socket, limits: Limits, waiting: Waiting) -> Message:
    """Receives a message.

    Args:
        connection: A connection from `prepare`.
        limits: The largest message that is taken.
        waiting: See `Waiting`.

    Raises:
        BrokenMessage: What came is not a message, or is damaged, or the other end closed the connection.
        OSError: The connection broke.
    """
    prefix = np.empty(_PREFIX.size, np.uint8)
    _receive_into(connection, prefix, waiting)
    magic, header_bytes, payload_bytes, header_crc, payload_crc = _PREFIX.unpack(prefix.data)
    if magic != _MAGIC:
        raise BrokenMessage("something else than tfpipe answers")
    if header_bytes > limits.header_bytes or payload_bytes > limits.payload_bytes:
        raise BrokenMessage(f"a message of {header_bytes:,} and {payload_bytes:,} bytes is too large")
    text = np.empty(header_bytes, np.uint8)
    if _receive_into(connection, text, waiting) != header_crc:
        raise BrokenMessage("a header is damaged")
    try:
        header = json.loads(text.tobytes())
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise BrokenMessage("a header is not a JSON object")
    payload = allocate([payload_bytes], np.uint8)
    if _receive_into(connection, payload, waiting) != payload_crc:
        raise BrokenMessage("a payload is damaged")
    return Message(header, payload)


def encode_batch(batch: Batch) -> tuple[list[dict[str, Any]], list[Bytes]]:
    """Returns what a header says of the parts of a batch, and the pieces of the payload."""
    parts: list[dict[str, Any]] = []
    pieces: list[Bytes] = []
    for name, values in batch.items():
        if isinstance(values, np.ndarray):
            part, arrays = {"dtype": values.dtype.name, "shape": values.shape}, [values]
        elif isinstance(values[0], np.ndarray):
            part, arrays = {"dtype": values[0].dtype.name, "shapes": [array.shape for array in values]}, values
        else:
            rows = None if isinstance(values[0], bytes) else [len(row) for row in values]
            texts = values if rows is None else [text for row in values for text in row]
            part = {"lengths": list(map(len, texts)), "rows": rows}
            arrays = [np.frombuffer(b"".join(texts), np.uint8)]
        parts.append({"name": name, **part})
        raw = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
        pieces += [*raw, np.zeros(-sum(map(len, raw)) % _ALIGNMENT, np.uint8)]
    return parts, [piece for piece in pieces if len(piece)]


def decode_batch(parts: object, payload: Bytes) -> Batch:
    """Makes a batch out of the parts in a header and a payload. Large arrays are views of the payload.

    Raises:
        BrokenMessage: They do not fit each other.
    """
    batch: Batch = {}
    begin = 0
    try:
        for part in parts:  # type: ignore[attr-defined]
            batch[str(part["name"])], size = _decode_part(part, payload[begin:])
            begin += size + -size % _ALIGNMENT
    except (TypeError, LookupError, ValueError, OverflowError) as error:
        raise BrokenMessage(f"a batch has a part that is no part ({error!r:.100})") from None
    if begin != len(payload):
        raise BrokenMessage(f"a batch of {begin:,} bytes came with {len(payload):,}")
    return batch


def _decode_part(part: Mapping[str, Any], memory: Bytes) -> tuple[Any, int]:
    """Makes one part out of the beginning of the memory, and returns it with its bytes."""
    if "lengths" in part:
        lengths, rows = list(map(_check_size, part["lengths"])), part["rows"]
        size = _check_fits(sum(lengths), memory)
        data = memory[:size].tobytes()
        texts = [data[begin:end] for begin, end in pairwise(accumulate(lengths, initial=0))]
        return (texts if rows is None else _split(texts, list(map(_check_size, rows)))), size
    dtype = _DTYPES[part["dtype"]]
    shapes = [tuple(map(_check_size, shape)) for shape in part.get("shapes", [part.get("shape")])]
    sizes = [prod(shape) * dtype.itemsize for shape in shapes]
    size = _check_fits(sum(sizes), memory)
    values = memory[:size].view(dtype)
    if size < _COPIED_BYTES:
        values = values.copy()
    if "shape" in part:
        return values.reshape(shapes[0]), size
    ends = accumulate((each // dtype.itemsize for each in sizes), initial=0)
    return [values[b:e].reshape(shape) for (b, e), shape in zip(pairwise(ends), shapes, strict=True)], size


def _split(texts: list[bytes], rows: list[int]) -> list[list[bytes]]:
    if sum(rows) != len(texts):
        raise ValueError("rows")
    return [texts[begin:end] for begin, end in pairwise(accumulate(rows, initial=0))]


def _check_size(size: object) -> int:
    if type(size) is not int or size < 0:
        raise ValueError(size)
    return size


def _check_fits(size: int, memory: Bytes) -> int:
    if size > len(memory):
        raise ValueError(size)
    return size


def _send_all(connection: socket.socket, data: memoryview, waiting: Waiting | None) -> None:
    since = time.monotonic()
    while data:
        try:
            data = data[connection.send(data) :]
            since = time.monotonic()
        except TimeoutError:
            if waiting is None:
                raise
            waiting(time.monotonic() - since)


def _receive_into(connection: socket.socket, memory: Bytes, waiting: Waiting) -> int:
    """Fills memory with what comes, and returns its checksum."""
    since, begin, checksum = time.monotonic(), 0, 0
    while begin < len(memory):
        try:
            count = connection.recv_into(memory.data[begin : begin + _PIECE_BYTES])
        except TimeoutError:
            waiting(time.monotonic() - since)
            continue
        if not count:
            raise BrokenMessage("the connection was closed")
        checksum = google_crc32c.extend(checksum, memory[begin : begin + count])
        begin, since = begin + count, time.monotonic()
    return checksum
