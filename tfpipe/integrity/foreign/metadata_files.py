"""Reads the metadata files beside foreign shards. These are hints: a note names a file that cannot be used."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.json_reader import at_most, join, parse_json, read
from tfpipe.storage import file_io

_MAX_BYTES = 2**26
_LENGTHS = Annotated[list[Any], at_most(1_000_000, "shards")]
_MAX_NAME_BYTES = 255  # of a file on every common file system
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_LABEL_FILE = "labels.txt"  # written by TF-Slim's converters, a line like `0:daisy` for each class


@dataclass
class Metadata:
    """The metadata from the files beside the shards."""

    name: str = ""
    file_splits: dict[str, str] = field(default_factory=dict)  # the split of each file
    file_records: dict[str, int] = field(default_factory=dict)  # the records that each file should hold
    supervised: tuple[str, ...] = ()  # the features that TFDS gives a trainer: mostly an image and a class
    images: list[str] = field(default_factory=list)  # the features that are images
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # features that are classes, with their names
    listed: tuple[str, ...] = ()  # label names that belong to no known feature
    notes: list[str] = field(default_factory=list)  # sentences about files that cannot be used


def read_metadata(root: str) -> Metadata:
    """Reads the metadata files of a directory."""
    metadata = Metadata()
    for name, use in ((file_names.TFDS_INFO, _read_info), (file_names.TFDS_FEATURES, _read_features)):
        path = file_io.join(root, name)
        if (text := _text(path, metadata)) is not None:
            try:
                use(parse_json(text, path), path, metadata)
            except (FormatError, ConfigError) as error:
                metadata.notes.append(f"Not used: {error}")
    for feature in list(metadata.classes):
        file = f"{feature.replace('/', '-')}.labels.txt"
        is_name = file.isprintable() and len(file.encode()) <= _MAX_NAME_BYTES
        if is_name and (names := _label_file(file_io.join(root, file), metadata)):
            metadata.classes[feature] = names
    metadata.listed = _label_file(file_io.join(root, _LABEL_FILE), metadata)
    return metadata


def _read_info(document: Any, where: str, metadata: Metadata) -> None:
    """Reads `dataset_info.json`: the splits, the number of records of each of their files, and the supervised keys."""
    info = read(document, dict[str, Any], where)
    metadata.name = read(info.get("name", ""), str, where, "name")
    for i, split in enumerate(read(info.get("splits", []), list[dict[str, Any]], where, "splits")):
        at = f"splits[{i}]"
        name = file_names.check_split_name(read(split.get("name"), str, where, f"{at}.name"))
        template = read(split.get("filepathTemplate", _TEMPLATE), str, where, f"{at}.filepathTemplate")
        lengths = read(split.get("shardLengths", []), _LENGTHS, where, f"{at}.shardLengths")
        for index, length in enumerate(lengths):
            file = _file_name(template, metadata.name, name, index, len(lengths))
            metadata.file_splits[file] = name
            if isinstance(length, str) and re.fullmatch(r"[0-9]{1,18}", length):
                metadata.file_records[file] = int(length)
    supervised = read(info.get("supervisedKeys", {}), dict[str, Any], where, "supervisedKeys")
    group = read(supervised.get("tuple", {}), dict[str, Any], where, "supervisedKeys.tuple")
    items = read(group.get("items", []), list[dict[str, Any]], where, "supervisedKeys.tuple.items")
    # Older versions of TFDS wrote `input` and `output`. An item that is a group of features has no key.
    keys = (supervised.get("input"), supervised.get("output"), *(item.get("featureKey") for item in items))
    metadata.supervised = tuple(key for key in keys if isinstance(key, str))


def _file_name(template: str, dataset: str, split: str, index: int, count: int) -> str:
    values = {
        "DATASET": dataset,
        "SPLIT": split,
        "FILEFORMAT": "tfrecord",
        "SHARD_INDEX": f"{index:05d}",
        "NUM_SHARDS": f"{count:05d}",
        "SHARD_X_OF_Y": f"{index:05d}-of-{count:05d}",
    }
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template)


def _read_features(document: Any, where: str, metadata: Metadata) -> None:
    """Reads `features.json`, which says which features are images and which are classes."""
    for path, feature in _leaves(document, where, ""):
        kind = read(feature.get("pythonClassName", ""), str, where, path).rpartition(".")[2]
        if kind == "Image":
            metadata.images.append(path)
        elif kind == "Dataset":
            metadata.notes.append(
                f"RLDS episodes: each record is an episode, and the features below {path}/ are lists of its steps. "
                f"--tensor gives those of vectors a shape, as in '{path}/action=float32[?,7]'."
            )
        elif kind == "ClassLabel":
            text = str(read(feature.get("classLabel", {}), dict[str, Any], where, path).get("numClasses", ""))
            count = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
            # More than a million names are left out: a hint may not take memory without bounds.
            metadata.classes[path] = tuple(map(str, range(count))) if count <= 1_000_000 else ()


def _leaves(value: Any, where: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    feature = read(value, dict[str, Any], where, path)
    if "featuresDict" not in feature:
        yield path, feature
        return
    at = join(path, "featuresDict")
    group = read(feature["featuresDict"], dict[str, Any], where, at)
    for name, below in read(group.get("features"), dict[str, Any], where, join(at, "features")).items():
        yield from _leaves(below, where, f"{path}/{name}" if path else name)


def _label_file(path: str, metadata: Metadata) -> tuple[str, ...]:
    """Reads a file with a name on each line, or `3:name`. Returns no names if the file is missing or not usable."""
    text = _text(path, metadata)
    lines = [] if text is None else [line.strip() for line in text.splitlines() if line.strip()]
    numbered = [re.fullmatch(r"(\d{1,9})\s*:\s*(.+)", line) for line in lines]
    if lines and [match and int(match[1]) for match in numbered] == list(range(len(lines))):
        lines = [match[2] for match in numbered if match]
    if len(set(lines)) != len(lines):
        metadata.notes.append(f"Not used: {path} names a class twice.")
        return ()
    return tuple(lines)


def _text(path: str, metadata: Metadata) -> str | None:
    try:
        return file_io.read_bytes(path, _MAX_BYTES).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        metadata.notes.append(f"Not used: {path} is not UTF-8.")
    except (DataError, FormatError) as error:
        metadata.notes.append(f"Not used: {error}")
    return None
