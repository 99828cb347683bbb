"""Finds the TFRecord files that a user means, and the split of each file, by their names."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.open_dataset import check_local

DEFAULT_SPLIT = "train"
"""The split of files whose names do not tell one."""

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
    """The files below one directory.

    Attributes:
        root: The directory, as an absolute path.
        names: The names relative to `root`, sorted.
    """

    root: str
    names: tuple[str, ...]

    def path(self, name: str) -> str:
        """Returns the path of one of the files."""
        return os.path.join(self.root, name)


def find_files(target: str) -> ForeignFiles:
    """Finds the files that match a pattern, one file, or the files of a directory that are named like TFRecords.

    Raises:
        ConfigError: `target` is a URL.
        DataError: No file was found.
        FormatError: A manifest cannot hold the name of a file.
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


def group_by_split(files: ForeignFiles, listed_splits: dict[str, str], split: str | None) -> dict[str, tuple[str, ...]]:
    """Returns the files of each split, in the order of their names. Train, validation and test come first.

    Args:
        files: All files.
        listed_splits: The split of each file that some metadata file lists, by the file's base name.
        split: The split of all files. None: the split follows from each file's name.
    """
    if split is not None:
        file_names.check_split_name(split)
    files_by_split: dict[str, list[str]] = {}
    for name in files.names:
        base_name = os.path.basename(name)
        file_split = split or listed_splits.get(base_name) or infer_split(f"{os.path.basename(files.root)}/{name}")
        files_by_split.setdefault(file_split, []).append(name)
    usual = list(dict.fromkeys(_WORDS.values()))
    ordered = sorted(files_by_split, key=lambda name: (usual.index(name) if name in usual else len(usual), name))
    return {name: tuple(files_by_split[name]) for name in ordered}


def infer_split(name: str) -> str:
    """Infers the split from a word in the file's name, or else in its folders: `val-00001-of-00008` is validation.

    A name in TFDS's form, `dataset-split.tfrecord-00000-of-00001`, gives the split as it is.
    """
    *folders, file = name.split("/")
    if (match := _TFDS.fullmatch(file)) and match[1][0].isalpha():
        return match[1]
    words = [*re.findall(r"[a-z]+", file.lower()), *(folder.lower() for folder in reversed(folders))]
    return next((_WORDS[word] for word in words if word in _WORDS), DEFAULT_SPLIT)


def describe_missing_files(names: Sequence[str]) -> list[str]:
    """Returns a sentence for each set of files `x-00000-of-00008` that is not complete."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        if match := _OF.search(os.path.basename(name)):
            start = name[: len(name) - len(os.path.basename(name)) + match.start()]
            sets.setdefault((start, match[2], os.path.basename(name)[match.end() :]), set()).add(int(match[1]))
    return [
        f"{len(numbers):,} of the {int(count):,} files {start}-*-of-{count}{end} exist."
        for (start, count, end), numbers in sets.items()
        if len(numbers) < int(count)
    ]


def _below(root: str) -> list[str]:
    """Returns the files of a directory that are named like TFRecords or, if it has none, those of its folders."""
    for folders in (
        [root],
        [entry.path for entry in _entries(root) if os.path.isdir(entry.path) and entry.name[0] != "."],
    ):
        entries = [entry for folder in sorted(folders) for entry in _entries(folder)]
        if paths := [entry.path for entry in entries if _is_like_records(entry)]:
            return sorted(paths)
    return []


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror or error}.") from error


def _is_like_records(entry: os.DirEntry[str]) -> bool:
    """Returns whether a file is named like TFRecords. Only opening it tells whether it is a regular file."""
    fits = _LIKE_RECORDS.search(entry.name) and not _NO_RECORDS.search(entry.name) and entry.name[0] != "."
    return bool(fits) and not os.path.isdir(entry.path)


def _check_indexes(names: Sequence[str]) -> None:
    by_index: dict[str, str] = {}
    for name in names:
        other = by_index.setdefault(file_names.index_name(name), name)
        if other != name:
            raise ConfigError(f"{other} and {name} would share one index. Rename one of them, or index them apart.")
