"""A copy of a dataset in which one bit of a shard is another one."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_with_flipped_bit(dataset: Path, copy: Path, shard: str) -> Path:
    """Copies a dataset and flips a bit in the middle of one shard. Returns the copy."""
    shutil.copytree(dataset, copy)
    data = bytearray((copy / shard).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / shard).write_bytes(data)
    return copy
