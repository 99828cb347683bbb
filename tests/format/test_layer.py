"""The entries of layers: what is written is read, and damage is named."""

from dataclasses import replace

import numpy as np
import pytest

from tfpipe.errors import FormatError
from tfpipe.format.layer import Layer, decode_layer, layer_file, list_numbers
from tfpipe.format.view import Hidden

HIDDEN = Hidden(np.array([3, 4, 90_000]), np.array([1, -1, 0], np.int32), np.array([700, 20_000_000_000, 9]))
APPEND = Layer(2, "append", "2026-11-26T07:40:00Z", "1.0", {"train": "ab"}, {"train": 5}, appended={"train": "cd"})
DELETE = Layer(3, "delete", "2026-11-26T07:41:00Z", "1.0", {"train": "ef"}, {"train": 3}, {"train": HIDDEN})


def count() -> dict[str, int]:
    return {"train": 100_000}


@pytest.mark.parametrize("layer", [APPEND, DELETE], ids=lambda layer: layer.kind)
def test_an_entry_is_read_as_it_was_written(layer: Layer) -> None:
    read = decode_layer(layer.encode(), "x", layer.number, count)
    assert replace(read, hidden={}).encode() == replace(layer, hidden={}).encode()
    assert read.hidden.keys() == layer.hidden.keys()
    for split, hidden in layer.hidden.items():
        for name in ("numbers", "labels", "sizes"):
            np.testing.assert_array_equal(getattr(read.hidden[split], name), getattr(hidden, name))
            assert getattr(read.hidden[split], name).dtype == getattr(hidden, name).dtype


@pytest.mark.parametrize("layer", [APPEND, DELETE], ids=lambda layer: layer.kind)
def test_every_flipped_bit_is_noticed(layer: Layer) -> None:
    data = layer.encode()
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(FormatError, match=r"^flowers/layers/9"):
            decode_layer(bytes(damaged), "flowers/layers/9", layer.number, count)
    with pytest.raises(FormatError):
        decode_layer(data[:-1], "x", layer.number, count)


def test_an_entry_under_another_number_is_refused() -> None:
    with pytest.raises(FormatError, match=r"^x: layer must be a whole number of at least 5 and at most 5, got 3\.$"):
        decode_layer(DELETE.encode(), "x", 5, count)


def test_only_entries_count() -> None:
    assert list_numbers(["10.layer", "2", "2.layer", "3.layer.12ab.tmp", "0.layer", "x.layer"]) == [2, 10]
    assert layer_file(2) == "layers/2.layer"


def test_an_entry_that_hides_more_records_than_there_are_takes_no_memory() -> None:
    numbers = np.arange(2_000_000)
    hidden = Hidden(numbers, np.zeros(len(numbers), np.int32), numbers)
    data = replace(DELETE, hidden={"train": hidden}).encode()
    with pytest.raises(FormatError) as caught:
        decode_layer(data, "flowers/layers/3.layer", 3, count)
    assert str(caught.value) == (
        "flowers/layers/3.layer was made for other shards: it names 2,000,000 records of 'train', and there are "
        "100,000. Copy it again from the dataset."
    )
