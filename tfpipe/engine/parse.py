"""Records in one block of memory, and their features: as columns, or as a dict for each record.

A column has all values of a feature, record after record. The native library parses all records in one call and leaves
unusual ones to Python. Values of bytes are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.schema import DType
from tfpipe.native.records import FLOATS, INTS, TEXTS, Examples, parse_examples

_LONG_LIST = 64  # values; shorter lists are gathered faster by their indices
_Ints = NDArray[np.int64]
_KINDS = {"bytes": TEXTS, "float": FLOATS, "int64": INTS}
_DTYPES: dict[DType, Any] = {"float": np.float32, "int64": np.int64}


@dataclass(frozen=True)
class RecordBlock:
    """The bytes of some records in one buffer, and where each record lies in it."""

    data: memoryview  # includes framing, and bytes between the records
    begins: _Ints  # offset of each payload in `data`, int64 [records]
    ends: _Ints  # int64 [records]
    whole: NDArray[np.bool_]  # whether each record's length and checksums are right, bool [records]

    def choose(self, rows: _Ints) -> RecordBlock:
        """Returns a block of some of the records, in any order, which shares this block's memory."""
        return RecordBlock(self.data, self.begins[rows], self.ends[rows], self.whole[rows])

    def list_payloads(self) -> list[bytes | None]:
        """Lists the bytes of each record, with None for a damaged one."""
        data, whole = self.data, self.whole.tolist()
        spans = zip(self.begins.tolist(), self.ends.tolist(), whole, strict=True)
        return [data[begin:end].tobytes() if good else None for begin, end, good in spans]


ReadBlock: TypeAlias = Callable[[_Ints, NDArray[np.uint8] | None], RecordBlock]
"""A function that reads the records with some numbers into the given memory, or into new memory."""


@dataclass(frozen=True)
class Column:
    """The stored values of one feature of several records."""

    counts: _Ints  # number of values of each record, int64 [records]; 0 without the feature
    values: NDArray[Any]  # int64 or float32 [values]; for bytes, offset and size in `memory`, int64 [values, 2]
    memory: NDArray[np.uint8] | None = None  # uint8 [bytes]; None for numbers

    @property
    def firsts(self) -> _Ints:
        """The index of each record's first value, int64 [records]."""
        firsts: _Ints = np.cumsum(self.counts) - self.counts
        return firsts

    def get_view(self, value: int) -> NDArray[np.uint8]:
        """Returns a bytes value as a view, uint8 [bytes], which must not be written to."""
        assert self.memory is not None
        begin, size = self.values[value].tolist()
        return self.memory[begin : begin + size]

    def get_bytes(self, value: int) -> bytes:
        """Returns a copy of a bytes value."""
        return self.get_view(value).tobytes()

    def list_bytes(self) -> list[bytes]:
        """Returns copies of all bytes values."""
        assert self.memory is not None
        return _cut(self.memory.data, self.values)

    def list_records(self) -> list[Any]:
        """Lists the values of each record: a list of bytes, or an array."""
        values = self.values if self.memory is None else self.list_bytes()
        ends = np.cumsum(self.counts).tolist()
        return [values[end - count : end] for count, end in zip(self.counts.tolist(), ends, strict=True)]

    def check_counts(self, count: int, name: str) -> None:
        """Checks that each record has this number of values."""
        wrong = np.flatnonzero(self.counts != count)
        if len(wrong):
            row = int(wrong[0])
            must = "one value" if count == 1 else f"{count} values"
            raise BadRecord(row, f"it must have {must} of {name!r}, got {self.counts[row]}")

    def choose_records(self, records: _Ints) -> Column:
        """Returns the column of some of the records."""
        counts = self.counts[records]
        return self.choose(_list_values(self.firsts[records], counts), counts)

    def choose(self, values: _Ints, counts: _Ints) -> Column:
        """Returns a column of the values at some indices, with `counts` of them in each record."""
        return Column(counts, self.values[values], self.memory)


def take_memory(num_bytes: int, memory: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    """Returns the first `num_bytes` of `memory`, or new memory if `memory` is too small."""
    return np.empty(num_bytes, np.uint8) if memory is None or len(memory) < num_bytes else memory[:num_bytes]


def join_block(payloads: Sequence[bytes | None], memory: NDArray[np.uint8] | None = None) -> RecordBlock:
    """Copies payloads into one block, in `memory` if they fit; a payload of None is a record that is not whole."""
    sizes = np.array([len(payload or b"") for payload in payloads], np.int64)
    ends = np.cumsum(sizes)
    memory = take_memory(int(ends[-1]) if len(ends) else 0, memory)
    for payload, begin, end in zip(payloads, (ends - sizes).tolist(), ends.tolist(), strict=True):
        if payload:
            memory[begin:end] = np.frombuffer(payload, np.uint8)
    whole = np.array([payload is not None for payload in payloads], np.bool_)
    return RecordBlock(memory.data, ends - sizes, ends, whole)


def read_missing(
    found: RecordBlock, there: NDArray[np.bool_], numbers: _Ints, memory: NDArray[np.uint8] | None, read: ReadBlock
) -> tuple[RecordBlock, RecordBlock]:
    """Reads the records of a batch that a cache lacks, into `memory` after those that were found in it.

    `there` says which of the `numbers` are in `found`. Returns the block of all records, and the block of those that
    were read. Nothing is copied unless `memory` is too small: copying takes longer than reading.
    """
    begin, missing = len(found.data), numbers[~there]
    room = None if memory is None else memory[begin:]
    added = read(missing, room)
    if room is not None and memory is not None and np.may_share_memory(np.asarray(added.data), room):
        begins = np.concatenate((found.begins, added.begins + begin))
        ends = np.concatenate((found.ends, added.ends + begin))
        block = RecordBlock(memory.data, begins, ends, np.concatenate((found.whole, added.whole)))
    else:
        block = join_block([*found.list_payloads(), *added.list_payloads()]) if there.any() else added
    rows = np.argsort(~there, kind="stable")  # the row in the batch of each record in the block
    return block.choose(np.argsort(rows)), added


def _list_values(firsts: _Ints, counts: _Ints) -> _Ints:
    """Lists the indices of the values in several runs, of which each has a first index and a length."""
    ends = np.cumsum(counts)
    values: _Ints = np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - ends + counts, counts)
    return values


def join_columns(columns: Sequence[Column]) -> Column:
    """Joins columns of bytes into one, in which each record has its values of all columns, in their order."""
    memories = [column.memory for column in columns if column.memory is not None]
    values = [column.values for column in columns]
    memory = memories[0]
    if any(other.ctypes.data != memory.ctypes.data for other in memories):  # records that Python parsed
        begins = np.cumsum([0, *map(len, memories)])[:-1].tolist()
        values = [spans + np.array([begin, 0]) for spans, begin in zip(values, begins, strict=True)]
        memory = np.concatenate(memories)
    rows = np.concatenate([np.repeat(np.arange(len(column.counts)), column.counts) for column in columns])
    counts: _Ints = np.sum([column.counts for column in columns], axis=0)
    return Column(counts, np.concatenate(values)[np.argsort(rows, kind="stable")], memory)


class BadRecord(FormatError):
    """The error for a record that cannot be parsed. `row` is its index in the block."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def parse_columns(block: RecordBlock, kinds: Mapping[str, DType]) -> dict[str, Column]:
    """Parses some features of a block's records: all records in one call, or one by one if a record is unusual."""
    examples = parse_examples(block.data, np.stack((block.begins, block.ends - block.begins), axis=1))
    counts, features = examples.num_features, examples.features
    if (counts < 0).any():
        return _parse_one_by_one(block, kinds)
    record_of = np.repeat(np.arange(len(counts)), counts)
    spans = enumerate(examples.keys.tolist())
    numbers = {block.data[begin : begin + size].tobytes(): number for number, (begin, size) in spans}
    columns: dict[str, Column] = {}
    for name, kind in kinds.items():
        rows = np.flatnonzero(features[:, 0] == numbers.get(name.encode(), -1))
        records, found = record_of[rows], features[rows]
        fits = (found[:, 1] == _KINDS[kind]) | (found[:, 3] == 0)
        if not (fits.all() and (records[1:] > records[:-1]).all()):
            return _parse_one_by_one(block, kinds)  # values of another kind, or a key that comes twice
        pool, sizes = examples.values[_KINDS[kind]], np.zeros(len(counts), np.int64)
        sizes[records] = found[:, 3]
        if len(found) and (found[:, 3] == 1).all():
            values = pool[found[:, 2]]
        elif found[:, 3].sum() > _LONG_LIST * len(found):
            values = np.concatenate([pool[first : first + size] for first, size in found[:, 2:4].tolist()])
        else:
            values = pool[_list_values(found[:, 2], found[:, 3])]
        columns[name] = Column(sizes, values, np.frombuffer(block.data, np.uint8) if kind == "bytes" else None)
    return columns


def parse_records(block: RecordBlock) -> list[dict[str, Feature] | None]:
    """Parses each record as `decode_example` does, with None for one that is damaged or not an Example."""
    if block.whole.all():
        examples = parse_examples(block.data, np.stack((block.begins, block.ends - block.begins), axis=1))
        with suppress(UnicodeDecodeError):
            return _make_records(block, examples, [key.decode() for key in _cut(block.data, examples.keys)])
    return [None if payload is None else _try_to_decode(payload) for payload in block.list_payloads()]


def _cut(data: memoryview, spans: _Ints) -> list[bytes]:
    """Cuts bytes objects out of a block, by a table of offsets and sizes."""
    return [data[begin : begin + size].tobytes() for begin, size in spans.tolist()]


def _make_records(block: RecordBlock, examples: Examples, keys: list[str]) -> list[dict[str, Feature] | None]:
    """Makes a dict of the features of each record."""
    rows = examples.features
    cells = np.full(len(rows), None, object)
    for kind, pool in examples.values.items():
        rows_of_kind = np.flatnonzero(rows[:, 1] == kind)
        values: Any = _cut(block.data, pool) if kind == TEXTS else pool
        firsts, counts = rows[rows_of_kind, 2], rows[rows_of_kind, 3]
        if (counts == 1).all():  # as most features have
            grouped = [[value] for value in values] if kind == TEXTS else list(pool.copy().reshape(-1, 1))
        else:
            spans = zip(firsts.tolist(), (firsts + counts).tolist(), strict=True)
            grouped = [values[first:end].copy() for first, end in spans]
        cells[rows_of_kind] = np.fromiter(grouped, object, len(rows_of_kind))
    names, features = np.array(keys, object)[rows[:, 0]].tolist(), cells.tolist()
    records: list[dict[str, Feature] | None] = []
    begin = 0
    for row, count in enumerate(examples.num_features.tolist()):
        if count < 0:
            records.append(_try_to_decode(block.data[block.begins[row] : block.ends[row]]))
        else:
            records.append(dict(zip(names[begin : begin + count], features[begin : begin + count], strict=True)))
            begin += count
    return records


def _try_to_decode(payload: bytes | memoryview) -> dict[str, Feature] | None:
    try:
        return decode_example(payload)
    except FormatError:
        return None


def _parse_one_by_one(block: RecordBlock, kinds: Mapping[str, DType]) -> dict[str, Column]:
    """Parses records one by one in Python, which reads every valid form, and says what is wrong with a record."""
    examples: list[dict[str, Feature]] = []
    for row, (begin, end) in enumerate(zip(block.begins.tolist(), block.ends.tolist(), strict=True)):
        try:
            examples.append(decode_example(block.data[begin:end]))
        except FormatError as error:
            raise BadRecord(row, str(error).rstrip(".")) from None
    return {
        name: collect_column([example.get(name) for example in examples], name, kind) for name, kind in kinds.items()
    }


def collect_column(features: Sequence[Feature | None], name: str, kind: DType) -> Column:
    """Makes a column of a feature from each record's values."""
    for row, feature in enumerate(features):
        if feature is not None and len(feature) and _find_kind(feature) != kind:
            raise BadRecord(row, f"it must have {kind} values of {name!r}, got {_find_kind(feature)}")
    counts = np.array([0 if feature is None else len(feature) for feature in features], np.int64)
    if kind != "bytes":
        arrays = [feature for feature in features if isinstance(feature, np.ndarray) and len(feature)]
        return Column(counts, np.concatenate(arrays) if arrays else np.empty(0, _DTYPES[kind]))
    texts = [text for feature in features if isinstance(feature, list) for text in feature]
    sizes = np.array([len(text) for text in texts], np.int64)
    spans = np.stack((np.cumsum(sizes) - sizes, sizes), axis=1)
    return Column(counts, spans, np.frombuffer(b"".join(texts), np.uint8))


def _find_kind(feature: Feature) -> DType:
    if feature is None or isinstance(feature, list):
        return "bytes"
    return "int64" if feature.dtype == np.int64 else "float"
