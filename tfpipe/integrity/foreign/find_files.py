"""Which files are meant, and which split each belongs to, by their names."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.open_dataset import check_local

DEFAULT_SPLIT = "train"
"""Of files whose names say nothing."""

_OF = re.compile(r"-(\d{1,9})-of-(\d{1,9})(?!\d)")
_LIKE_RECORDS = re.compile(r"tfrec|-\d{1,9}-of-\d{1,9}", re.IGNORECASE)
_NO_RECORDS = re.compile(r"\.(idx|index|json|jsonl|txt|md|csv|tmp|lock|incomplete)$", re.IGNORECASE)
_TFDS = re.compile(r"[a-z]\w*-(\w+)\.tfrecord-\d+-of-\d+", re.ASCII)
_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True)
class ForeignFiles:
    """Files below one directory.

    Attributes:
      root: An absolute path.
      names: Relative to it, sorted.
    """

    root: str
    names: tuple[str, ...]

    def path(self, name: str) -> str:
        """Of one of them."""
        return os.path.join(self.root, name)


def find_files(target: str) -> ForeignFiles:
    """The files that a pattern names, one file, or what looks like TFRecords in a directory or its subfolders.

    Raises:
      ConfigError: `target` is a URL.
      DataError: There are none.
      FormatError: A name is not one that a manifest can hold.
    """
    check_local(target)
    if os.path.isdir(target):
        root = os.path.abspath(target)
        paths = _below(root)
        if not paths:
            raise DataError(f"No file in {target} is named like TFRecords. Give a pattern, such as '{target}/part-*'.")
    else:
        paths = [target] if os.path.lexists(target) else sorted(glob.glob(target))
        if not paths:
            what = "No file fits" if glob.has_magic(target) else "There is no"
            raise DataError(f"{what} {target}. Check the path and the pattern.")
        paths = [os.path.abspath(path) for path in paths]
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
    names = tuple(os.path.relpath(path, root) for path in paths)
    for name in names:
        try:
            file_names.check_foreign_name(name)
        except FormatError as error:
            raise FormatError(f"{root}: {error} Rename the file.") from None
    _check_indexes(names)
    return ForeignFiles(root, names)


def splits_of(files: ForeignFiles, named: dict[str, str], split: str | None) -> dict[str, tuple[str, ...]]:
    """The files of each split, in the order of their names; train, validation and test come first.

    Args:
      files: All of them.
      named: Split of each file whose base name some list gives.
      split: The split of all files; None: by their names.
    """
    if split is not None:
        file_names.check_split_name(split)
    found: dict[str, list[str]] = {}
    for name in files.names:
        of = split or named.get(os.path.basename(name)) or split_of(f"{os.path.basename(files.root)}/{name}")
        found.setdefault(of, []).append(name)
    order = list(dict.fromkeys(_WORDS.values()))
    ordered = sorted(found, key=lambda one: (order.index(one) if one in order else len(order), one))
    return {one: tuple(found[one]) for one in ordered}


def split_of(name: str) -> str:
    """By the word in the file's name, or else by the folder, that names a split: `val-00001-of-00008` is validation.

    TFDS' own `dataset-split.tfrecord-00000-of-00001` gives it as it is.
    """
    *folders, file = name.split("/")
    if (match := _TFDS.fullmatch(file)) and match[1][0].isalpha():
        return match[1]
    words = [*re.findall(r"[a-z]+", file.lower()), *(folder.lower() for folder in reversed(folders))]
    return next((_WORDS[word] for word in words if word in _WORDS), DEFAULT_SPLIT)


def missing_files(names: Sequence[str]) -> list[str]:
    """A sentence for each set of files `x-00000-of-00008` that is not complete."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        if match := _OF.search(os.path.basename(name)):
            start = name[: len(name) - len(os.path.basename(name)) + match.start()]
            sets.setdefault((start, match[2], os.path.basename(name)[match.end() :]), set()).add(int(match[1]))
    return [
        f"Of the {int(count):,} files {start}-*-of-{count}{end}, {len(seen):,} are there."
        for (start, count, end), seen in sets.items()
        if len(seen) < int(count)
    ]


def _below(root: str) -> list[str]:
    """Files in a directory that are named like TFRecords; if there are none, those in its folders."""
    for folders in (
        [root],
        [entry.path for entry in _entries(root) if os.path.isdir(entry.path) and entry.name[0] != "."],
    ):
        entries = [entry for folder in sorted(folders) for entry in _entries(folder)]
        found = [entry.path for entry in entries if _is_like_records(entry)]
        if found:
            return sorted(found)
    return []


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror or error}.") from error


def _is_like_records(entry: os.DirEntry[str]) -> bool:
    """By its name. What is no file is refused when it is opened; a folder is not meant."""
    named = _LIKE_RECORDS.search(entry.name) and not _NO_RECORDS.search(entry.name) and entry.name[0] != "."
    return bool(named) and not os.path.isdir(entry.path)


def _check_indexes(names: Sequence[str]) -> None:
    by_index: dict[str, str] = {}
    for name in names:
        other = by_index.setdefault(file_names.index_name(name), name)
        if other != name:
            raise ConfigError(f"{other} and {name} would share one index. Rename one of them, or index them apart.")
