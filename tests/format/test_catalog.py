"""The catalog: what is written is read, a change takes the place of its name, and damage is named."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.refusals import refusal
from tfpipe.errors import DataError, FormatError
from tfpipe.format.catalog import Catalog, Entry, decode_catalog
from tfpipe.format.view import HIDDEN, encode_headed

ROWS = np.array([(3, 1, 700), (4, -1, 20_000_000_000), (90_000, 0, 9)], HIDDEN)
APPEND = Entry("append", "1a" * 32, 2, "", {"train": "ab"}, {"train": "cd"}, {"train": 5})
DELETE = Entry("delete", "2b" * 32, 3, "", {"train": "ef"}, {}, {"train": 3}, {"train": ROWS, "test": ROWS})
COLUMN = Entry("column", "3c" * 32, 1, "words", {"train": "ab"}, {"train": "12"})
VIEW = Entry("view", "4d" * 32, 0, "large.1", {"train": "ab"})
AGAIN = Entry("delete", "5e" * 32, 4, hidden={"train": ROWS[1:2]})
CATALOG = Catalog((APPEND, DELETE, COLUMN, VIEW, AGAIN))


def count(catalog: Catalog) -> dict[str, int]:
    return {"train": 100_000 * len(catalog.layers), "test": 100_000}


def test_it_is_read_as_it_was_written() -> None:
    read = decode_catalog(CATALOG.encode(), "x", count)
    assert read.encode() == CATALOG.encode()
    for one, other in zip(read.entries, CATALOG.entries, strict=True):
        assert replace(one, hidden={}).path == other.path
        assert one.hidden.keys() == other.hidden.keys()
        for split, hidden in other.hidden.items():
            np.testing.assert_array_equal(one.hidden[split], hidden)
            assert one.hidden[split].dtype == HIDDEN
    own = ("columns/words-3c3c3c3c3c3c", "views/large.1-4d4d4d4d4d4d.view")
    assert [entry.path for entry in read.entries] == ["layers/2-1a1a1a1a1a1a", "catalog", *own, "catalog"]
    assert [layer.number for layer in read.layers] == [2, 3, 4]


def test_a_change_takes_the_place_of_its_name() -> None:
    other = replace(COLUMN, job="6f" * 32)
    second = replace(other, number=2)
    changed = CATALOG.change([other, second])
    assert changed.entries == (APPEND, DELETE, VIEW, AGAIN, other, second)
    assert (changed.find("column", "words", 1), changed.find("column", "words", 3)) == (other, None)
    assert (changed.list_names("column"), changed.list_names("view")) == (["words"], ["large.1"])
    assert decode_catalog(changed.encode(), "x", count).find("column", "words", 2) is not None
    assert changed.cut("x", 1).entries == (VIEW, other)
    assert changed.cut("x", 4).entries == changed.entries
    for number in (0, 5):
        assert refusal(DataError, changed.cut, "x", number) == f"x has no layer {number}; its layers are 1 to 4."


@pytest.mark.parametrize(
    ("at", "name", "value", "message"),
    [
        (0, "kind", "move", "entries[0].kind must be one of append, delete, column, view, got 'move'."),
        (0, "number", 3, "entries[0].number must be a whole number of at least 2 and at most 2, got 3."),
        (1, "number", 2, "entries[1].number must be a whole number of at least 3 and at most 3, got 2."),
        (2, "number", 4, "entries[2].number must be a whole number of at least 1 and at most 3, got 4."),
        (3, "number", 1, "entries[3].number must be a whole number of at least 0 and at most 0, got 1."),
        (2, "name", "../x", "entries[2].name must be the name of a column, got '../x'."),
        (3, "name", "7", "entries[3].name must be the name of a view, got '7'."),
        (0, "name", "x", "entries[0].name must be empty for a layer, got 'x'."),
        (2, "job", "../../x", "entries[2].job must be a SHA-256 in hexadecimal digits, got '../../x'."),
        (0, "below", {"train": 1}, "entries[0].below.train must be text, got 1."),
    ],
)
def test_wrong_entries_are_named(at: int, name: str, value: object, message: str) -> None:
    line, _, body = CATALOG.encode().partition(b"\n")
    header = json.loads(line)
    header["entries"][at][name] = value
    harmed = encode_headed(header.pop("format"), {"entries": header["entries"]}, [body])  # with its own checksum
    assert refusal(FormatError, decode_catalog, harmed, "x", count) == f"x: {message}"


def test_an_entry_that_hides_more_records_than_there_are_takes_no_memory() -> None:
    data = Catalog((APPEND, replace(DELETE, hidden={"train": np.zeros(200_000, HIDDEN)}))).encode()
    assert refusal(FormatError, decode_catalog, data, "flowers/catalog", count) == (
        "flowers/catalog was made for other shards: it names 200,000 records of 'train', and there are 100,000. Copy "
        "it again from the dataset."
    )
