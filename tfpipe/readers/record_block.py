"""Many records in one block of memory: read, checked and decoded together.

```
block = read_block(descriptors, begins, sizes)
block.list_payloads()       # a bytes object for each record, None for a damaged one
block.decode()              # the features of each, None for what is damaged or not an Example
block.cut_columns(kinds)    # features with one value in each record, without a copy of their bytes
```

Records that lie near each other are read together. The native library does the rest in two calls that do not
hold Python's lock; without it Python does the same, with equal results. Whoever gets a None reads that record on its
own, which tells what is wrong.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.schema import DType
from tfpipe.format.tfrecord import FOOTER_BYTES, HEADER_BYTES, check_frames
from tfpipe.native import library
from tfpipe.native import records as native_records

_MAX_GAP_BYTES = 1 << 14  # to copy them out of the page cache takes as long as some reads, a disk less than one read
_MAX_RECORD_BYTES, _MAX_RECORD_BYTES_IN_PYTHON = 1 << 21, 1 << 15
_IntArray = NDArray[np.int64]

Column: TypeAlias = list[NDArray[np.uint8]] | NDArray[np.int64] | NDArray[np.float32]
"""One value of each record: its bytes as arrays, or numbers in one array."""


@dataclass(frozen=True)
class RecordBlock:
    """The bytes of some records.

    Attributes:
        data: The bytes, with framing and with what lay between the records.
        begins: The byte of each payload in `data`, int64 [records].
        ends: The byte behind each payload, int64 [records].
        whole: Whether length and checksums of each record hold, bool [records].
    """

    data: memoryview
    begins: _IntArray
    ends: _IntArray
    whole: NDArray[np.bool_]

    def choose(self, rows: _IntArray) -> "RecordBlock":
        """Returns a block of some of the records, in any order, which shares their memory."""
        return RecordBlock(self.data, self.begins[rows], self.ends[rows], self.whole[rows])

    def list_payloads(self) -> list[bytes | None]:
        """Lists the bytes of each record, with None for a damaged one."""
        data, whole = self.data, self.whole.tolist()
        places = zip(self.begins.tolist(), self.ends.tolist(), whole, strict=True)
        return [data[begin:end].tobytes() if good else None for begin, end, good in places]

    def decode(self) -> list[dict[str, Feature] | None]:
        """Decodes each record as `decode_example` does, with None for one that is damaged or not an Example.

        An array of one value may share its memory with those of other records in the block.
        """
        examples = _decode_natively(self) if library.is_available() and self.whole.all() else None
        if examples is None:
            return [None if payload is None else _try_to_decode(payload) for payload in self.list_payloads()]
        return examples

    def cut_columns(self, kinds: Mapping[str, DType]) -> dict[str, Column] | None:
        """Finds features that have one value in each record. Bytes share the memory of the block.

        Args:
            kinds: The kind of each feature.

        Returns:
            None without the native library, or if a record is damaged, unusual, or has not one value of this kind.
        """
        if not library.is_available() or not self.whole.all():
            return None
        tables = native_records.parse_examples(self.data, np.stack((self.begins, self.ends - self.begins), axis=1))
        counts = np.frombuffer(tables.num_features, np.int64)
        if (counts < 0).any():
            return None
        rows, records = np.frombuffer(tables.features, np.int64).reshape(-1, 4), np.arange(len(counts))
        record_of, keys = np.repeat(records, counts), _cut(self.data, tables.keys)
        columns: dict[str, Column] = {}
        for name, kind in kinds.items():
            number = {"bytes": native_records.TEXTS, "float": native_records.FLOATS, "int64": native_records.INTS}[kind]
            key = keys.index(name.encode()) if name.encode() in keys else -1
            chosen = np.flatnonzero(rows[:, 0] == key)
            # A key that comes twice in a record counts once, for which there is no room here.
            is_usual = np.array_equal(record_of[chosen], records) and (rows[chosen, 1] == number).all()
            if not (is_usual and (rows[chosen, 3] == 1).all()):
                return None
            columns[name] = self._cut_column(tables, kind, rows[chosen, 2])
        return columns

    def _cut_column(self, tables: Any, kind: DType, places: _IntArray) -> Column:
        """Returns some of the values of a kind, by their places among all of it."""
        if kind == "int64":
            return np.frombuffer(tables.ints, np.int64)[places]
        if kind == "float":
            return np.frombuffer(tables.floats, np.float32)[places]
        memory, texts = np.frombuffer(self.data, np.uint8), np.frombuffer(tables.texts, np.int64).reshape(-1, 2)[places]
        return [memory[begin:end] for begin, end in zip(texts[:, 0].tolist(), texts.sum(axis=1).tolist(), strict=True)]


def can_cut_columns() -> bool:
    """Returns whether `RecordBlock.cut_columns` may find anything."""
    return library.is_available()


def get_max_record_bytes() -> int:
    """Returns the size from which on reading a record on its own takes less time, as it is copied once less."""
    return _MAX_RECORD_BYTES if library.is_available() else _MAX_RECORD_BYTES_IN_PYTHON


def read_block(
    descriptors: _IntArray, begins: _IntArray, sizes: _IntArray, memory: NDArray[np.uint8] | None = None
) -> RecordBlock:
    """Reads records of TFRecord files. What a file does not have is zeros, and the record is not whole.

    At most twice the bytes of the records are read.

    Args:
        descriptors: The open file of each record, int64 [records].
        begins: The byte of its file at which it begins. In a file they ascend, and no records overlap.
        sizes: The bytes that it takes there, framing included.
        memory: The memory to read into. None, or if it is too small: new memory.
    """
    gaps = begins[1:] - begins[:-1] - sizes[:-1]
    # Half of each neighbor is the most that may lie between two, so the gaps together are not more than the records.
    joins = (descriptors[1:] == descriptors[:-1]) & (gaps <= np.minimum((sizes[1:] + sizes[:-1]) // 2, _MAX_GAP_BYTES))
    firsts = np.flatnonzero(np.concatenate(([True], ~joins)))
    lasts = np.append(firsts[1:], len(begins)) - 1
    offsets = begins[firsts]
    span_sizes = begins[lasts] + sizes[lasts] - offsets
    spans = np.stack((descriptors[firsts], offsets, span_sizes, np.cumsum(span_sizes) - span_sizes), axis=1)
    at = begins + np.repeat(spans[:, 3] - offsets, lasts - firsts + 1)
    data, whole = _read_spans(spans, np.stack((at, sizes), axis=1), memory)
    return RecordBlock(data, at + HEADER_BYTES, at + sizes - FOOTER_BYTES, whole)


def join_block(payloads: Sequence[bytes | None], memory: NDArray[np.uint8] | None = None) -> RecordBlock:
    """Makes a block of payloads that are in memory already; None for one that is not whole.

    Args:
        payloads: The bytes of each record.
        memory: The memory to join them in. None, or if it is too small: new memory.
    """
    sizes = np.array([len(payload or b"") for payload in payloads], np.int64)
    ends = np.cumsum(sizes)
    num_bytes = int(ends[-1]) if len(ends) else 0
    memory = np.empty(num_bytes, np.uint8) if memory is None or len(memory) < num_bytes else memory[:num_bytes]
    for payload, begin, end in zip(payloads, (ends - sizes).tolist(), ends.tolist(), strict=True):
        if payload:
            memory[begin:end] = np.frombuffer(payload, np.uint8)
    return RecordBlock(
        memory.data, ends - sizes, ends, np.array([payload is not None for payload in payloads], np.bool_)
    )


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Reads at an offset, less only at the end: a position would be shared with forked processes and other threads."""
    data = os.pread(descriptor, size, offset)
    while len(data) < size and (more := os.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def _read_spans(
    spans: _IntArray, frames: _IntArray, memory: NDArray[np.uint8] | None
) -> tuple[memoryview, NDArray[np.bool_]]:
    """Reads parts of files behind each other, and checks the records that lie there."""
    if library.is_available():
        num_bytes = spans[:, 2].sum()
        memory = np.empty(num_bytes, np.uint8) if memory is None or len(memory) < num_bytes else memory[:num_bytes]
        whole = np.frombuffer(native_records.read_records(spans, frames, memory), np.bool_)
        return memory.data, whole
    pieces = [read_at(descriptor, offset, size).ljust(size, b"\0") for descriptor, offset, size, _ in spans.tolist()]
    data = b"".join(pieces)
    return memoryview(data), check_frames(data, frames)


def _try_to_decode(payload: bytes | memoryview) -> dict[str, Feature] | None:
    try:
        return decode_example(payload)
    except FormatError:
        return None


def _decode_natively(block: RecordBlock) -> list[dict[str, Feature] | None] | None:
    """Decodes the records of a block; None if a key is not UTF-8."""
    data = block.data
    tables = native_records.parse_examples(data, np.stack((block.begins, block.ends - block.begins), axis=1))
    try:
        keys = [key.decode() for key in _cut(data, tables.keys)]
    except UnicodeDecodeError:
        return None
    rows = np.frombuffer(tables.features, np.int64).reshape(-1, 4)
    cells = np.full(len(rows), None, object)
    values: tuple[tuple[int, Sequence[Any] | NDArray[Any]], ...] = (
        (native_records.TEXTS, _cut(data, tables.texts)),
        (native_records.FLOATS, np.frombuffer(tables.floats, np.float32)),
        (native_records.INTS, np.frombuffer(tables.ints, np.int64)),
    )
    for kind, pool in values:
        places = np.flatnonzero(rows[:, 1] == kind)
        cells[places] = np.fromiter(_group(pool, rows[places, 2], rows[places, 3]), object, len(places))
    names, features = np.array(keys, object)[rows[:, 0]].tolist(), cells.tolist()
    examples: list[dict[str, Feature] | None] = []
    begin = 0
    for row, count in enumerate(np.frombuffer(tables.num_features, np.int64).tolist()):
        if count < 0:
            examples.append(_try_to_decode(data[block.begins[row] : block.ends[row]]))
        else:
            examples.append(dict(zip(names[begin : begin + count], features[begin : begin + count], strict=True)))
            begin += count
    return examples


def _cut(data: memoryview, table: bytes) -> list[bytes]:
    """Cuts bytes objects out of a block, by a table of begins and sizes."""
    places = np.frombuffer(table, np.int64).reshape(-1, 2)
    return [
        data[begin:end].tobytes() for begin, end in zip(places[:, 0].tolist(), places.sum(axis=1).tolist(), strict=True)
    ]


def _group(pool: Sequence[Any] | NDArray[Any], firsts: _IntArray, counts: _IntArray) -> Sequence[Any]:
    """Groups the values of each feature: lists of bytes, or arrays. Most features have one value."""
    if (counts == 1).all():
        return list(pool.copy().reshape(-1, 1)) if isinstance(pool, np.ndarray) else [[value] for value in pool]
    places = zip(firsts.tolist(), (firsts + counts).tolist(), strict=True)
    if isinstance(pool, np.ndarray):
        return [pool[first:end].copy() for first, end in places]
    return [pool[first:end] for first, end in places]
