"""Objects of large JSON files, one by one, against Python's own parser."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.inputs.annotations import coco
from beam_jobs.inputs.annotations.coco import Element, iterate_objects
from tfpipe.errors import DataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), max_size=5)


@pytest.fixture(autouse=True, scope="module")
def small_reads(tmp_path_factory) -> Any:
    """Lets a value lie across many reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coco, "_READ_CHARS", 7)
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("json") / "a.json"


@settings(max_examples=25)
@given(OBJECTS, OBJECTS, VALUES, st.sampled_from([None, 1]), st.booleans())
def test_elements_are_those_of_the_parser(path, first, second, other, indent, is_ascii):
    value = {"x": first, "other": other, "more": [1, "2", [3]], "y": second, "number": 1234567}
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=is_ascii), encoding="utf-8")
    expected = [Element(name, number, values) for name in "xy" for number, values in enumerate(value[name], start=1)]
    assert list(iterate_objects(str(path), {"x", "y"})) == expected


@pytest.mark.parametrize("value", ["0.0", "-12.5e-7", "1E5", "-0", "true", "12345678901234567890"])
@pytest.mark.parametrize("spaces", range(8))
def test_a_value_may_be_cut_anywhere(path: Path, value: str, spaces: int) -> None:
    path.write_text('{"a": ' + " " * spaces + value + ', "x": [{"b": ' + value + "}]}")
    assert [element.values for element in iterate_objects(str(path), {"x"})] == [{"b": json.loads(value)}]


def test_other_forms_of_the_same_file(path: Path) -> None:
    path.write_bytes(b'\xef\xbb\xbf \n{ "x" : [ {} , {"a":1} ] }\n')
    assert [element.values for element in iterate_objects(str(path), {"x"})] == [{}, {"a": 1}]
    path.write_bytes(b"{}")
    assert list(iterate_objects(str(path), {"x"})) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "'{' must stand where the end does"),
        (b"[]", "'{' must stand where '[' does"),
        (b'{"x": [{}', "']' must stand where the end does"),
        (b'{"x": [{} {}]}', "']' must stand where '{' does"),
        (b'{"x": [{"a": 1', "Expecting ',' delimiter at character 15"),
        (b'{"x" [', "':' must stand where '[' does"),
        (b'{"a": 1', "'}' must stand where the end does"),
        (b'{"a": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 7: invalid start byte"),
    ],
)
def test_a_damaged_file_is_refused(path: Path, data: bytes, reason: str) -> None:
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        list(iterate_objects(str(path), {"x"}))
    assert str(caught.value) == f"{path} is not a valid JSON object in UTF-8 ({reason})."


def test_limits_are_kept(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(coco, "_MAX_CHARS", 100)
    path.write_text(json.dumps({"x": [{"a": "b" * 200}]}))
    with pytest.raises(DataError, match=r"\(a value is longer than 16 MiB, or damaged\)\.$"):
        list(iterate_objects(str(path), {"x"}))
    monkeypatch.undo()
    path.write_text('{"x": [' + "[" * 100_000)
    with pytest.raises(DataError, match="is not a valid JSON object in UTF-8"):
        list(iterate_objects(str(path), {"x"}))
    path.write_text('{"x": [1]}')
    with pytest.raises(DataError, match=rf"^{path}: 'x' must hold objects, but number 1 is 1\.$"):
        list(iterate_objects(str(path), {"x"}))
