"""Decides what a manifest's further column holds: int64, float or bytes; one value, or a list."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tfpipe.errors import DataError
from tfpipe.format.schema import FeatureSpec

_KINDS: tuple[Literal["int64", "float", "bytes"], ...] = ("int64", "float", "bytes")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Column:
    """A column's feature, and how its cells become values of it."""

    spec: FeatureSpec

    def convert(self, cell: Any) -> Any:
        """A cell as one value or a list, ready for JSON; bytes that are not UTF-8 as escaped text."""
        values = [_number_or_text(value, self.spec.dtype) for value in _as_list(cell)]
        return values[0] if self.spec.shape == () else values


def infer_column(name: str, cells: Iterable[Any], path: str, *, from_text: bool) -> Column:
    """Looks at every cell.

    Args:
        name: The column's name, which becomes the feature's.
        cells: Its values: None, a scalar, or a list of scalars.
        path: The table, for messages.
        from_text: All cells are text (CSV) and may spell numbers.

    Raises:
        DataError: The column mixes numbers and texts, or holds something else; names the row.
    """
    kind, lengths, is_list = -1, set(), False
    for row, cell in enumerate(cells, start=1):
        values = _as_list(cell)
        is_list = is_list or isinstance(cell, (list, tuple))
        lengths.add(len(values))
        for value in values:
            found = _spelled(value) if from_text else _kind(value)
            if found < 0 or (not from_text and {kind, found} in ({0, 2}, {1, 2})):
                raise DataError(
                    f"{path}, row {row}: column {name!r} must hold numbers or texts of one kind, or lists of them, "
                    f"got {value!r}."
                )
            kind = max(kind, found)
    dtype = _KINDS[kind] if kind >= 0 else "bytes"
    shape: tuple[int, ...] | None = None
    if len(lengths) == 1:
        (length,) = lengths
        if is_list:
            shape = (length,) if length else None  # a feature that is always empty has no fixed shape
        elif length == 1:
            shape = ()
    return Column(FeatureSpec(name, dtype, shape))


def _as_list(cell: Any) -> list[Any]:
    if cell is None:
        return []
    return list(cell) if isinstance(cell, (list, tuple)) else [cell]


def _kind(value: Any) -> int:
    """Position in `_KINDS`, or -1."""
    if isinstance(value, int):
        return 0 if value in _INT64 else 1
    if isinstance(value, float):
        return 1
    return 2 if isinstance(value, (str, bytes)) else -1


def _spelled(text: str) -> int:
    """The same, for a CSV cell."""
    try:
        return 0 if int(text) in _INT64 else 1
    except ValueError:
        pass
    try:
        float(text)
    except ValueError:
        return 2
    return 1


def _number_or_text(value: Any, dtype: str) -> int | float | str:
    if dtype == "int64":
        return int(value)
    if dtype == "float":
        return float(value)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
