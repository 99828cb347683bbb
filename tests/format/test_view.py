"""The file of a view."""

import json
import pickle
import zlib

import numpy as np
import pytest

from tests.refusals import refusal
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.view import View, ViewSplit, check_view_name, decode_view, encode_headed


def make_split(numbers: list[int], weights: list[int] | None = None, stored: int = 10) -> ViewSplit:
    table = None if weights is None else np.array(weights, np.uint32)
    return ViewSplit(np.array(numbers, np.int64), table, stored, 700, (2, 1), "f1")


VIEW = View("few", {"train": make_split([0, 3, 9], [65536, 0, 98304]), "test": make_split([])}, {"where": "größer"})
RECORDS = {"train": 20, "test": 10}


def test_a_view_comes_back_as_it_was() -> None:
    found = decode_view(VIEW.encode(), "few.view", RECORDS)
    assert (found.name, dict(found.made_from), list(found.splits)) == ("few", {"where": "größer"}, ["train", "test"])
    train, test = found.splits["train"], found.splits["test"]
    assert train.numbers.tolist() == [0, 3, 9]
    assert train.weights.tolist() == [65536, 0, 98304]
    assert (train.stored_records, train.bytes, train.class_counts, train.fingerprint) == (10, 700, (2, 1), "f1")
    assert (test.records, test.weights, test.epoch_records) == (0, None, 0)


@pytest.mark.parametrize(
    ("weights", "epoch"), [(None, 3), ([65536, 0, 98304], 3), ([1, 1, 32765], 0), ([1, 1, 32766], 1)]
)
def test_an_epoch_reads_the_sum_of_the_weights_rounded(weights: list[int] | None, epoch: int) -> None:
    assert make_split([0, 3, 9], weights).epoch_records == epoch


def test_pickled_splits_are_small_and_digests_are_those_of_records_and_weights() -> None:
    split = make_split(list(range(0, 80_000, 2)), stored=80_000)
    assert len(pickle.dumps(split)) < 500  # 10,000 bytes of bits, which are alike
    assert pickle.loads(pickle.dumps(split)).numbers.tolist() == split.numbers.tolist()
    assert pickle.loads(pickle.dumps(split)).digest == split.digest
    splits = [make_split([0, 1]), make_split([0, 2]), make_split([0, 1], [1, 1]), make_split([0, 1], [1, 2])]
    assert len({split.digest for split in splits}) == 4


def test_every_flipped_byte_is_found() -> None:
    data = VIEW.encode()
    body = data.index(b"\n") + 1
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        found = refusal(FormatError, decode_view, bytes(damaged), "few.view", RECORDS)
        said = "few.view is damaged: its bytes have another checksum. Make the view again by `tfpipe view`."
        assert found == said if at >= body else found.startswith("few.view")
    assert len(data) > body


@pytest.mark.parametrize(
    ("change", "value", "reason"),
    [
        ("records", 2, "few.view: splits.train: it is damaged: it has 3 records and not 2."),
        ("stored_records", 17, "few.view: splits.train: it is damaged: it does not decompress to 3 bytes."),
        ("records", 11, "few.view: splits.train.records must be a whole number of at least 0 and at most 10, got 11."),
        (
            *("stored_records", 1 << 40),
            "few.view was made for other shards: it names 1,099,511,627,776 records of 'train', and there are 20. Make "
            "it again by `tfpipe view`.",
        ),
        ("fingerprint", 3, "few.view: splits.train.fingerprint must be text, got 3."),
    ],
)
def test_a_header_that_lies_is_refused(change: str, value: object, reason: str) -> None:
    text, _, body = VIEW.encode().partition(b"\n")
    header = json.loads(text)
    header["splits"]["train"][change] = value
    del header["format"], header["sha256"]
    harmed = encode_headed("tfpipe view 1", header, [body])
    assert refusal(FormatError, decode_view, harmed, "few.view", RECORDS) == reason


def test_another_file_and_one_that_would_take_much_memory_are_refused() -> None:
    with pytest.raises(FormatError, match=r"^x is not a view of tfpipe, or is damaged\.$"):
        decode_view(b"\xff\xd8\xff", "x", RECORDS)
    with pytest.raises(FormatError, match=r"^x: format must be 'tfpipe view 1', got 'tfpipe view 2'\.$"):
        decode_view(VIEW.encode().replace(b"tfpipe view 1", b"tfpipe view 2"), "x", RECORDS)
    bomb = zlib.compress(bytes(50_000_000))
    with pytest.raises(zlib.error):
        zlib.decompress(bomb[:10])
    rebuild, (_, weights, *facts) = make_split([0]).__reduce__()
    assert "does not decompress to 2 bytes" in refusal(ValueError, rebuild, bomb, weights, *facts)


def test_names() -> None:
    assert check_view_name("v2.large-ones") == "v2.large-ones"
    for name in ("", ".hidden", "a/b", "a@b", "ä", "a" * 65):
        assert refusal(ConfigError, check_view_name, name).startswith("A view's name must have at most 64 letters")
