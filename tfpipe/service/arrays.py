"""A batch as a stream of Arrow record batches: each holds bytes of one part, and the first of a part says what it is.

A worker sends an empty one with no text each second while it works, and at the end one that tells its time or an error.
What comes is from a network: every size in it is checked before it is used, and nothing in it is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch
from tfpipe.engine.buffers import allocate

SCHEMA = pa.schema([("data", pa.uint8())])
MOST_BYTES = 2_000_000_000
"""The most bytes of a batch of a service."""

_PIECE_BYTES = 1 << 22
_DTYPES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()


class BrokenAnswer(Exception):
    """The other end sent something that is no batch."""


def make_message(text: object = None, data: NDArray[Any] | None = None) -> tuple[pa.RecordBatch, bytes]:
    """Returns a message: bytes, which are not copied, and a text; with neither it says that the worker still works."""
    raw = np.zeros(0, np.uint8) if data is None else data.reshape(-1).view(np.uint8)
    array = pa.Array.from_buffers(pa.uint8(), len(raw), [None, pa.py_buffer(raw)])
    return pa.RecordBatch.from_arrays([array], schema=SCHEMA), b"" if text is None else json.dumps(text).encode()


def send_batch(batch: Batch) -> Iterator[tuple[pa.RecordBatch, bytes]]:
    """Yields the messages of all parts of a batch."""
    for name, values in batch.items():
        if isinstance(values, np.ndarray):
            part, data = {"dtype": values.dtype.name, "shapes": values.shape, "is_list": False}, values
        elif isinstance(values[0], np.ndarray):
            shapes = [array.shape for array in values]
            part = {"dtype": values[0].dtype.name, "shapes": shapes, "is_list": True}
            data = np.concatenate([array.reshape(-1) for array in values])
        else:
            rows = None if isinstance(values[0], bytes) else [len(row) for row in values]
            texts = values if rows is None else [text for row in values for text in row]
            part, data = {"lengths": list(map(len, texts)), "rows": rows}, np.frombuffer(b"".join(texts), np.uint8)
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        yield make_message({"name": name, "bytes": len(raw), **part}, raw[:_PIECE_BYTES])
        for begin in range(_PIECE_BYTES, len(raw), _PIECE_BYTES):
            yield make_message(None, raw[begin : begin + _PIECE_BYTES])


def receive(stream: Iterable[Any], alive: Callable[[], None]) -> tuple[Batch, dict[str, Any], int]:
    """Receives a batch, the text at its end, and the number of its bytes."""
    batch: Batch = {}
    total, part, memory, begin = 0, None, np.zeros(0, np.uint8), 0
    try:
        for chunk in stream:
            alive()
            text = None if chunk.app_metadata is None else json.loads(chunk.app_metadata.to_pybytes())
            piece = np.frombuffer(chunk.data.column(0).buffers()[1] or b"", np.uint8)
            if text is not None and not isinstance(text, dict):
                raise TypeError(text)
            if text is not None and "name" not in text:
                if begin != len(memory):
                    raise BrokenAnswer("a batch ended within a part")
                return batch, text, total
            if text is not None:
                total += _check_size(text["bytes"])
                if total > MOST_BYTES or begin != len(memory):
                    raise BrokenAnswer(f"a batch of {total:,} bytes came in parts that do not fit")
                part, memory, begin = text, allocate([text["bytes"]], np.uint8), 0
            memory[begin : begin + len(piece)] = piece
            begin += len(piece)
            if part is not None and begin == len(memory):
                batch[str(part["name"])], part = _decode(part, memory), None
    except (TypeError, LookupError, ValueError, OverflowError, RecursionError) as error:
        raise BrokenAnswer(f"a batch has a part that is no part ({error!r:.100})") from None
    raise BrokenAnswer("an answer ended early")


def _decode(part: dict[str, Any], memory: NDArray[np.uint8]) -> Any:
    """Makes a part out of its bytes."""
    if "lengths" in part:
        data = memory.tobytes()
        texts = [data[begin:end] for begin, end in _divide(part["lengths"], len(data))]
        return texts if part["rows"] is None else [texts[a:b] for a, b in _divide(part["rows"], len(texts))]
    values = memory.view(_DTYPES[_DTYPES.index(part["dtype"])])
    shapes = [tuple(map(_check_size, shape)) for shape in (part["shapes"] if part["is_list"] else [part["shapes"]])]
    ends = _divide(map(prod, shapes), len(values))
    arrays = [values[begin:end].reshape(shape) for (begin, end), shape in zip(ends, shapes, strict=True)]
    return arrays if part["is_list"] else arrays[0]


def _check_size(size: object) -> int:
    if type(size) is not int or size < 0:
        raise ValueError(size)
    return size


def _divide(sizes: Iterable[object], total: int) -> list[tuple[int, int]]:
    """Returns where each of some neighbors begins and ends, which must fill the whole."""
    ends = list(accumulate(map(_check_size, sizes), initial=0))
    if ends[-1] != total:
        raise ValueError(f"{ends[-1]} of {total}")
    return list(pairwise(ends))
