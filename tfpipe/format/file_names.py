"""Names of the files in a dataset directory.

```
flowers/
  train-00003-of-00008.tfrecord        one shard
  index/train-00003-of-00008.idx       where its records begin; apart, so that a glob `train-*` finds shards only
  manifest.json                        written last: its presence means complete
  features.json, dataset_info.json     the same for TensorFlow Datasets
  duplicates.jsonl                     exact duplicates, where there are any
  repair.json                          what was lost, where `tfpipe repair` wrote the dataset
  quarantine/quarantined.jsonl         images that could not be repaired, where there are any
  quarantine/bytes/                    their bytes, where that was asked for
```
"""

import re
from typing import NamedTuple

from tfpipe.errors import ConfigError, FormatError

MANIFEST = "manifest.json"
TFDS_FEATURES = "features.json"
TFDS_INFO = "dataset_info.json"
DUPLICATES = "duplicates.jsonl"
REPAIR = "repair.json"
INDEX_DIR = "index"
QUARANTINE_DIR = "quarantine"
QUARANTINE = "quarantine/quarantined.jsonl"
QUARANTINED_BYTES_DIR = "quarantine/bytes"
INDEX_WORK_DIR = ".tfpipe-index"  # the same of `tfpipe index`, which starts anew
WORK_DIR = ".tfpipe"  # what an unfinished run needs to go on; gone once the manifest is written

MAX_SHARDS = 100_000
"""Of a dataset: 10 TB and more in shards of the usual size, and 80 MB in memory for a moment to read the manifest."""

# TFDS names a split with \w+ and parses shard names back with it; ASCII keeps every file system happy.
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MAX_PATH = 4096
_SHARD = re.compile(r"([A-Za-z][A-Za-z0-9_]*)-([0-9]{5,9})-of-([0-9]{5,9})\.tfrecord")


class ShardName(NamedTuple):
    """What a shard's file name says."""

    split: str
    shard_index: int
    num_shards: int


def check_split_name(name: str) -> str:
    """Returns `name`, or raises `ConfigError` where it cannot name a split."""
    if not _SPLIT.fullmatch(name):
        raise ConfigError(
            f"A split's name must be letters, digits and underscores and begin with a letter, got {name!r}."
        )
    return name


def shard_name(split: str, shard_index: int, num_shards: int) -> str:
    """`train-00003-of-00008.tfrecord`, counted from 0: the field's convention, with room for 99,999 and more."""
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}.tfrecord"


def parse_shard_name(name: str) -> ShardName:
    """The inverse of `shard_name`; raises `FormatError` for anything else."""
    match = _SHARD.fullmatch(name)
    if not match:
        raise FormatError(f"A shard must be named like train-00003-of-00008.tfrecord, got {name!r}.")
    return ShardName(match[1], int(match[2]), int(match[3]))


def check_foreign_name(name: str) -> str:
    """Returns the name of a shard that something else wrote, or raises `FormatError` where it could lead elsewhere.

    It may lie in folders below the place that the manifest names, and nowhere else: `images/part-7`, never `../x`,
    `/etc/x` or `gs://bucket/x`.
    """
    parts = name.split("/")
    if len(name) > _MAX_PATH or not name.isprintable() or "://" in name or {"", ".", ".."} & set(parts):
        raise FormatError(f"A shard's name must be a relative path without . and .., got {name[:200]!r}.")
    return name


def index_name(shard: str) -> str:
    """The index of a shard, relative to the dataset directory."""
    return f"{INDEX_DIR}/{shard.removesuffix('.tfrecord')}.idx"
