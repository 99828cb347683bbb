"""The kind of a further column, as all of its cells tell it."""

from itertools import count
from typing import Any

import pytest

from beam_jobs.inputs.column_types import CellKinds
from tests.refusals import refusal
from tfpipe.errors import DataError


def infer(*cells: Any, text: bool = False) -> tuple[str, Any, list[Any]]:
    """Returns what a column becomes, from its cells in two files."""
    kinds = CellKinds(text)
    kinds.add(cells[:2], [(0, 1), (0, 2)])
    kinds.add(cells[2:], ((1, row) for row in count(1)))
    column = kinds.infer("c", ["t", "u"])
    assert column.spec.name == "c"
    return column.spec.dtype, column.spec.shape, [column.convert(cell) for cell in cells]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ((1, 2), ("int64", (), [1, 2])),
        ((True, False), ("int64", (), [1, 0])),
        ((1, 2.5), ("float", (), [1.0, 2.5])),
        ((2**63 - 1, -(2**63)), ("int64", (), [2**63 - 1, -(2**63)])),
        ((1, 2**63), ("bytes", (), ["1", "9223372036854775808"])),
        ((0.5, -(2**63) - 1), ("bytes", (), ["0.5", "-9223372036854775809"])),
        ((1.5, -1e300), ("bytes", (), ["1.5", "-1e+300"])),
        (({"x": [1]}, {"x": []}), ("bytes", (), ['{"x": [1]}', '{"x": []}'])),
        (([[1.5], []], []), ("bytes", (), ["[[1.5], []]", "[]"])),
        (({"x": "é"}, None), ("bytes", None, [['{"x": "é"}'], []])),
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
        (("-0.50", "5e-05"), ("float", (), [-0.5, 5e-05])),
        (("1.0E10", "1E+05"), ("float", (), [1e10, 1e5])),
        (("16777216.0", None), ("float", None, [[16777216.0], []])),
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
        (([1, "a"],), 1, "'a'"),
    ],
)
def test_mixtures_are_refused(cells: tuple[Any, ...], row: int, value: str) -> None:
    message = f"t, row {row}: column 'c' must hold numbers or texts of one kind, or lists of them, got {value}."
    assert refusal(DataError, infer, *cells) == message


@pytest.mark.parametrize(
    "odd",
    [
        *("12_34", "1_0.5", "01234", "-01", "00", "00.5", "1E5", "1e5", "2E3", "12e34", "0x1F", "1,5", "+12"),
        *("-0", "+1.5"),
        *("12345678901234567890", "9223372036854775808", "-9223372036854775809", "123456789.0"),
        *("-16777217.00", "1e400"),
        *("Nan", "nan", "NaN", "Inf", "inf", "-inf", "Infinity", ".5", "1.", "1e+39", "١٢", "１", "٣.٥"),
        *(" 12", "12 ", "1.5 ", "\t3", "\xa07"),
    ],
)
def test_what_would_come_back_in_another_spelling_is_text(odd: str) -> None:
    """The rest of its column is then text as well."""
    assert infer("12", "0.5", odd, text=True) == ("bytes", (), ["12", "0.5", odd])
    assert infer(odd, "7", text=True) == ("bytes", (), [odd, "7"])


def test_a_target_may_be_spelled_in_any_way() -> None:
    kinds = CellKinds(from_text=True)
    kinds.add(["1E5", "007", " 2"], [(0, 1), (0, 2), (0, 3)])
    column = kinds.infer_target("price", ["t"])
    assert [column.convert(cell) for cell in ("1E5", "007", " 2")] == [100000.0, 7.0, 2.0]
    assert "must be a number that float32 can hold" in refusal(DataError, column.convert, 10**400)
