"""`tfpipe.format.file_names`: names of shards and splits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format import file_names


def test_names():
    assert file_names.shard_name("train", 3, 8) == "train-00003-of-00008.tfrecord"
    assert file_names.index_name("train-00003-of-00008.tfrecord") == "index/train-00003-of-00008.idx"


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,20}", fullmatch=True), st.integers(0, 10**7), st.integers(1, 10**7))
def test_round_trip(split, index, count):
    assert file_names.check_split_name(split) == split
    assert file_names.parse_shard_name(file_names.shard_name(split, index, count)) == (split, index, count)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "train.tfrecord",
        "train-3-of-8.tfrecord",
        "../train-00003-of-00008.tfrecord",
        "a/train-00003-of-00008.tfrecord",
        "train-00003-of-00008.tfrecord\n",
        "train-00003-of-00008.tfrecord.tmp",
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(FormatError) as error:
        file_names.parse_shard_name(name)
    assert str(error.value) == f"A shard must be named like train-00003-of-00008.tfrecord, got {name!r}."


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a/b", "..", "träin", "train\n"])
def test_other_splits_are_refused(name):
    with pytest.raises(ConfigError) as error:
        file_names.check_split_name(name)
    assert str(error.value) == (
        "A split's name must be letters, digits and underscores and begin with a letter, got " + f"{name!r}."
    )


def test_a_list_is_cut_at_the_ends_of_lines() -> None:
    lines = b"".join(b"%03d\n" % number for number in range(10))
    assert list(file_names.cut_list(lines)) == [lines]
    assert list(file_names.cut_list(lines, 40)) == [lines]
    assert list(file_names.cut_list(lines, 15)) == [lines[:12], lines[12:24], lines[24:36], lines[36:]]
    assert list(file_names.cut_list(b"a long line\nb\n", 4)) == [b"a long line\n", b"b\n"]
    assert list(file_names.cut_list(b"")) == []


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
