"""Finds the TFRecord files that a user means, and the split of each file, by their names."""

import glob
import os
import re
from collections.abc import Sequence

from tfpipe.dataset.history import has_layers
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.storage import file_io

DEFAULT_SPLIT = "train"
"""The split of files whose names do not tell one."""

_OF = re.compile(r"-(\d{1,9})-of-(\d{1,9})(?!\d)")
_LIKE_RECORDS = re.compile(r"tfrec|\.tfr$|-\d{1,9}-of-\d{1,9}", re.IGNORECASE)
_NO_RECORDS = re.compile(r"\.(idx|index|json|jsonl|txt|md|csv|tmp|lock|incomplete)$", re.IGNORECASE)
_TFDS = re.compile(r"[a-z]\w*-(\w+)\.tfrecord-\d+-of-\d+", re.ASCII)


def find_files(target: str) -> tuple[str, tuple[str, ...]]:
    """Finds the files that match a pattern, one file, or those of a directory that are named like TFRecords.

    Returns their common directory, an absolute path or a URL, and their names relative to it, sorted.
    """
    if file_io.is_folder(target):
        root = file_io.make_absolute(target)
        files, folders = _list_folder(root)
        paths = files or [path for folder in folders for path in _list_folder(folder)[0]]
        if not paths:
            raise DataError(f"No file in {target} is named like TFRecords. Give a pattern, such as '{target}/part-*'.")
    else:
        paths = file_io.find(target) if file_io.is_url(target) else sorted(glob.glob(target))
        paths = [path for path in file_names.leave_out_sidecars(paths, target) if not os.path.isdir(path)]
        paths = [target] if os.path.lexists(target) else paths
        if not paths:
            what = "No file fits" if glob.has_magic(target) else "There is no"
            raise DataError(f"{what} {target}. Check the path and the pattern.")
        paths = list(map(file_io.make_absolute, paths))
        scheme, start, _ = target.rpartition("://")
        folders = [os.path.dirname(path.removeprefix(scheme + start)) for path in paths]
        root = scheme + start + os.path.commonpath(folders)
    inner = {os.path.dirname(path) for path in paths}
    outer = (os.path.split(os.path.dirname(each)) for each in inner)  # of m/layers/2-ab: m, layers
    for folder in sorted(inner.union(folder for folder, name in outer if name == file_names.LAYERS_DIR)):
        if has_layers(folder):
            raise ConfigError(
                f"The files of a dataset with layers must not be read alone, got those of {folder}: they hold deleted "
                f"records. Write the others into a new dataset first: `tfpipe reshard {folder} NEW`."
            )
    names = tuple(path.removeprefix(f"{root.rstrip('/')}/") for path in paths)
    for name in names:
        try:
            file_names.check_foreign_name(name)
        except FormatError as error:
            raise FormatError(f"{root}: {error} Rename the file.") from None
    by_index: dict[str, str] = {}
    for name in names:
        other = by_index.setdefault(file_names.index_name(name), name)
        if other != name:
            raise ConfigError(f"{other} and {name} would share one index. Rename one of them, or index them apart.")
    return root, names


def group_by_split(
    root: str, names: Sequence[str], listed_splits: dict[str, str], split: str | None
) -> dict[str, tuple[str, ...]]:
    """Groups files by split, train first: by `split` if given, else by `listed_splits`, else by the file's name."""
    if split is not None:
        file_names.check_split_name(split)
    files_by_split: dict[str, list[str]] = {}
    for name in names:
        base_name = os.path.basename(name)
        file_split = split or listed_splits.get(base_name) or infer_split(f"{os.path.basename(root)}/{name}")
        files_by_split.setdefault(file_split, []).append(name)
    usual = list(dict.fromkeys(file_names.SPLITS.values()))
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
    return next((file_names.SPLITS[word] for word in words if word in file_names.SPLITS), DEFAULT_SPLIT)


def describe_missing_files(names: Sequence[str]) -> list[str]:
    """Returns a sentence for each incomplete set of files like `x-00000-of-00008`."""
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


def _list_folder(folder: str) -> tuple[list[str], list[str]]:
    """Lists the files in a folder that are named like TFRecords, and its subfolders without hidden ones, sorted."""
    if file_io.is_url(folder):
        entries = {name.rstrip("/"): size < 0 for name, size in sorted(file_io.list_children(folder))}
    else:
        try:
            entries = {name: os.path.isdir(f"{folder}/{name}") for name in sorted(os.listdir(folder))}
        except OSError as error:
            raise DataError(f"{folder} cannot be listed: {error.strerror or error}.") from error
    files = [f"{folder}/{name}" for name, is_folder in entries.items() if not is_folder and _is_like_records(name)]
    return files, [f"{folder}/{name}" for name, is_folder in entries.items() if is_folder and name[0] != "."]


def _is_like_records(name: str) -> bool:
    """Returns whether a file is named like TFRecords. Only opening it tells whether it is a regular file."""
    return bool(_LIKE_RECORDS.search(name)) and not _NO_RECORDS.search(name) and name[0] != "."
