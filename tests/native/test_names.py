"""Hashes and sizes of many names by the native library, against Python's own one at a time."""

import os
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tfpipe.native import names


@pytest.mark.parametrize("key", [b"", b"0", b"split", bytes(range(64))])
def test_hashes_are_those_of_pythons_blake2b(key: bytes) -> None:
    data = np.random.default_rng(1).bytes(100_000)
    sizes = [*range(140), 255, 256, 257, 383, 384, 385, 5000, 0]
    offsets = np.cumsum([0, *sizes])
    texts = [data[begin:end] for begin, end in pairwise(offsets)]
    expected = [int.from_bytes(blake2b(text, digest_size=8, key=key).digest(), "little") for text in texts]
    assert names.hash_texts(data, offsets, key).tolist() == expected
    assert names.hash_texts(data, offsets[3:9], key).tolist() == expected[3:8]
    assert names.hash_texts(None, np.zeros(1, np.int64), key).tolist() == []


def test_sizes_of_files_links_and_other_things(tmp_path: Path) -> None:
    for name, size in {"a": 0, "b": 12, os.fsdecode(b"caf\xe9"): 7}.items():
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "folder").mkdir()
    (tmp_path / "to b").symlink_to("b")
    (tmp_path / "to itself").symlink_to("to itself")
    os.mkfifo(tmp_path / "pipe")
    paths = ["b", "a", os.fsdecode(b"caf\xe9"), "to b", str(tmp_path / "b"), "folder", "pipe", "to itself", "nowhere"]
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert names.read_sizes(folder, paths).tolist() == [12, 0, 7, 12, 12, -2, -2, -1, -1]
        assert names.read_sizes(folder, []).tolist() == []
    finally:
        os.close(folder)
