"""What stands beside foreign shards and tells about them: the files of TFDS, and lists of label names.

All of it is a hint. What cannot be read is said, and the records are believed instead.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.json_reader import Node, parse_json
from tfpipe.system import file_io

_MAX_BYTES = 2**26
_MAX_SHARDS = 1_000_000
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_LABEL_FILES = ("labels.txt",)  # of TF-Slim's converters, `0:daisy` a line


@dataclass
class Sidecars:
    """What was found beside the shards."""

    name: str = ""
    """Of the dataset."""
    split_of: dict[str, str] = field(default_factory=dict)
    """By the name of a file."""
    records_of: dict[str, int] = field(default_factory=dict)
    """By the name of a file, what it is said to hold."""
    images: list[str] = field(default_factory=list)
    """Features that are images."""
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Features that are classes, counted from 0, with their names; without them where nobody gives any."""
    listed: tuple[str, ...] = ()
    """Label names of a file that says no more."""
    notes: list[str] = field(default_factory=list)
    """Sentences on what cannot be used."""


def read_sidecars(root: str) -> Sidecars:
    """Reads what stands in a local directory."""
    found = Sidecars()
    for name, read in ((file_names.TFDS_INFO, _read_info), (file_names.TFDS_FEATURES, _read_features)):
        path = os.path.join(root, name)
        if (text := _text(path, found)) is not None:
            try:
                read(parse_json(text, path), found)
            except (FormatError, ConfigError) as error:
                found.notes.append(f"Not used: {error}")
    for feature in list(found.classes):
        if names := _label_file(os.path.join(root, f"{feature.replace('/', '-')}.labels.txt"), found):
            found.classes[feature] = names
    found.listed = next((names for one in _LABEL_FILES if (names := _label_file(os.path.join(root, one), found))), ())
    return found


def _read_info(root: Node, found: Sidecars) -> None:
    """`dataset_info.json`: the splits and the records of each of their files."""
    fields = dict(root.items())
    found.name = fields["name"].text() if "name" in fields else ""
    for split in fields["splits"].elements() if "splits" in fields else ():
        told = dict(split.items())
        name, lengths = split.field("name").text(), told["shardLengths"].elements() if "shardLengths" in told else []
        if len(lengths) > _MAX_SHARDS:
            raise split.error("a split with fewer shards")
        template = told["filepathTemplate"].text() if "filepathTemplate" in told else _TEMPLATE
        for index, length in enumerate(lengths):
            file = _file_name(template, found.name, name, index, len(lengths))
            found.split_of[file] = file_names.check_split_name(name)
            if isinstance(length.value, str) and re.fullmatch(r"[0-9]{1,18}", length.value):
                found.records_of[file] = int(length.value)


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


def _read_features(root: Node, found: Sidecars) -> None:
    """`features.json`: which features are images and which are classes, as far as it says so."""
    for path, node in _leaves(root, ""):
        told = dict(node.items())
        kind = told["pythonClassName"].text().rpartition(".")[2] if "pythonClassName" in told else ""
        if kind == "Image":
            found.images.append(path)
        elif kind == "ClassLabel":
            count = _number_of_classes(told)
            # More than a million of them are no names: a hint may not take memory without bounds.
            found.classes[path] = tuple(map(str, range(count))) if count <= 1_000_000 else ()


def _number_of_classes(told: dict[str, Node]) -> int:
    told = dict(told["classLabel"].items()) if "classLabel" in told else {}
    text = str(told["numClasses"].value) if "numClasses" in told else ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0


def _leaves(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    told = dict(node.items())
    if "featuresDict" not in told:
        yield path, node
        return
    for name, below in told["featuresDict"].field("features").items():
        yield from _leaves(below, f"{path}/{name}" if path else name)


def _label_file(path: str, found: Sidecars) -> tuple[str, ...]:
    """One name a line, or `3:name`; none where there is no such file or it cannot be used."""
    text = _text(path, found)
    lines = [] if text is None else [line.strip() for line in text.splitlines() if line.strip()]
    numbered = [re.fullmatch(r"(\d{1,9})\s*:\s*(.+)", line) for line in lines]
    if lines and [match and int(match[1]) for match in numbered] == list(range(len(lines))):
        lines = [match[2] for match in numbered if match]
    if len(set(lines)) != len(lines):
        found.notes.append(f"Not used: {path} names a class twice.")
        return ()
    return tuple(lines)


def _text(path: str, found: Sidecars) -> str | None:
    if not os.path.lexists(path):
        return None
    try:
        return file_io.read_bytes(path, _MAX_BYTES).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        found.notes.append(f"Not used: {path} is not UTF-8.")
    except (DataError, FormatError) as error:
        found.notes.append(f"Not used: {error}")
    return None
