"""From an input to a `Listing`: what images there are, of which class and split. No image is opened here.

A folder, an archive and a folder of archives are all walked as one tree: an archive inside a folder counts as a
folder named like it without its ending, which is how ImageNet ships (one tar per class, or a tar of these tars).
"""

import posixpath
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.archive import is_archive, is_compressed_tar, strip_archive_suffix
from beam_jobs.inputs.dataset import list_datasets
from beam_jobs.inputs.table import is_table, list_table
from beam_jobs.inputs.tree import Tree, list_tree
from beam_jobs.plan.split_and_shard import Listing
from beam_jobs.storage import filesystem
from tfpipe.errors import ConfigError, DataError
from tfpipe.system.progress import Observer

# The names that data sets use for the three splits, and the name that each gets.
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
    """Everything in the input that may be an image.

    Args:
        config: Names the input.
        observer: The object that is told now and then how many images were found so far.

    Raises:
        ConfigError: The input is of no known kind, or an option does not go with it.
        DataError: It is missing, damaged, loops, holds hostile names, or its layout is ambiguous.
    """
    if config.datasets:
        return list_datasets(config)
    if is_table(config.input):
        listing = list_table(config, observer)
    else:
        if config.group_by:
            raise ConfigError("--group-by names a column; it needs a CSV, JSONL or Parquet manifest as input.")
        listing = _list_tree(config, observer)
    if config.labels:
        listing = _with_label_file(listing, config.labels)
    return listing


def _list_tree(config: ShardConfig, observer: Observer | None) -> Listing:
    """A folder or an archive."""
    source, archive = config.input, is_archive(config.input)
    with filesystem.explain_os_errors(f"read {source}"):
        tree = list_tree(source, config.workers, observer)
    # What lies above an image says all about it, so the folders are looked at and not the images. Only in an archive
    # are common ones passed over: who has a folder can name the folder inside it.
    folders = [str(folder) for folder in tree.folders.counts()]
    layout = _Layout.of(folders, source, _shared_parents([_member_of(one) for one in folders]) if archive else 0)
    meanings = [layout.split_and_label(_member_of(str(folder))) for folder in tree.folders.texts]
    _check_loose(
        tree,
        {str(folder) for folder, (_, label) in zip(tree.folders.texts, meanings, strict=True) if label is None},
        source,
    )
    splits, labels = ([one[k] for one in meanings] for k in (0, 1))
    refs = tree.refs.replaced(splits=tree.folders.renamed(splits), labels=tree.folders.renamed(labels))
    root = posixpath.dirname(source) if archive else source
    base = posixpath.basename(source if archive else filesystem.absolute(source))
    return Listing(
        name=(strip_archive_suffix(base) if archive else base) or "images",
        root=root,
        refs=refs,
        label_names=tuple(sorted(label for label in refs.labels.counts() if label is not None)),
        skipped=tree.skipped,
        unpack=tuple(location for location in refs.locations() if is_compressed_tar(location)),
    )


def _member_of(folder: str) -> str:
    """The path of some image in a folder."""
    return f"{folder}/x" if folder else "x"


def _check_loose(tree: Tree, loose: Collection[str], source: str) -> None:
    """Sees that all images lie in class folders, or none; `loose` are the folders that are no class."""
    counts = tree.folders.counts()
    count = sum(counts.get(folder, 0) for folder in loose)
    if count and count < len(tree.refs):
        first = min(path for path in tree.refs.paths if path.rpartition("/")[0] in loose)
        raise DataError(
            f"{count} of {len(tree.refs)} images in {source} lie in no class folder, such as {first}. Put every image "
            "into a class folder, or none."
        )


def _shared_parents(paths: Collection[str]) -> int:
    """How many leading folders hold all of an archive, such as `flower_photos/` above the class folders."""
    depth = 0
    while True:
        # Two levels must be left below: the class folder and the image.
        folders = {path.split("/")[depth] if path.count("/") > depth + 1 else "" for path in paths}
        if len(folders) != 1 or "" in folders or next(iter(folders)).lower() in SPLIT_FOLDERS:
            return depth
        depth += 1


class _Layout(NamedTuple):
    """What the folders above an image mean: `parents` folders of no meaning, a split if `has_splits`, the class."""

    parents: int
    has_splits: bool

    @classmethod
    def of(cls, folders: Iterable[str], source: str, parents: int) -> "_Layout":
        """Reads it off all folders that hold images.

        Raises:
            DataError: Splits stand beside class folders.
        """
        tops: dict[str, int] = {}  # top folder -> most folders above an image in it
        for folder in folders:
            top, *below = _member_of(folder).split("/")[parents:]
            if below:
                tops[top.lower()] = max(tops.get(top.lower(), 0), len(below))
        known = tops.keys() & SPLIT_FOLDERS.keys()
        deep = any(tops[top] > 1 for top in known)
        other = sorted(tops.keys() - known)
        if (
            other and "train" in known and tops["train"] > 1
        ):  # a class may well be called "train", but not with classes in it
            raise DataError(
                f"{source} holds 'train' beside {other[0]!r}: its folders must be all splits (train, validation, "
                f"test) or all classes. Move what belongs to neither out of it."
            )
        return cls(parents, bool(known) and not other and (deep or "train" in known))

    def split_and_label(self, path: str) -> tuple[str, str | None]:
        """The split (empty: for the plan to decide) and the class (None: none) of one image."""
        parts = path.split("/")[self.parents :]
        split = SPLIT_FOLDERS.get(parts[0].lower(), "") if self.has_splits and len(parts) > 1 else ""
        rest = parts[1:] if split else parts
        return split, rest[0] if len(rest) > 1 else None


def _with_label_file(listing: Listing, path: str) -> Listing:
    """Labels in the order of a file, one name per line."""
    try:
        with filesystem.explain_os_errors(f"read {path}"):
            text = filesystem.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 ({error}).") from error
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(set(names)) < len(names):
        raise DataError(f"{path} must name every class once.")
    if listing.numeric_labels:
        if len(listing.label_names) > len(names):
            raise DataError(f"{path} names {len(names)} classes, but label {len(listing.label_names) - 1} occurs.")
        labels = listing.refs.labels
        named = labels.renamed([names[int(text or 0)] for text in labels.texts])
        return replace(listing, refs=listing.refs.replaced(labels=named), label_names=names, numeric_labels=False)
    missing = sorted(set(listing.label_names) - set(names))
    if missing:
        raise DataError(f"{path} must name every class, but {missing[0]!r} is not in it.")
    return replace(listing, label_names=names)
