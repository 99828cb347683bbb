"""From an input to a `Listing`: what images there are, of which class and split. No image is opened here.

A folder, an archive and a folder of archives are all walked as one tree: an archive inside a folder counts as a
folder named like it without its ending, which is how ImageNet ships (one tar per class, or a tar of these tars).
"""

import posixpath
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from beam_jobs import files
from beam_jobs.archives import Member, is_archive, is_compressed_tar, list_archive, strip_archive_suffix
from beam_jobs.config import ShardConfig
from beam_jobs.datasets import list_datasets
from beam_jobs.folders import list_folder
from beam_jobs.plan import Listing
from beam_jobs.refs import ImageRef
from beam_jobs.tables import is_table, list_table
from tfpipe.errors import ConfigError, DataError

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

# Files that plainly are no images, by their ending. Anything else is tried, and judged by its content.
NO_IMAGE_SUFFIXES = frozenset(
    (
        ".txt .md .rst .json .jsonl .ndjson .xml .csv .tsv .html .htm .yaml .yml .toml .ini .cfg .log .pdf "
        ".doc .docx .xls .xlsx .parquet .npy .npz .mat .pkl .h5 .py .ipynb .sh .js .css .db .sqlite .sha256 "
        ".md5 .lnk .url .mp4 .avi .mov .tfrecord .gz .bz2 .xz .7z .rar"
    ).split()
)
NO_IMAGE_NAMES = frozenset(("thumbs.db", "desktop.ini", "license", "licence", "readme", "makefile"))
NO_IMAGE_FOLDERS = frozenset(("__macosx",))


def list_images(config: ShardConfig) -> Listing:
    """Everything in the input that may be an image.

    Raises:
        ConfigError: The input is of no known kind, or an option does not go with it.
        DataError: It is missing, damaged, loops, holds hostile names, or its layout is ambiguous.
    """
    if config.datasets:
        return list_datasets(config)
    if is_table(config.input):
        listing = list_table(config)
    else:
        if config.group_by:
            raise ConfigError("--group-by names a column; it needs a CSV, JSONL or Parquet manifest as input.")
        listing = _list_tree(config)
    if config.labels:
        listing = _with_label_file(listing, config.labels)
    return listing


def _list_tree(config: ShardConfig) -> Listing:
    """A folder or an archive."""
    with files.explain_os_errors(f"read {config.input}"):
        if is_archive(config.input):
            root, name = posixpath.dirname(config.input), posixpath.basename(config.input)
            members: Iterable[Member] = list_archive(config.input, name)
            base = strip_archive_suffix(name)
        else:
            root, members = config.input, list_folder(config.input)
            base = posixpath.basename(files.absolute(config.input))
        skipped: Counter[str] = Counter()
        images = _by_path(_keep_images(members, skipped), config.input)
    # Only in an archive: who has a folder can name the folder inside it.
    layout = _Layout.of(images, config.input, _shared_parents(images) if is_archive(config.input) else 0)
    refs = []
    while images:  # one by one, so that a million images are not held twice
        path, m = images.popitem()
        split, label = layout.split_and_label(path)
        refs.append(ImageRef(path, m.size, m.location, m.offset, m.packed, m.crc, split=split, label=label))
    labels = tuple(sorted({ref.label for ref in refs if ref.label is not None}))
    unpack = sorted({ref.location for ref in refs if is_compressed_tar(ref.location)})
    return Listing(base or "images", root, refs, labels, skipped=skipped, unpack=tuple(unpack))


def _by_path(members: Iterable[Member], source: str) -> dict[str, Member]:
    """Members by path; in one archive the last of equal names counts, as when a tar is unpacked."""
    found: dict[str, Member] = {}
    for one in members:
        earlier = found.get(one.path, one)
        if earlier.location != one.location:  # a folder and an archive, or two archives, of one name
            places = sorted(place or "a folder" for place in (earlier.location, one.location))
            raise DataError(f"{source} holds {one.path} twice, in {places[0]} and in {places[1]}. Rename one of them.")
        found[one.path] = one
    return found


def _keep_images(members: Iterable[Member], skipped: Counter[str]) -> Iterator[Member]:
    for member in members:
        reason = member.skip or _skip_reason(member.path)
        if reason:
            skipped[reason] += 1
        else:
            yield member


def _skip_reason(path: str) -> str:
    """Why a file plainly is no image, by its name; empty where it may be one."""
    *folders, name = path.split("/")
    if name.startswith(".") or any(folder.startswith(".") for folder in folders):
        return "hidden"
    if name.lower() in NO_IMAGE_NAMES or any(folder.lower() in NO_IMAGE_FOLDERS for folder in folders):
        return "no image by name"
    suffix = posixpath.splitext(name)[1].lower()
    return f"*{suffix}" if suffix in NO_IMAGE_SUFFIXES else ""


def _shared_parents(paths: Iterable[str]) -> int:
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
    def of(cls, paths: Collection[str], source: str, parents: int) -> "_Layout":
        """Reads it off all paths.

        Raises:
            DataError: Splits stand beside class folders, or loose images beside class folders.
        """
        tops: dict[str, int] = {}  # top folder -> most folders above an image in it
        for path in paths:
            top, *below = path.split("/")[parents:]
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
        layout = cls(parents, bool(known) and not other and (deep or "train" in known))
        loose = [path for path in paths if layout.split_and_label(path)[1] is None]
        if loose and len(loose) < len(paths):
            raise DataError(
                f"{len(loose)} of {len(paths)} images in {source} lie in no class folder, such as "
                f"{min(loose)}. Put every image into a class folder, or none."
            )
        return layout

    def split_and_label(self, path: str) -> tuple[str, str | None]:
        """The split (empty: for the plan to decide) and the class (None: none) of one image."""
        parts = path.split("/")[self.parents :]
        split = SPLIT_FOLDERS.get(parts[0].lower(), "") if self.has_splits and len(parts) > 1 else ""
        rest = parts[1:] if split else parts
        return split, sys.intern(rest[0]) if len(rest) > 1 else None


def _with_label_file(listing: Listing, path: str) -> Listing:
    """Labels in the order of a file, one name per line."""
    try:
        with files.explain_os_errors(f"read {path}"):
            text = files.read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 ({error}).") from error
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(set(names)) < len(names):
        raise DataError(f"{path} must name every class once.")
    if listing.numeric_labels:
        if len(listing.label_names) > len(names):
            raise DataError(f"{path} names {len(names)} classes, but label {len(listing.label_names) - 1} occurs.")
        named = [ref._replace(label=names[int(ref.label or 0)]) for ref in listing.refs]
        return replace(listing, refs=named, label_names=names, numeric_labels=False)
    missing = sorted(set(listing.label_names) - set(names))
    if missing:
        raise DataError(f"{path} must name every class, but {missing[0]!r} is not in it.")
    return replace(listing, label_names=names)
