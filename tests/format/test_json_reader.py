"""`tfpipe.format.json_reader`: what a document may take, and how its mistakes are named."""

import pytest

from tests.refusals import refusal
from tfpipe.errors import FormatError
from tfpipe.format.json_reader import MAX_PARTS, MAX_TEXT, Node, parse_json


def refused(text: str) -> str:
    return refusal(FormatError, parse_json, text, "m.json")


@pytest.mark.slow
def test_as_many_parts_as_allowed_are_read() -> None:
    assert len(parse_json("[" + ",".join("0" * MAX_PARTS) + "]", "m.json").elements()) == MAX_PARTS


@pytest.mark.parametrize(
    "text", ["[" + ",".join("0" * (MAX_PARTS + 1)) + "]", "[{}" + "]" * MAX_PARTS + "{}" * MAX_PARTS]
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


def test_long_texts_are_refused() -> None:
    assert Node("x" * MAX_TEXT).text() == "x" * MAX_TEXT
    with pytest.raises(FormatError, match=r"^m: a must be text of at most 10,000 characters, got 'xxxxx"):
        Node("x" * (MAX_TEXT + 1), "a", "m").text()
    with pytest.raises(
        FormatError, match=r"^m: a must be an object whose keys have at most 10,000 characters, got {'xx"
    ):
        Node({"x" * (MAX_TEXT + 1): 1}, "a", "m").counts()


def test_a_deep_place_is_shown_in_short() -> None:
    node = parse_json("[" * 900 + "1" + "]" * 900, "m.json")
    for _ in range(900):
        (node,) = node.elements()
    with pytest.raises(FormatError) as caught:
        node.text()
    assert str(caught.value).startswith("m.json: [0][0][0]")
    assert str(caught.value).endswith("[0][0][0] must be text, got 1.")
    for error in (caught.value, node.refuse("no."), Node({}, "a" * 10**6).refuse("no.")):
        assert len(str(error)) < 300
    node = parse_json('{"a":' * 900 + "1" + "}" * 900, "m.json")
    for _ in range(900):
        node = node.field("a")
    with pytest.raises(FormatError, match=r"^m\.json: a[.a]+…[.a]+ must be text, got 1\.$"):
        node.text()
    assert refusal(FormatError, Node({}, "a" * 1000).field, "b") == "a" * 100 + "…" + "a" * 98 + ".b is missing."
