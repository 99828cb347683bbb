"""Infers the features of a table's extra columns, which tfpipe itself does not use: dtype, and one value or a list."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfpipe.errors import DataError
from tfpipe.format.schema import FeatureSpec

if TYPE_CHECKING:
    from beam_jobs.plan.image_table import ImageTable

CAPTION = "caption"
"""The column that is text wherever images have captions. A missing caption is an empty text."""

TARGET = "target"
LABELS = "labels"
"""The feature with the classes of an image that may have several."""

# The kinds of values. `_ODD` are numbers that would come back in another spelling, so they are stored as texts: whole
# ones beyond int64, ones beyond float32, and texts such as 007, 1_000, 1E5 or nan. `_NESTED` is a struct or a list of
# lists, stored as JSON.
_ODD, _TEXT, _NESTED, _BYTES, _UNKNOWN = 2, 3, 4, 5, -1
_NUMBERS = (0, 1, _ODD)
_KINDS: tuple[Literal["int64", "float", "bytes"], ...] = ("int64", "float", "bytes", "bytes", "bytes", "bytes")
_INT64 = range(-(2**63), 2**63)
_MISSING = -1
_ROWS_AT_ONCE = 10_000
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
# In numbers that programs write, an exponent has a sign or follows a fraction; 1E5 and 12e3 are taken for names.
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+([eE][-+]?[0-9]+)?|[eE][-+][0-9]+)")
_WHOLE_FLOAT = re.compile(r"-?[0-9]+\.0+")
_MAX_FLOAT = float(np.finfo(np.float32).max)
_First = tuple[tuple[int, int, int], Any]


@dataclass(frozen=True)
class TableColumn:
    """An extra column of a table, and the feature that the column becomes."""

    spec: FeatureSpec
    numbers: Mapping[str, int] = field(default_factory=dict)  # class numbers by the names in the table
    is_nested: bool = False  # whether a cell that is a struct or a list becomes its JSON
    missing: Any = None  # what stands for a cell without a value

    def convert(self, cell: Any) -> Any:
        """Returns a cell as one value or a list, ready for JSON. Bytes that are not UTF-8 become escaped text."""
        cell = self.missing if cell is None else cell
        if self.numbers:
            return [self.numbers[label] for label in cell]
        if self.is_nested and isinstance(cell, dict | list | tuple):
            cell = to_text(cell)
        values = [_convert_value(value, self.spec.dtype) for value in to_list(cell)]
        if self.spec.shape != ():
            return values
        return values[0] if values else ""  # only a caption can be missing


@dataclass
class CellKinds:
    """The kinds of values in a column's cells, from which the column's feature is inferred."""

    from_text: bool  # whether all cells are texts that may spell numbers
    firsts: dict[int, _First] = field(default_factory=dict)  # the first value of each kind
    lengths: set[int] = field(default_factory=set)  # of lists; `_MISSING` for a cell without a value
    has_lists: bool = False  # whether a cell holds a list

    def add(self, cells: Iterable[Any], rows: Iterable[tuple[int, int]]) -> None:
        """Adds cells (None, scalars or lists); `rows` has the file number and the row number of each cell."""
        infer = _infer_spelled_kind if self.from_text else _infer_kind
        for row, cell in zip(rows, cells, strict=False):
            values = to_list(cell)
            if isinstance(cell, dict) or any(isinstance(value, dict | list | tuple) for value in values):
                values = [cell]  # it becomes JSON
            self.has_lists = self.has_lists or isinstance(cell, (list, tuple))
            self.lengths.add(_MISSING if cell is None else len(values))
            for position, value in enumerate(values):
                kind = infer(value)
                if kind not in self.firsts:
                    self.firsts[kind] = (*row, position), value

    def infer_target(self, column: str, files: Sequence[str]) -> TableColumn:
        """Returns the column as the target of a regression; refuses cells that are not one number."""
        texts = [first for kind, first in self.firsts.items() if kind not in _NUMBERS]
        if texts:
            (file_number, row, _), value = min(texts, key=itemgetter(0))
            raise DataError(f"{files[file_number]}, row {row}: the target {column!r} must be a number, got {value!r}.")
        if self.has_lists or self.lengths != {1}:
            raise DataError(f"{files[0]}: the target {column!r} must be one number in every row.")
        return TableColumn(FeatureSpec(TARGET, "float", (), "target of a regression"))

    def infer(self, name: str, files: Sequence[str], *, is_text: bool = False, mixes: bool = False) -> TableColumn:
        """Infers the feature of the column. With `is_text`, texts become a feature of text, else one of bytes.

        With `mixes`, a column of numbers and texts becomes texts, as it does in a table whose cells are all texts.
        """
        faults = [self.firsts[_UNKNOWN]] if _UNKNOWN in self.firsts else []
        numbers = [self.firsts[kind] for kind in _NUMBERS if kind in self.firsts]
        texts = [self.firsts[kind] for kind in (_TEXT, _NESTED, _BYTES) if kind in self.firsts]
        if not (mixes or self.from_text) and numbers and texts:
            faults.append(max(min(numbers, key=itemgetter(0)), min(texts, key=itemgetter(0)), key=itemgetter(0)))
        if faults:
            (file_number, row, _), value = min(faults, key=itemgetter(0))
            raise DataError(
                f"{files[file_number]}, row {row}: column {name!r} must hold numbers or texts of one kind, or lists of "
                f"them, got {value!r}."
            )
        dtype = _KINDS[max(self.firsts)] if self.firsts else "bytes"
        is_text = is_text and dtype == "bytes" and _BYTES not in self.firsts
        if is_text and name == CAPTION and not self.has_lists:
            return TableColumn(FeatureSpec.make_text(name))
        kind: Literal["text", "values"] = "text" if is_text else "values"
        lengths, is_nested = {max(0, length) for length in self.lengths}, _NESTED in self.firsts
        is_single = _MISSING not in self.lengths if is_nested else not self.has_lists and lengths == {1}
        has_size = self.has_lists and not is_nested and len(lengths) == 1 and lengths != {0}  # always empty: no size
        shape = () if is_single else tuple(lengths) if has_size else None
        return TableColumn(FeatureSpec(name, dtype, shape, kind=kind), is_nested=is_nested)


def read_kinds(kinds: Sequence[CellKinds], cells: Iterator[tuple[Any, ...]], rows: Iterator[tuple[int, int]]) -> None:
    """Adds the cells of rows to the kinds of their columns; `rows` are those of `CellKinds.add`."""
    while kinds and (block := list(islice(cells, _ROWS_AT_ONCE))):
        some = list(islice(rows, len(block)))
        for kind, column in zip(kinds, zip(*block, strict=True), strict=True):
            kind.add(column, some)


def convert_extras(images: "ImageTable", columns: Sequence[TableColumn | None]) -> "ImageTable":
    """Converts the values of the images' extra columns to their features; a column that is None is left out."""
    kept = [(index, column) for index, column in enumerate(columns) if column is not None]
    if not kept or not len(images):
        return images
    rows = (tuple(column.convert(row[index]) for index, column in kept) for row in images.iterate_extras())
    return images.replace_tuples("extra", rows)


def to_list(cell: Any) -> list[Any]:
    """Returns the values of a cell: none, one, or those of its list."""
    if cell is None:
        return []
    return list(cell) if isinstance(cell, (list, tuple)) else [cell]


def to_text(value: Any) -> str:
    """Returns a time or a decimal as it is written, and a struct or a list as JSON."""
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _infer_kind(value: Any) -> int:
    """Returns the index of a value's kind in `_KINDS`, or `_UNKNOWN`."""
    if isinstance(value, int):
        return 0 if value in _INT64 else _ODD
    if isinstance(value, (float, np.floating)):  # Arrow before release 21 gives half precision as a number of NumPy
        return 1 if abs(value) <= _MAX_FLOAT or not math.isfinite(value) else _ODD
    if isinstance(value, bytes):
        return _BYTES
    if isinstance(value, dict | list | tuple):
        return _NESTED
    return _TEXT if isinstance(value, str) else _UNKNOWN


def _infer_spelled_kind(text: str) -> int:
    """Returns the index in `_KINDS` of the kind of value that the text of a CSV cell spells."""
    if _INTEGER.fullmatch(text):
        return 0 if int(text) in _INT64 else _ODD
    try:
        value = float(text)
    except ValueError:
        return _TEXT
    is_plain = _FLOAT.fullmatch(text) and abs(value) <= _MAX_FLOAT
    return 1 if is_plain and not (_WHOLE_FLOAT.fullmatch(text) and float(np.float32(value)) != value) else _ODD


def _convert_value(value: Any, dtype: str) -> int | float | str:
    if dtype == "int64":
        return int(value)
    if dtype == "float":
        try:
            return float(value)
        except OverflowError:
            raise DataError(f"A target must be a number that float32 can hold, got {value!r:.40}.") from None
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
