"""`tfpipe.format.json_reader`: what a document may take, and how its mistakes are named."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import pytest

from tests.refusals import refusal
from tfpipe.errors import FormatError
from tfpipe.format.json_reader import MAX_ITEMS, MAX_TEXT, at_most, parse_json, read, refuse, whole, wrong


def refused(text: str) -> str:
    return refusal(FormatError, parse_json, text, "m.json")


@pytest.mark.slow
def test_as_many_parts_as_allowed_are_read() -> None:
    assert len(parse_json("[" + ",".join("0" * MAX_ITEMS) + "]", "m.json")) == MAX_ITEMS


@pytest.mark.parametrize(
    "text", ["[" + ",".join("0" * (MAX_ITEMS + 1)) + "]", "[{}" + "]" * MAX_ITEMS + "{}" * MAX_ITEMS]
)
def test_more_parts_are_refused_before_they_take_memory(text: str) -> None:
    assert refused(text) == "m.json must have at most 1,000,000 lists, objects and commas."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "m.json must name a key once in an object, got 'a' twice."),
        ('[{"x": {"": 1, "": 1}}]', "m.json must name a key once in an object, got '' twice."),
        ("[" * 100_000, "m.json is nested too deeply."),
        ("-Infinity", "m.json: -Infinity is not a number that JSON allows."),
        ("9" * 5000, "m.json holds a number with too many digits."),
        ("\ufeff{}", "m.json is not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig): line 1 column 1 (char 0)."),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    assert refused(text) == message


@dataclass(frozen=True)
class Inner:
    count: int
    word: Literal["a", "b"] = "a"
    size: float | None = None
    beside: int = field(default=0, compare=False)
    optional = ("word", "size")

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ValueError("it must be another number.")


class Row(NamedTuple):
    name: str
    number: Annotated[int, whole(1, 9)]


@dataclass(frozen=True)
class Outer:
    inner: Mapping[str, Inner]
    rows: tuple[Row, ...]
    flag: bool
    values: Mapping[str, object]
    short: Annotated[list[int], at_most(2, "counts")]


DOCUMENT = {
    "inner": {"x": {"count": 1}, "y z": {"count": 2, "word": "b", "size": 3, "beside": 5, "new": [1]}},
    "rows": [{"name": "one", "number": 1, "new": 0}, {"name": "two", "number": 2}],
    "flag": True,
    "values": {"a": None, "b": 1.5, "c": "\ud800"},
    "short": [1, 2],
}


def test_a_document_becomes_a_dataclass() -> None:
    made = read(DOCUMENT, Outer)
    assert made == Outer(
        {"x": Inner(1), "y z": Inner(2, "b", 3)}, (Row("one", 1), Row("two", 2)), True, DOCUMENT["values"], [1, 2]
    )
    assert made.inner["y z"].beside == 0  # no document has it


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("inner",), [], "inner must be an object, got []."),
        (("inner", "x"), {}, "inner.x.count is missing."),
        (("inner", "x", "count"), True, "inner.x.count must be a whole number of at least 0, got True."),
        (
            ("inner", "x", "count"),
            2**63,
            "inner.x.count must be a whole number of at least 0, got 9223372036854775808.",
        ),
        (("inner", "x", "count"), 13, "inner.x: it must be another number."),
        (("inner", "y z", "word"), "c", "inner.['y z'].word must be one of a, b, got 'c'."),
        (("inner", "y z", "word"), [], "inner.['y z'].word must be one of a, b, got []."),
        (("inner", "y z", "size"), math.nan, "inner.['y z'].size must be a number of at least 0, got nan."),
        (("rows",), {}, "rows must be a list, got {}."),
        (("rows", 1), 3, "rows[1] must be an object, got 3."),
        (("rows", 1), {"number": 1}, "rows[1].name is missing."),
        (("rows", 1, "name"), 3, "rows[1].name must be text, got 3."),
        (("rows", 1, "number"), 0, "rows[1].number must be a whole number of at least 1 and at most 9, got 0."),
        (("flag",), 1, "flag must be true or false, got 1."),
        (("values", "a"), math.inf, "values.a must be text, a number, true, false or null, got inf."),
        (("short",), [1, 2, 3], "short must be a list of at most 2 counts, got [1, 2, 3]."),
        (("short", 1), -1, "short[1] must be a whole number of at least 0, got -1."),
    ],
    ids=str,
)
def test_a_wrong_value_is_named(keys: tuple[Any, ...], value: object, message: str) -> None:
    document = here = copy.deepcopy(DOCUMENT)
    for key in keys[:-1]:
        here = here[key]
    here[keys[-1]] = value
    assert refusal(FormatError, read, document, Outer, "m") == f"m: {message}"


def test_long_texts_are_refused_and_long_paths_shown_in_short() -> None:
    assert read("x" * MAX_TEXT, str) == "x" * MAX_TEXT
    with pytest.raises(FormatError, match=r"^m: a must be text of at most 10,000 characters, got 'xxxxx"):
        read("x" * (MAX_TEXT + 1), str, "m", "a")
    with pytest.raises(
        FormatError, match=r"^m: a must be an object whose keys have at most 10,000 characters, got {'xx"
    ):
        read({"x" * (MAX_TEXT + 1): 1}, dict[str, int], "m", "a")
    assert refusal(FormatError, read, {}, Inner, "m", "a" * 1000) == f"m: {'a' * 100}…{'a' * 94}.count is missing."
    for error in (refuse("m", "a" * 10**6, "no."), wrong("m", "a" * 10**6, "text", 10**5000)):
        assert len(str(error)) < 300
