"""The kind of a further column, as all of its cells tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from beam_jobs.inputs.column_types import Column, ColumnFacts
from tfpipe.errors import DataError


def infer_column(cells: Sequence[Any], *, text: bool) -> Column:
    """Returns a column, from the facts about single cells that are added in any order."""
    facts = [ColumnFacts.read([cell], 0, row, from_text=text) for row, cell in enumerate(cells, start=1)]
    shuffled = [*facts[1::2], *facts[::2]]
    together = ColumnFacts.read(cells, 0, 1, from_text=text)
    assert sum(shuffled, ColumnFacts()) == together
    return together.infer("c", ["t"], from_text=text)


def infer(*cells: Any, text: bool = False) -> tuple[str, Any, list[Any]]:
    """Returns the dtype and the shape of a column, and its converted cells."""
    column = infer_column(cells, text=text)
    assert column.spec.name == "c"
    return column.spec.dtype, column.spec.shape, [column.convert(cell) for cell in cells]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ((1, 2), ("int64", (), [1, 2])),
        ((True, False), ("int64", (), [1, 0])),
        ((1, 2.5), ("float", (), [1.0, 2.5])),
        ((2**63 - 1, -(2**63)), ("int64", (), [2**63 - 1, -(2**63)])),
        ((1, 2**63), ("float", (), [1.0, float(2**63)])),
        ((True, -(10**400)), ("float", (), [1.0, float("-inf")])),
        (("a", ""), ("bytes", (), ["a", ""])),
        ((b"\xff\x00", b"ok"), ("bytes", (), ["\udcff\0", "ok"])),
        ((1, None), ("int64", None, [[1], []])),
        ((None, None), ("bytes", None, [[], []])),
        (([1, 2], [3, 4]), ("int64", (2,), [[1, 2], [3, 4]])),
        (([1], [2]), ("int64", (1,), [[1], [2]])),
        (([1], [2, 3]), ("int64", None, [[1], [2, 3]])),
        (([1], 2), ("int64", (1,), [[1], [2]])),
        (([1.5], None), ("float", None, [[1.5], []])),
        (([], [1]), ("int64", None, [[], [1]])),
        (([], []), ("bytes", None, [[], []])),
        (((1, 2.5),), ("float", (2,), [[1.0, 2.5]])),
    ],
)
def test_values_of_a_typed_table_are_converted(cells: tuple[Any, ...], expected: Any) -> None:
    assert infer(*cells) == expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("1", "-2"), ("int64", (), [1, -2])),
        (("1", "2.5"), ("float", (), [1.0, 2.5])),
        (("1", "1e3"), ("float", (), [1.0, 1000.0])),
        (("1", "9223372036854775808"), ("float", (), [1.0, 2.0**63])),
        (("1", "x"), ("bytes", (), ["1", "x"])),
        (("1", None), ("int64", None, [[1], []])),
        (("[1, 2]", "[3]"), ("bytes", (), ["[1, 2]", "[3]"])),
    ],
)
def test_texts_of_a_csv_are_converted(cells: tuple[Any, ...], expected: Any) -> None:
    assert infer(*cells, text=True) == expected


@pytest.mark.parametrize(
    ("cells", "row", "value"),
    [
        ((1, "a"), 2, "'a'"),
        (("a", 2.5), 2, "2.5"),
        ((1, {"x": 1}), 2, "{'x': 1}"),
        (([1, None],), 1, "None"),
        (([[1]],), 1, "[1]"),
        (([1, "a"],), 1, "'a'"),
    ],
)
def test_mixtures_are_refused(cells: tuple[Any, ...], row: int, value: str) -> None:
    with pytest.raises(DataError) as caught:
        infer(*cells)
    assert str(caught.value) == (
        f"t, row {row}: column 'c' must hold numbers or texts of one kind, or lists of them, got {value}."
    )
