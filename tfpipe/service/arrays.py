"""A batch as a stream of Arrow record batches: the first has a text that says what the batch holds; others, its bytes.

What comes is from a network: every size in it is checked before memory is taken, and nothing in it is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch
from tfpipe.engine.buffers import allocate
from tfpipe.service.plans import MOST_BYTES

SCHEMA = pa.schema([("data", pa.uint8())])
_PIECE_BYTES = 1 << 19  # gRPC copies each message into one piece of memory, which then still lies in the core's cache
_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
_NOTHING = np.zeros(0, np.uint8)


class BrokenAnswer(Exception):
    """The other end sent something that is no batch."""


def send(facts: Mapping[str, Any], batch: Batch | None = None) -> Iterator[Any]:
    """Yields the messages of an answer: some facts, and a batch."""
    parts, data = {}, []
    for name, values in (batch or {}).items():
        arrays: list[NDArray[np.uint8]] = []
        parts[name] = _describe(values, arrays)
        data.append(arrays[0] if len(arrays) == 1 else np.concatenate([_NOTHING, *arrays]))
    yield pa.RecordBatch.from_arrays([[]], schema=SCHEMA), json.dumps({**facts, "parts": parts}).encode()
    for part in data:
        for begin in range(0, len(part), _PIECE_BYTES):
            piece = part[begin : begin + _PIECE_BYTES]
            array = pa.Array.from_buffers(pa.uint8(), len(piece), [None, pa.py_buffer(piece)])  # copies nothing
            yield pa.RecordBatch.from_arrays([array], schema=SCHEMA)


def _describe(values: Any, arrays: list[NDArray[np.uint8]]) -> Any:
    """Returns what a part of a batch is: an array, a text by its length, or a list of parts; and collects its bytes."""
    if isinstance(values, list):
        return [_describe(each, arrays) for each in values]
    is_text = isinstance(values, bytes)
    arrays.append(np.frombuffer(values, np.uint8) if is_text else np.ascontiguousarray(values).reshape(-1).view("u1"))
    return len(values) if is_text else {"dtype": values.dtype.name, "shape": values.shape}


def receive(stream: Iterable[Any]) -> tuple[dict[str, Any], Batch, int]:
    """Receives facts, a batch, and the number of its bytes."""
    chunks, total, rest = iter(stream), 0, _NOTHING

    def take(memory: NDArray[np.uint8]) -> None:
        """Fills memory with the bytes that come next."""
        nonlocal rest
        while len(memory):
            if not len(rest):
                rest = np.frombuffer(next(chunks).data.column(0).buffers()[1], np.uint8)
            count = min(len(memory), len(rest))
            memory[:count] = rest[:count]
            memory, rest = memory[count:], rest[count:]

    def build(part: Any) -> Any:
        """Builds a part of a batch."""
        nonlocal total
        if isinstance(part, list):
            return [build(each) for each in part]
        is_text = type(part) is int
        dtype, shape = ("uint8", [part]) if is_text else (_DTYPES[_DTYPES.index(part["dtype"])], part["shape"])
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(shape)
        total += prod(shape) * np.dtype(dtype).itemsize
        if total > MOST_BYTES:
            raise ValueError(f"{total:,} bytes")
        array = allocate(shape, dtype)
        take(array.reshape(-1).view(np.uint8))
        return array.tobytes() if is_text else array

    try:
        facts = json.loads(next(chunks).app_metadata.to_pybytes())
        batch = {str(name): build(part) for name, part in facts.pop("parts").items()}
        if len(rest) or next(chunks, None) is not None:
            raise ValueError("more bytes")
    except (TypeError, AttributeError, LookupError, ValueError, OverflowError, RecursionError, StopIteration) as error:
        raise BrokenAnswer(f"it sent something that is no batch ({error!r:.100})") from None
    return facts, batch, total
