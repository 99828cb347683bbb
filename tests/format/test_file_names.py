"""`tfpipe.format.file_names`: names of shards and splits."""

import pytest

from tests.refusals import refusal
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names


def test_names():
    assert file_names.shard_name("train", 3, 8) == "train-00003-of-00008.tfrecord"
    assert file_names.parse_shard_name("train-00003-of-00008.tfrecord") == ("train", 3, 8)
    assert file_names.index_name("train-00003-of-00008.tfrecord") == "index/train-00003-of-00008.idx"


@pytest.mark.parametrize(
    "name",
    [
        *("", "train.tfrecord", "train-3-of-8.tfrecord", "../train-00003-of-00008.tfrecord"),
        *("a/train-00003-of-00008.tfrecord", "train-00003-of-00008.tfrecord\n", "train-00003-of-00008.tfrecord.tmp"),
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(FormatError) as error:
        file_names.parse_shard_name(name)
    assert str(error.value) == f"A shard must be named like train-00003-of-00008.tfrecord, got {name!r}."


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a/b", "..", "träin", "train\n"])
def test_other_splits_are_refused(name):
    assert refusal(ConfigError, file_names.check_split_name, name) == (
        "A split's name must be letters, digits and underscores and begin with a letter, got " + f"{name!r}."
    )


def cut(lines: list[bytes], part_bytes: int = file_names.LIST_PART_BYTES) -> list[list[bytes]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_names, "LIST_PART_BYTES", part_bytes)
        return [list(part) for part in file_names.cut_list(lines)]


def test_a_part_of_a_list_has_the_lines_that_begin_in_its_bytes() -> None:
    lines = [b"%03d\n" % number for number in range(10)]
    assert cut(lines) == [lines]
    assert cut(lines, 40) == [lines]
    assert cut(lines, 39) == [lines]
    assert cut(lines, 36) == [lines[:9], lines[9:]]
    assert cut(lines, 15) == [lines[:4], lines[4:8], lines[8:]]
    assert cut([], 4) == []


def test_a_part_behind_a_long_line_is_empty() -> None:
    assert cut([b"a long line\n", b"b\n"], 4) == [[b"a long line\n"], [], [], [b"b\n"]]
    assert cut([b"b\n", b"a long line\n"], 4) == [[b"b\n", b"a long line\n"]]


def test_parts_of_a_list_have_names() -> None:
    assert [file_names.list_part_name(file_names.DUPLICATES, part) for part in (0, 1, 12)] == [
        "duplicates.jsonl",
        "duplicates.00001.jsonl",
        "duplicates.00012.jsonl",
    ]
    names = ("duplicates.jsonl", "duplicates.00001.jsonl", "duplicates.00000.jsonl", "duplicates.1.jsonl", "x.jsonl")
    assert [file_names.parse_list_part(file_names.DUPLICATES, name) for name in names] == [0, 1, None, None, None]


def test_missing_parts_of_a_list_are_found() -> None:
    first, second, third = (file_names.list_part_name(file_names.DUPLICATES, part) for part in range(3))
    assert file_names.find_missing_parts(file_names.DUPLICATES, []) == [first]
    assert file_names.find_missing_parts(file_names.DUPLICATES, ["manifest.json", first, second]) == []
    assert file_names.find_missing_parts(file_names.DUPLICATES, [first, third]) == [second]
