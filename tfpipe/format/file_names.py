"""The names of the files in a dataset directory.

```
flowers/
  train-00003-of-00008.tfrecord        one shard
  index/train-00003-of-00008.idx       its index, in a separate folder so that the glob `train-*` finds shards only
  manifest.json                        written last: its presence means that the dataset is complete
  features.json, dataset_info.json     the same for TensorFlow Datasets
  duplicates.jsonl                     exact duplicates, if there are any
  repair.json                          the losses, if `tfpipe repair` wrote the dataset
  quarantine/quarantined.jsonl         images that could not be repaired, if there are any
  quarantine/bytes/                    their bytes, if requested
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
WORK_DIR = ".tfpipe"  # the state that an unfinished run resumes from; removed once the manifest is written
INDEX_WORK_DIR = ".tfpipe-index"  # the working folder of `tfpipe index`, which does not resume

MAX_SHARDS = 100_000
"""The most shards of a dataset: 10 TB and more at the usual shard size. Reading such a manifest takes 80 MB."""

# TFDS names a split with \w+ and parses shard names back with it; ASCII keeps every file system happy.
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MAX_PATH = 4096
_SHARD = re.compile(r"([A-Za-z][A-Za-z0-9_]*)-([0-9]{5,9})-of-([0-9]{5,9})\.tfrecord")


class ShardName(NamedTuple):
    """The parts of a shard's file name."""

    split: str
    shard_index: int
    num_shards: int


def check_split_name(name: str) -> str:
    """Returns `name`. Raises `ConfigError` if it cannot name a split."""
    if not _SPLIT.fullmatch(name):
        raise ConfigError(
            f"A split's name must be letters, digits and underscores and begin with a letter, got {name!r}."
        )
    return name


def shard_name(split: str, shard_index: int, num_shards: int) -> str:
    """Returns a name like `train-00003-of-00008.tfrecord`, the field's convention, counted from 0."""
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}.tfrecord"


def parse_shard_name(name: str) -> ShardName:
    """Inverts `shard_name`. Raises `FormatError` for any other name."""
    match = _SHARD.fullmatch(name)
    if not match:
        raise FormatError(f"A shard must be named like train-00003-of-00008.tfrecord, got {name!r}.")
    return ShardName(match[1], int(match[2]), int(match[3]))


def check_foreign_name(name: str) -> str:
    """Returns the name of a shard that another program wrote. Raises `FormatError` if it could lead elsewhere.

    The file may be in a folder below the manifest's root, and nowhere else: `images/part-7`, never `../x`, `/etc/x` or
    `gs://bucket/x`.
    """
    parts = name.split("/")
    if len(name) > _MAX_PATH or not name.isprintable() or "://" in name or {"", ".", ".."} & set(parts):
        raise FormatError(f"A shard's name must be a relative path without . and .., got {name[:200]!r}.")
    return name


def index_name(shard: str) -> str:
    """Returns the path of a shard's index, relative to the dataset directory."""
    return f"{INDEX_DIR}/{shard.removesuffix('.tfrecord')}.idx"
