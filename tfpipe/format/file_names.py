"""The names of the files in a dataset directory: `train-00003-of-00008.tfrecord`, indexes, the manifest, and others."""

import re
from collections.abc import Iterable

from tfpipe.errors import ConfigError, FormatError

MANIFEST = "manifest.json"
CATALOG = "catalog"
TFDS_FEATURES = "features.json"
TFDS_INFO = "dataset_info.json"
DUPLICATES = "duplicates.jsonl"
REPAIR = "repair.json"
INDEX_DIR = "index"
COLUMNS_DIR = "columns"
LAYERS_DIR = "layers"
QUARANTINE_DIR = "quarantine"
QUARANTINE = "quarantine/quarantined.jsonl"
QUARANTINED_BYTES_DIR = "quarantine/bytes"
WORK_DIR = ".tfpipe"  # the state that an unfinished run resumes from; removed once the manifest is written
OPAQUE = "opaque.json"  # the result of `tfpipe reshard --opaque`, which never parses a record
INDEX_WORK_DIR = ".tfpipe-index"  # the working folder of `tfpipe index`, which does not resume

MAX_SHARDS = 100_000
"""The most shards of a dataset: 10 TB and more at the usual shard size. Reading such a manifest takes 80 MB."""

# TFDS names a split with \w+ and parses shard names back with it; ASCII works on every file system.
_SPLIT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MAX_PATH = 4096
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""The names that datasets use for the three splits, and the split that each means."""

_COLUMN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # no dot, which marks working folders
_SHARD = re.compile(r"([A-Za-z][A-Za-z0-9_]*)-([0-9]{5,9})-of-([0-9]{5,9})\.tfrecord")
_SIDECAR = re.compile(r"(.*/)?([^/]+\.jsonl?|([^/]+\.)?labels\.txt|catalog|index/[^/]+\.(idx|parquet))")
_INNER_FOLDER = re.compile(rf"({LAYERS_DIR}/[0-9]+|{COLUMNS_DIR}/{_COLUMN.pattern})-[0-9a-f]+")


def check_split_name(name: str) -> str:
    """Returns `name`. Raises `ConfigError` if it cannot name a split."""
    if not _SPLIT.fullmatch(name):
        raise ConfigError(
            f"A split's name must be letters, digits and underscores and begin with a letter, got {name!r}."
        )
    return name


def name_split(name: str) -> str:
    """Returns the split that a name means: `validation` for `val`, `valid` and `dev`, and other names as they are."""
    return SPLITS.get(check_split_name(name).lower(), name)


def shard_name(split: str, shard_index: int, num_shards: int) -> str:
    """Returns a name like `train-00003-of-00008.tfrecord`, the field's convention, counted from 0."""
    return f"{split}-{shard_index:05d}-of-{num_shards:05d}.tfrecord"


def parse_shard_name(name: str) -> tuple[str, int, int]:
    """Inverts `shard_name`: the split, the index and the number of shards. Raises `FormatError` for any other name."""
    match = _SHARD.fullmatch(name)
    if not match:
        raise FormatError(f"A shard must be named like train-00003-of-00008.tfrecord, got {name!r}.")
    return match[1], int(match[2]), int(match[3])


def is_shard_name(name: str) -> bool:
    """Returns whether a name is one that `shard_name` gives."""
    return _SHARD.fullmatch(name) is not None


def check_foreign_name(name: str) -> str:
    """Returns the name of a shard that another program wrote. Raises `FormatError` if it leaves the root directory.

    The file may be in a folder below the manifest's root, and nowhere else: `images/part-7`, never `../x`, `/etc/x` or
    `gs://bucket/x`.
    """
    names = name.split("/")
    if len(name) > _MAX_PATH or not name.isprintable() or "://" in name or {"", ".", ".."} & set(names):
        raise FormatError(f"A shard's name must be a relative path without . and .., got {name[:200]!r}.")
    return name


def leave_out_sidecars(paths: Iterable[str], pattern: str) -> list[str]:
    """Leaves out what tfpipe and TFDS write beside shards, which a pattern matches too, unless it is its exact name."""
    return [path for path in paths if path == pattern or not _SIDECAR.fullmatch(path)]


def is_column_name(name: str) -> bool:
    """Returns whether a column can have this name."""
    return isinstance(name, str) and _COLUMN.fullmatch(name) is not None


def index_name(shard: str) -> str:
    """Returns the path of a shard's index, relative to the dataset; a layer has an index folder of its own."""
    folder, _, name = shard.rpartition("/")
    if not (_SHARD.fullmatch(name) and _INNER_FOLDER.fullmatch(folder)):
        folder, name = "", shard
    return f"{folder}/{INDEX_DIR}/{name.removesuffix('.tfrecord')}.idx".removeprefix("/")


def info_name(shard: str) -> str:
    """Returns the path of the Parquet file of a shard's record info, relative to the dataset."""
    return index_name(shard).removesuffix(".idx") + ".parquet"
