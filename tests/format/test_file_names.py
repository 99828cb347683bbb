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
    sentence = f"A shard must be named like train-00003-of-00008.tfrecord, got {name!r}."
    assert refusal(FormatError, file_names.parse_shard_name, name) == sentence


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a/b", "..", "träin", "train\n"])
def test_other_splits_are_refused(name):
    assert refusal(ConfigError, file_names.check_split_name, name) == (
        "A split's name must be letters, digits and underscores and begin with a letter, got " + f"{name!r}."
    )
