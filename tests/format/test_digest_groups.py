"""`tfpipe.format.digest_groups`; what it says of whole datasets is tested with the job and with repair."""

import json

import numpy as np

from tfpipe.format.digest_groups import equal_rows, list_duplicates


def test_equal_beginnings_are_not_enough() -> None:
    table = np.zeros((6, 32), np.uint8)
    table[[1, 4], 31] = 7
    table[2, 0] = 1
    table[3, 31] = 8
    assert equal_rows(table) == [[0, 5], [1, 4]]
    assert equal_rows(np.zeros((0, 32), np.uint8)) == []
    assert equal_rows(np.zeros((1, 32), np.uint8)) == []


def test_paths_are_asked_for_once_and_for_duplicates_only() -> None:
    table = np.arange(7 * 32, dtype=np.uint8).reshape(7, 32)
    table[[1, 4, 6]] = table[0]
    asked: list[tuple[int, list[int]]] = []

    def read_paths(shard: int, records: list[int]) -> list[str]:
        asked.append((shard, records))
        return [f"{shard}/{record}" for record in records]

    found, lines = list_duplicates(table, [("train", 2), ("train", 0), ("train", 2), ("test", 3)], read_paths, 5)
    assert asked == [(0, [0, 1]), (3, [0, 2])]
    assert (found.within, found.across, found.dropped) == ({"test": 1, "train": 1}, 1, 5)
    (line,) = map(json.loads, lines)
    assert line["records"] == [
        {"split": "train", "index": 0, "path": "0/0"},
        {"split": "train", "index": 1, "path": "0/1"},
        {"split": "test", "index": 0, "path": "3/0"},
        {"split": "test", "index": 2, "path": "3/2"},
    ]
    found, lines = list_duplicates(table[:0], [], read_paths, 0)
    assert (found.within, found.across, list(lines)) == ({}, 0, [])
