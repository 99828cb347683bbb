"""Lists the images of an input with their classes and splits. No image is opened here.

A folder, an archive and a folder of archives are all walked as one tree: an archive inside a folder counts as a folder
with the archive's name without the ending. ImageNet ships like this: one tar per class, or a tar of these tars.
"""

import posixpath
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.archive import is_archive, is_compressed_tar, strip_archive_suffix
from beam_jobs.inputs.dataset import list_datasets
from beam_jobs.inputs.folder import Tree, list_tree
from beam_jobs.inputs.table import is_table, list_table
from beam_jobs.plan.listing import Listing
from beam_jobs.storage import filesystem
from tfpipe.errors import ConfigError, DataError
from tfpipe.system.progress import Observer

# The names that datasets use for the three splits, and the split that each means.
SPLIT_FOLDERS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


def list_images(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists everything in the input that may be an image.

    Args:
        config: The configuration that names the input.
        observer: The observer of the listing, which gets the number of listed images now and then.

    Raises:
        ConfigError: An option does not go with the input.
        DataError: The input is missing, damaged or of an unknown kind, its folders loop, it holds names that point
            outside, or its layout is ambiguous.
    """
    if config.datasets:
        return list_datasets(config, observer)
    if is_table(config.input):
        listing = list_table(config, observer)
    else:
        if config.group_by:
            raise ConfigError("`group_by` names a column; it needs a CSV, JSONL or Parquet manifest as input.")
        listing = _list_folder_or_archive(config, observer)
    if config.labels:
        listing = _apply_label_file(listing, config.labels)
    return listing


def _list_folder_or_archive(config: ShardConfig, observer: Observer | None) -> Listing:
    source, from_archive = config.input, is_archive(config.input)
    with filesystem.explain_os_errors(f"read {source}"):
        tree = list_tree(source, config.workers, observer)
    # The folders above an image say all about it, so the folders are looked at and not the images. Common parents
    # are passed over in archives only: the user of a folder can name the folder inside it.
    counts = {str(folder): count for folder, count in tree.images.count_values("label").items()}
    parents = _count_shared_parents([_make_path_in(folder) for folder in counts]) if from_archive else 0
    layout = _Layout.infer(counts, source, parents)
    codes, folders = tree.images.get_codes("label")
    meanings = [layout.parse(_make_path_in(str(folder))) for folder in folders]
    loose = {str(folder) for folder, (_, label) in zip(folders, meanings, strict=True) if label is None}
    _check_loose(tree, sum(counts.get(folder, 0) for folder in loose), loose, source)
    images = tree.images.replace_texts("split", codes, [split for split, _ in meanings])
    images = images.replace_texts("label", codes, [label for _, label in meanings])
    base = posixpath.basename(source if from_archive else filesystem.make_absolute(source))
    return Listing(
        name=(strip_archive_suffix(base) if from_archive else base) or "images",
        root=posixpath.dirname(source) if from_archive else source,
        images=images,
        label_names=tuple(sorted(label for label in images.count_values("label") if label is not None)),
        skipped=tree.skipped,
        unpack=tuple(sorted(file for file in images.count_values("file") if file and is_compressed_tar(file))),
    )


def _make_path_in(folder: str) -> str:
    """Returns the path that some image in a folder could have."""
    return f"{folder}/x" if folder else "x"


def _check_loose(tree: Tree, num_loose: int, loose: Collection[str], source: str) -> None:
    """Checks that either all images lie in class folders or none of them.

    Args:
        tree: The images.
        num_loose: The number of images in loose folders.
        loose: The folders that are not classes.
        source: The input, for the message.
    """
    if num_loose and num_loose < len(tree.images):
        first = min(path for path in tree.images.iterate_paths() if path.rpartition("/")[0] in loose)
        raise DataError(
            f"{num_loose} of {len(tree.images)} images in {source} lie in no class folder, such as {first}. Put every "
            "image into a class folder, or none."
        )


def _count_shared_parents(paths: Collection[str]) -> int:
    """Returns how many leading folders hold all of an archive, such as `flower_photos/` above the class folders."""
    depth = 0
    while True:
        # Two levels must be left below: the class folder and the image.
        folders = {path.split("/")[depth] if path.count("/") > depth + 1 else "" for path in paths}
        if len(folders) != 1 or "" in folders or next(iter(folders)).lower() in SPLIT_FOLDERS:
            return depth
        depth += 1


class _Layout(NamedTuple):
    """The meaning of the folders above an image.

    Attributes:
        parents: The number of leading folders that mean nothing.
        has_splits: Whether the next folder names a split; the one after it names the class.
    """

    parents: int
    has_splits: bool

    @classmethod
    def infer(cls, folders: Iterable[str], source: str, parents: int) -> "_Layout":
        """Infers the layout from all folders that hold images.

        Raises:
            DataError: Splits stand beside class folders.
        """
        depths: dict[str, int] = {}  # for each top folder, the most folders above an image in it
        for folder in folders:
            top, *below = _make_path_in(folder).split("/")[parents:]
            if below:
                depths[top.lower()] = max(depths.get(top.lower(), 0), len(below))
        splits = depths.keys() & SPLIT_FOLDERS.keys()
        splits_hold_folders = any(depths[top] > 1 for top in splits)
        others = sorted(depths.keys() - splits)
        # A class may well be called "train", but not with classes in it.
        if others and "train" in splits and depths["train"] > 1:
            raise DataError(
                f"{source} holds 'train' beside {others[0]!r}: its folders must be all splits (train, validation, "
                f"test) or all classes. Move what belongs to neither out of it."
            )
        return cls(parents, bool(splits) and not others and (splits_hold_folders or "train" in splits))

    def parse(self, path: str) -> tuple[str, str | None]:
        """Returns an image's split (empty if the plan decides) and its class (None if it has none)."""
        parts = path.split("/")[self.parents :]
        split = SPLIT_FOLDERS.get(parts[0].lower(), "") if self.has_splits and len(parts) > 1 else ""
        below = parts[1:] if split else parts
        return split, below[0] if len(below) > 1 else None


def _apply_label_file(listing: Listing, path: str) -> Listing:
    """Puts the labels into the order of a file with one name per line."""
    try:
        with filesystem.explain_os_errors(f"read {path}"):
            text = filesystem.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in UTF-8 ({error}).") from error
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(set(names)) < len(names):
        raise DataError(f"{path} must name every class once.")
    if listing.numeric_labels:
        if len(listing.label_names) > len(names):
            raise DataError(f"{path} names {len(names)} classes, but label {len(listing.label_names) - 1} occurs.")
        codes, numbers = listing.images.get_codes("label")
        images = listing.images.replace_texts("label", codes, [names[int(number or 0)] for number in numbers])
        return replace(listing, images=images, label_names=names, numeric_labels=False)
    missing = sorted(set(listing.label_names) - set(names))
    if missing:
        raise DataError(f"{path} must name every class, but {missing[0]!r} is not in it.")
    return replace(listing, label_names=names)
