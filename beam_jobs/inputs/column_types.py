"""Infers the feature of a manifest's further column: int64, float or bytes, and one value or a list."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tfpipe.errors import DataError
from tfpipe.format.schema import FeatureSpec

CAPTION = "caption"
"""The column that is text wherever images have captions. A missing caption is an empty text."""

TARGET = "target"
LABELS = "labels"
"""The feature with the classes of an image that may have several."""

_KINDS: tuple[Literal["int64", "float", "bytes"], ...] = ("int64", "float", "bytes", "bytes")
_TEXT, _BYTES, _UNKNOWN = 2, 3, -1
_INT64 = range(-(2**63), 2**63)
_First = tuple[tuple[int, int, int], Any]


@dataclass(frozen=True)
class Column:
    """A further column of a manifest.

    Attributes:
        spec: The feature that the column becomes.
        numbers: The number of each class by its name in the table, for a column of classes.
    """

    spec: FeatureSpec
    numbers: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def make_classes(cls, names: Sequence[str], labels: Mapping[str | None, str | None]) -> "Column":
        """Returns the column with the classes of each image."""
        positions = {name: number for number, name in enumerate(names)}
        numbers = {str(label): positions[str(name)] for label, name in labels.items()}
        return cls(FeatureSpec(LABELS, "int64", None, "classes, counted from 0", names=tuple(names)), numbers)

    def convert(self, cell: Any) -> Any:
        """Returns a cell as one value or a list, ready for JSON. Bytes that are not UTF-8 become escaped text."""
        if self.numbers:
            return [self.numbers[label] for label in cell]
        values = [_convert_value(value, self.spec.dtype) for value in _to_list(cell)]
        if self.spec.shape != ():
            return values
        return values[0] if values else ""  # only a caption can be missing


@dataclass(frozen=True)
class ColumnFacts:
    """The facts about a column's cells that decide its feature. Those of two parts of a table can be added.

    Attributes:
        firsts: The first value of each kind, with its place: the number of the file, the row, the position in the cell.
        lengths: Two different lengths of cells, or the one that there is.
        has_lists: Whether a cell holds a list.
    """

    firsts: Mapping[int, _First] = field(default_factory=dict)
    lengths: frozenset[int] = frozenset()
    has_lists: bool = False

    @classmethod
    def read(cls, cells: Iterable[Any], file_number: int, first_row: int, *, from_text: bool) -> "ColumnFacts":
        """Returns the facts about some cells.

        Args:
            cells: The values of the column: None, a scalar, or a list of scalars.
            file_number: The number of their file in the table.
            first_row: The row of the first cell.
            from_text: Whether all cells are texts (CSV) that may spell numbers.
        """
        firsts: dict[int, _First] = {}
        lengths, has_lists = set(), False
        for row, cell in enumerate(cells, start=first_row):
            values = _to_list(cell)
            has_lists = has_lists or isinstance(cell, (list, tuple))
            lengths.add(len(values))
            for position, value in enumerate(values):
                kind = _infer_spelled_kind(value) if from_text else _infer_kind(value)
                if kind not in firsts:
                    firsts[kind] = (file_number, row, position), value
        return cls(firsts, frozenset(sorted(lengths)[:2]), has_lists)

    def __add__(self, other: "ColumnFacts") -> "ColumnFacts":
        firsts = dict(self.firsts)
        for kind, (place, value) in other.firsts.items():
            if kind not in firsts or place < firsts[kind][0]:
                firsts[kind] = place, value
        lengths = frozenset(sorted(self.lengths | other.lengths)[:2])
        return ColumnFacts(firsts, lengths, self.has_lists or other.has_lists)

    def infer_target(self, column: str, files: Sequence[str]) -> Column:
        """Returns the column with the target of a regression.

        Raises:
            DataError: A cell is not one number.
        """
        texts = [first for kind, first in self.firsts.items() if kind not in (0, 1)]
        if texts:
            (file_number, row, _), value = min(texts, key=_get_place)
            raise DataError(f"{files[file_number]}, row {row}: the target {column!r} must be a number, got {value!r}.")
        if self.has_lists or self.lengths != {1}:
            raise DataError(f"{files[0]}: the target {column!r} must be one number in every row.")
        return Column(FeatureSpec(TARGET, "float", (), "target of a regression"))

    def infer(self, name: str, files: Sequence[str], *, from_text: bool, is_text: bool = False) -> Column:
        """Infers the feature of the column.

        Args:
            name: The name of the column, and of the feature.
            files: The files of the table, for messages.
            from_text: Whether all cells are texts that may spell numbers.
            is_text: Whether texts become a feature of text. Otherwise they are values of bytes.

        Raises:
            DataError: The column mixes numbers and texts, or holds something else. The message names the row.
        """
        faults = [self.firsts[_UNKNOWN]] if _UNKNOWN in self.firsts else []
        numbers = [self.firsts[kind] for kind in (0, 1) if kind in self.firsts]
        texts = [self.firsts[kind] for kind in (_TEXT, _BYTES) if kind in self.firsts]
        if not from_text and numbers and texts:
            faults.append(max(min(numbers, key=_get_place), min(texts, key=_get_place), key=_get_place))
        if faults:
            (file_number, row, _), value = min(faults, key=_get_place)
            raise DataError(
                f"{files[file_number]}, row {row}: column {name!r} must hold numbers or texts of one kind, or lists of "
                f"them, got {value!r}."
            )
        dtype = _KINDS[max(self.firsts)] if self.firsts else "bytes"
        is_text = is_text and dtype == "bytes" and _BYTES not in self.firsts
        shape: tuple[int, ...] | None = None
        if is_text and name == CAPTION and not self.has_lists:
            return Column(FeatureSpec.make_text(name))
        if len(self.lengths) == 1:
            (length,) = self.lengths
            if self.has_lists:
                shape = (length,) if length else None  # a feature that is always empty has no fixed shape
            elif length == 1:
                shape = ()
        return Column(FeatureSpec(name, dtype, shape, kind="text" if is_text else "values"))


def _get_place(first: _First) -> tuple[int, int, int]:
    return first[0]


def _to_list(cell: Any) -> list[Any]:
    if cell is None:
        return []
    return list(cell) if isinstance(cell, (list, tuple)) else [cell]


def _infer_kind(value: Any) -> int:
    """Returns the position of a value's kind in `_KINDS`, or -1."""
    if isinstance(value, int):
        return 0 if value in _INT64 else 1
    if isinstance(value, (float, np.floating)):  # Arrow before release 21 gives half precision as a number of NumPy
        return 1
    if isinstance(value, bytes):
        return _BYTES
    return _TEXT if isinstance(value, str) else _UNKNOWN


def _infer_spelled_kind(text: str) -> int:
    """Returns the position in `_KINDS` of the kind that a CSV cell spells."""
    try:
        return 0 if int(text) in _INT64 else 1
    except ValueError:
        pass
    try:
        float(text)
    except ValueError:
        return _TEXT
    return 1


def to_float(value: Any) -> float:
    """Returns a number, or the number that a text spells; infinity for a whole number that no float can hold."""
    try:
        return float(value)
    except OverflowError:
        return float(str(value))


def _convert_value(value: Any, dtype: str) -> int | float | str:
    if dtype == "int64":
        return int(value)
    if dtype == "float":
        return to_float(value)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
