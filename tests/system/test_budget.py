"""The budget of files from elsewhere."""

import io

import pytest

from tests.refusals import refusal
from tfpipe.system.budget import ROW, Budget, OverBudget


def test_what_is_taken_is_gone() -> None:
    given = Budget(bytes=10, items=3)
    budget = given.renew()
    budget.take(bytes=10, items=2)
    budget.take(items=1)
    with pytest.raises(OverBudget, match=r"^it has too many parts$"):
        budget.take(items=1)
    with pytest.raises(OverBudget, match=r"^it takes too many bytes$"):
        budget.take(bytes=4)
    assert (given.bytes, given.items, given.renew(5).bytes) == (10, 3, 15)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[[[1]]]]", "it is nested more than 3 levels deep"),
        ('{"a": {"b": [{}]}}', "it is nested more than 3 levels deep"),
        ("[" * 100_000, "it has more than 8 lists, objects and commas"),
        ("[0,0,0,0,0,0,0,0,0]", "it has more than 8 lists, objects and commas"),
    ],
)
def test_json_beyond_the_budget(text: str, reason: str) -> None:
    assert refusal(OverBudget, Budget(items=8, depth=3).parse_json, text) == reason


@pytest.mark.parametrize("text", ["[[[1]]]", '[[], {"a": []}, []]', '"[[[["', "[1, 2]", "null"])
def test_json_within_the_budget(text: str) -> None:
    assert Budget(items=8, depth=3).parse_json(text) is not ...


def test_json_that_python_cannot_parse_for_its_depth() -> None:
    with pytest.raises(OverBudget, match=r"^it is nested more than 100 levels deep$"):
        ROW.parse_json("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="Expecting value"):
        ROW.parse_json("[,]")


def test_a_file_is_read_as_far_as_the_budget_goes() -> None:
    file = Budget(bytes=3 << 20).limit(io.BytesIO(bytes(4 << 20)))
    assert len(file.read(3 << 20)) == 3 << 20
    with pytest.raises(OverBudget, match=r"^it takes too many bytes$"):
        file.read(1)
    file = Budget(bytes=3 << 20).limit(io.BytesIO(bytes(4 << 20)))
    assert (file.seek(2 << 20), len(file.read(10)), file.tell()) == (2 << 20, 10, (2 << 20) + 10)
    with pytest.raises(OverBudget, match=r"^it takes too many bytes$"):
        file.seek((3 << 20) + 1)
