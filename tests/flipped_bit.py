"""A copy of a dataset in which one bit of a shard is another one."""

import shutil
from pathlib import Path


def copy_with_flipped_bit(dataset: Path, copy: Path, shard: str) -> Path:
    shutil.copytree(dataset, copy)
    flip_bit(copy / shard, (copy / shard).stat().st_size // 2)
    return copy


def flip_bit(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
