"""The budget of files from elsewhere."""

import io
import json

from tests.refusals import refusal
from tfpipe.system.budget import ROW, Budget, OverBudget


def test_what_is_taken_is_gone() -> None:
    given = Budget(bytes=10, items=3)
    budget = given.renew()
    budget.take(bytes=10, items=2)
    budget.take(items=1)
    assert refusal(OverBudget, budget.take, items=1) == "it has too many parts"
    assert refusal(OverBudget, budget.take, bytes=4) == "it takes too many bytes"
    assert (given.bytes, given.items, given.renew(5).bytes) == (10, 3, 15)


def test_json_is_parsed_within_the_budget() -> None:
    budget, deep, much = (
        Budget(items=8, depth=3),
        "nested more than 3 levels deep",
        "more than 8 lists, objects and commas",
    )
    for text in ("[[[1]]]", '[[], {"a": []}, []]', '"[[[["', "[1, 2]", "null"):
        assert budget.parse_json(text) == json.loads(text)
    for text, reason in (
        ("[[[[1]]]]", f"it is {deep}"),
        ('{"a": {"b": [{}]}}', f"it is {deep}"),
        ("[" * 100_000, f"it has {much}"),
        ("[0,0,0,0,0,0,0,0,0]", f"it has {much}"),
    ):
        assert refusal(OverBudget, budget.parse_json, text) == reason
    whole = "[" * 100_000 + "]" * 100_000  # too deep for Python's parser
    assert refusal(OverBudget, ROW.parse_json, whole) == "it is nested more than 100 levels deep"
    assert "Expecting value" in refusal(ValueError, ROW.parse_json, "[,]")


def test_a_file_is_read_as_far_as_the_budget_goes() -> None:
    file = Budget(bytes=3 << 20).limit(io.BytesIO(bytes(4 << 20)))
    assert len(file.read(3 << 20)) == 3 << 20
    assert refusal(OverBudget, file.read, 1) == "it takes too many bytes"
    file = Budget(bytes=3 << 20).limit(io.BytesIO(bytes(4 << 20)))
    assert (file.seek(2 << 20), len(file.read(10)), file.tell()) == (2 << 20, 10, (2 << 20) + 10)
    assert refusal(OverBudget, file.seek, (3 << 20) + 1) == "it takes too many bytes"
