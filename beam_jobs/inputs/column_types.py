"""Infers the feature of a manifest's further column: int64, float or bytes, and one value or a list."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tfpipe.errors import DataError
from tfpipe.format.schema import FeatureSpec

_KINDS: tuple[Literal["int64", "float", "bytes"], ...] = ("int64", "float", "bytes")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Column:
    """A further column of a manifest.

    Attributes:
        spec: The feature that the column becomes.
    """

    spec: FeatureSpec

    def convert(self, cell: Any) -> Any:
        """Returns a cell as one value or a list, ready for JSON. Bytes that are not UTF-8 become escaped text."""
        values = [_convert_value(value, self.spec.dtype) for value in _to_list(cell)]
        return values[0] if self.spec.shape == () else values


def infer_column(name: str, cells: Iterable[Any], path: str, *, from_text: bool) -> Column:
    """Infers the feature of a column from all of its cells.

    Args:
        name: The name of the column, and of the feature.
        cells: The values of the column: None, a scalar, or a list of scalars.
        path: The table, for messages.
        from_text: Whether all cells are texts (CSV) that may spell numbers.

    Raises:
        DataError: The column mixes numbers and texts, or holds something else. The message names the row.
    """
    kind, lengths, has_lists = -1, set(), False
    for row, cell in enumerate(cells, start=1):
        values = _to_list(cell)
        has_lists = has_lists or isinstance(cell, (list, tuple))
        lengths.add(len(values))
        for value in values:
            value_kind = _infer_spelled_kind(value) if from_text else _infer_kind(value)
            if value_kind < 0 or (not from_text and {kind, value_kind} in ({0, 2}, {1, 2})):
                raise DataError(
                    f"{path}, row {row}: column {name!r} must hold numbers or texts of one kind, or lists of them, "
                    f"got {value!r}."
                )
            kind = max(kind, value_kind)
    dtype = _KINDS[kind] if kind >= 0 else "bytes"
    shape: tuple[int, ...] | None = None
    if len(lengths) == 1:
        (length,) = lengths
        if has_lists:
            shape = (length,) if length else None  # a feature that is always empty has no fixed shape
        elif length == 1:
            shape = ()
    return Column(FeatureSpec(name, dtype, shape))


def _to_list(cell: Any) -> list[Any]:
    if cell is None:
        return []
    return list(cell) if isinstance(cell, (list, tuple)) else [cell]


def _infer_kind(value: Any) -> int:
    """Returns the position of a value's kind in `_KINDS`, or -1."""
    if isinstance(value, int):
        return 0 if value in _INT64 else 1
    if isinstance(value, float):
        return 1
    return 2 if isinstance(value, (str, bytes)) else -1


def _infer_spelled_kind(text: str) -> int:
    """Returns the position in `_KINDS` of the kind that a CSV cell spells."""
    try:
        return 0 if int(text) in _INT64 else 1
    except ValueError:
        pass
    try:
        float(text)
    except ValueError:
        return 2
    return 1


def _convert_value(value: Any, dtype: str) -> int | float | str:
    if dtype == "int64":
        return int(value)
    if dtype == "float":
        return float(value)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
