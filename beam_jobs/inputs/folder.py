"""Lists the images of a folder or an archive as one tree of files, with masks such as `a.mask.png` beside `a.jpg`.

An archive inside a folder counts as a folder. To list millions of files, their names are checked in Arrow arrays, many
at once; only a name that is not plainly an image's becomes an object, and no set or dictionary of all paths is made.
"""

import os
import posixpath
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, takewhile
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.archive import ListedFile, is_archive, is_compressed_tar, list_archive, strip_archive_suffix
from beam_jobs.inputs.label_file import Labels, order_classes, set_classes
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import FileRef, ImageRef
from beam_jobs.plan.image_table import ImageTable, ImageTableBuilder, encode_texts, match_texts, wrap
from beam_jobs.plan.listing import Listing
from beam_jobs.process_pool import map_in_order
from tfpipe.errors import DataError
from tfpipe.format.file_names import SPLITS
from tfpipe.images.errors import BadImage
from tfpipe.images.skip_by_name import get_folder_reason, get_skip_reason
from tfpipe.images.sniff import IMAGE_ENDINGS, has_image_name, sniff_format
from tfpipe.native.names import NOT_REGULAR, read_sizes
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer

# Archives with fewer bytes in all are listed faster than processes start.
_SIDE_BY_SIDE_FROM_BYTES = 32 * 2**20
_FILES_AT_ONCE = 1 << 14
_FILES_LOOKED_AT, _BYTES_LOOKED_AT = 64, 64  # of each ending in a folder, to tell whether the files are images
_ENTRIES_LOOKED_AT = 10_000  # of a folder, to tell its layout
_SPLIT_NAME = re.compile(rf"({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)

Archive = tuple[str, str]
"""The path of an archive, and its location relative to the folder."""

Listed = TypeVar("Listed")
MASK_ENDING = ".mask.png"
"""The ending of a mask; what stands before it is the name of its image without the ending."""

_FolderId = tuple[int, int]  # device and inode
# The usual path of an image, which needs no further check. In a folder of millions nearly all files have such a path.
_PLAIN = rf"(?is)(.*/)?[^./][^/]*\.({'|'.join(sorted(IMAGE_ENDINGS))})"
_MASK = r"(?is).*\.mask\..*"


class _Files(NamedTuple):
    """A group of files below a folder, in which those of one inner folder follow those of another."""

    paths: Sequence[str]  # relative to the folder; an empty folder ends with a slash
    sizes: NDArray[np.int64]  # in bytes, or `NO_FILE` or `NOT_REGULAR`
    folders: Sequence[tuple[str, int]]  # the inner folders in this order, each with its number of files

    def get(self, index: int) -> ListedFile:
        """Returns the file with an index."""
        path, size = self.paths[index], int(self.sizes[index])
        reason = "" if size != NOT_REGULAR else "empty folder" if path.endswith("/") else "not a regular file"
        return ListedFile(path, max(size, 0), skip=reason)  # a broken link is reported by the worker that reads it


class Tree(NamedTuple):
    """The images of a folder or an archive."""

    images: ImageTable  # with the folder as `label`; the layout of all folders decides which class that is
    skipped: Counter[str]  # files, by reason
    has_other_names: bool = True  # whether some file may have a name without the ending of an image


class _TreeBuilder:
    """The builder of a tree, to which files are added."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._images, self._skipped = ImageTableBuilder(observer), Counter[str]()
        self._masks: dict[str, FileRef] = {}
        self._has_other_names = False

    def add_folder(self, files: _Files) -> Iterator[ListedFile]:
        """Adds the files of a folder that may be images, and yields the archives."""
        paths = encode_texts(files.paths)
        folders, counts = [folder for folder, _ in files.folders], [count for _, count in files.folders]
        is_plain = match_texts(paths, _PLAIN) & ~match_texts(paths, _MASK) & (files.sizes != NOT_REGULAR)
        is_plain &= np.repeat([not get_folder_reason(folder) for folder in folders], counts)
        codes, rows = np.repeat(np.arange(len(counts)), counts), np.flatnonzero(is_plain)
        sizes = np.maximum(files.sizes, 0)[rows]
        self._images.append_files(paths.take(wrap(rows)), sizes, label=(codes[rows], folders))
        for index in np.flatnonzero(~is_plain).tolist():
            file = files.get(index)
            if not file.skip and is_listed_archive(file.path):
                yield file
            else:
                self._add_file(file, file.path)

    def add_archive(self, files: Iterable[ListedFile], folder: str = "") -> None:
        """Adds the members of an archive that may be images; `folder` is put before their paths."""
        for file in files:
            self._add_file(file, folder + file.path)

    def _add_file(self, file: ListedFile, path: str) -> None:
        reason = file.skip or get_skip_reason(path)
        if reason:
            self._skipped[reason] += 1
        elif path.lower().endswith(MASK_ENDING):
            self._masks[path[: -len(MASK_ENDING)]] = FileRef(path, file.size, *file.location)
        else:
            self._has_other_names |= not has_image_name(path)
            self._images.append(ImageRef(path, file.size, file.location, label=posixpath.dirname(path)))

    def extend(self, tree: Tree) -> None:
        """Adds another tree, whose images have their masks already."""
        self._images.extend(tree.images)
        self._skipped += tree.skipped
        self._has_other_names |= tree.has_other_names

    def finish(self) -> Tree:
        """Returns the tree, after it has given the images their masks."""
        images = self._images.finish()
        if self._masks:
            found = [self._masks.get(os.path.splitext(path)[0]) for path in images.iterate_paths()]
            self._skipped["mask without an image"] += len(self._masks) - len(set(filter(None, found)))
            self._skipped = +self._skipped
            if any(found):
                images = images.replace_tuples("mask", (tuple(mask or ()) for mask in found))
        return Tree(images, self._skipped, self._has_other_names)


def list_tree(source: str, workers: int = 0, observer: Observer | None = None) -> Tree:
    """Lists the images of an archive, or of a folder and its archives, by `workers` processes (0: one per core)."""
    builder, archives = _TreeBuilder(observer), list[ListedFile]()
    if is_archive(source):
        builder.add_archive(list_archive(source, posixpath.basename(source)))
    else:
        with file_io.explain_os_errors(f"read {source}"):
            for files in _list_files(source):
                archives += builder.add_folder(files)
        located = [(file_io.join(source, path), path) for path in sorted(file.path for file in archives)]
        num_bytes = sum(file.size for file in archives)
        for inner in list_side_by_side(located, num_bytes, workers, _list_one_archive):
            builder.extend(inner)
    tree = builder.finish()
    if archives or is_archive(source):
        tree = tree._replace(images=drop_equal_paths(tree.images, source))
    return _drop_other_files(tree, name_input(source)[1])


def name_input(source: str) -> tuple[str, str]:
    """Returns a short name of a folder or an archive, and the folder to which locations are relative."""
    if is_archive(source):
        return strip_archive_suffix(posixpath.basename(source)) or "images", posixpath.dirname(source)
    return posixpath.basename(file_io.make_absolute(source)) or "images", source


def list_unpacked(images: ImageTable) -> tuple[str, ...]:
    """Returns the compressed tar files that must be unpacked before a worker can read from them at an offset."""
    return tuple(sorted(file for file in images.count_values("file") if file and is_compressed_tar(file)))


def is_listed_archive(path: str) -> bool:
    """Tests whether a path is that of an archive that can be read and is not hidden."""
    return is_archive(path) and not posixpath.basename(path).startswith(".")


def list_folder(root: str) -> Iterator[ListedFile]:
    """Yields every file below a folder, in any order. Links are followed, and paths are relative to the folder."""
    for files in _list_files(root):
        yield from map(files.get, range(len(files.paths)))


def _list_files(root: str) -> Iterator[_Files]:
    """Yields the files of `list_folder` in groups."""
    if file_io.is_url(root):
        names = ((name, size) for name, size in file_io.list_tree(root.rstrip("/") + "/") if size >= 0)
        while some := list(islice(names, _FILES_AT_ONCE)):
            paths = [name for name, _ in some]
            folders = [(folder, len(list(inside))) for folder, inside in groupby(paths, posixpath.dirname)]
            yield _Files(paths, np.array([size for _, size in some], np.int64), folders)
        return
    check_folder(root)
    descriptor = os.open(root, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        paths, folders = [], []
        for folder, names_in in _walk(root, "", ((status.st_dev, status.st_ino),)):
            paths += [folder + name for name in names_in]
            folders.append((folder[:-1], len(names_in)))
            if len(paths) >= _FILES_AT_ONCE:
                yield _Files(paths, read_sizes(descriptor, paths), folders)
                paths, folders = [], []
        yield _Files(paths, read_sizes(descriptor, paths), folders)
    finally:
        os.close(descriptor)


Look = Callable[[str], list[str]]
"""A function that lists the first entries of a folder, as `list_begin` does."""


def list_begin(folder: str) -> list[str]:
    """Returns the names of the first entries in a folder, none if there is no such folder. Folders end with a slash."""
    if file_io.is_url(folder):
        return [name for name, _ in islice(file_io.list_children(folder.rstrip("/") + "/"), _ENTRIES_LOOKED_AT)]
    if not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        # `entry.is_dir()` would raise for a link that leads to itself.
        return [entry.name + "/" * os.path.isdir(entry.path) for entry in islice(entries, _ENTRIES_LOOKED_AT)]


def check_folder(root: str) -> None:
    """Checks that there is a folder of this name on this machine."""
    if not file_io.is_url(root) and not os.path.isdir(root):
        kinds = "a folder, a .csv, .tsv, .jsonl or .parquet manifest, or a .tar, .tar.gz or .zip archive"
        fault = "is none of these" if os.path.exists(root) else "does not exist"
        raise DataError(f"The input must be {kinds}; {root} {fault}.")


def _walk(root: str, prefix: str, parents: tuple[_FolderId, ...]) -> Iterator[tuple[str, list[str]]]:
    """Yields folders, which end with a slash, with names of files in them; an empty folder has the name ""."""
    folders: list[tuple[str, _FolderId]] = []
    names: list[str] = []
    is_empty = True
    # Files come in the file system's order: to sort a folder of millions would take a kilobyte for each file.
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            is_empty = False
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            if is_folder:
                status = entry.stat()
                folders.append((prefix + entry.name, (status.st_dev, status.st_ino)))
                continue
            names.append(entry.name)
            if len(names) == _FILES_AT_ONCE:
                yield prefix, names
                names = []
    if is_empty and prefix and not get_skip_reason(prefix + "x"):
        names = [""]
    yield prefix, names
    for path, folder_id in sorted(folders):
        if folder_id in parents:
            looped = os.path.join(root, path).rstrip("/")
            raise DataError(f"Folders must not loop, but {looped} leads back to one above it.")
        yield from _walk(root, path + "/", (*parents, folder_id))


def find_split(name: str) -> str:
    """Returns the split that a name begins with, such as `train-00000` or `val2017`; empty if it names none."""
    match = _SPLIT_NAME.match(name)
    return SPLITS[match[1].lower()] if match else ""


def find_splits(paths: Sequence[str]) -> list[str]:
    """Returns each file's split by its folder or its name, if all files name one and not all the same; else ""."""
    folders = [SPLITS.get(path.split("/")[0].lower()) for path in paths]
    splits = [folder or find_split(posixpath.basename(path)) for folder, path in zip(folders, paths, strict=True)]
    return splits if all(splits) and len(set(splits)) > 1 else [""] * len(paths)


def list_side_by_side(
    archives: Sequence[Archive], num_bytes: int, workers: int, list_one: Callable[[Archive], Listed]
) -> Iterator[Listed]:
    """Yields `list_one` of each archive, in order, by `workers` processes (0: one per core) if `num_bytes` are many."""
    processes = min(workers or usable_cpus(), len(archives)) if num_bytes >= _SIDE_BY_SIDE_FROM_BYTES else 1
    return map_in_order(list_one, archives, processes if processes > 1 else 0)


def _list_one_archive(archive: Archive) -> Tree:
    path, location = archive
    builder = _TreeBuilder()
    with file_io.explain_os_errors(f"read {path}"):
        builder.add_archive(list_archive(path, location), strip_archive_suffix(location) + "/")
    return builder.finish()


def _drop_other_files(tree: Tree, root: str) -> Tree:
    """Drops files without the ending of an image, unless one of their ending and folder begins like an image.

    Only the first ones are opened. If all of these are empty, the files stay: the worker that reads one reports it.
    """
    if not tree.has_other_names:
        return tree
    groups: dict[tuple[str, str], array[int]] = defaultdict(lambda: array("q"))
    for i, path in enumerate(tree.images.iterate_paths()):
        if not has_image_name(path):
            groups[posixpath.dirname(path), posixpath.splitext(path)[1].lower()].append(i)
    dropped, skipped = list[int](), Counter(tree.skipped)
    for (_, ending), indices in groups.items():
        looks = {_begins_like_image(root, image) for image in tree.images.iterate(np.array(indices[:_FILES_LOOKED_AT]))}
        if False in looks and True not in looks:
            dropped += indices
            skipped[f"*{ending}" if ending else "no image by content"] += len(indices)
    if not dropped:
        return tree
    return Tree(tree.images.take(np.setdiff1d(np.arange(len(tree.images)), dropped)), skipped)


def _begins_like_image(root: str, image: ImageRef) -> bool | None:
    """Tests whether the first bytes of a file are those of an image; None if it is empty, or cannot be read."""
    location = image.location
    if is_compressed_tar(location.file):
        return None
    try:
        if location.offset < 0:
            data = file_io.read_range(file_io.join(root, image.path), 0, _BYTES_LOOKED_AT)
        else:  # a member of a zip is read whole
            is_tar = location.packed < 0
            data = read_image(root, image._replace(size=min(image.size, _BYTES_LOOKED_AT)) if is_tar else image)
        if not data:
            return None
        sniff_format(data)
    except (OSError, UnreadableError):
        return None
    except BadImage:
        return False
    return True


def drop_equal_paths(images: ImageTable, source: str) -> ImageTable:
    """Keeps the last member of each name in one archive, as unpacking a tar file does."""
    hashes = images.hash_texts("path", b"")
    order = np.argsort(hashes, kind="stable")
    equals_next = hashes[order][1:] == hashes[order][:-1]
    rows, after = order[:-1][equals_next], order[1:][equals_next]
    codes, files = images.get_codes("file")
    dropped: list[int] = []
    for row, other, path, next_path in zip(
        rows.tolist(), after.tolist(), images.get_paths(rows), images.get_paths(after), strict=True
    ):
        if path == next_path and codes[row] != codes[other]:  # a folder and an archive, or two archives, of one name
            one, two = sorted(files[codes[index]] or "a folder" for index in (row, other))
            raise DataError(f"{source} holds {path} twice, in {one} and in {two}. Rename one of them.")
        if path == next_path:
            dropped.append(row)
    return images.take(np.setdiff1d(np.arange(len(images)), dropped)) if dropped else images


def list_class_folders(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the images of a folder or an archive, with the splits and the classes that their folders name."""
    source, from_archive = config.input, is_archive(config.input)
    images, skipped, _ = list_tree(source, config.workers, observer)
    # The folders above an image decide its split and class, so the folders are examined and not the images. Common
    # parents are skipped in archives only: the user of a folder can name the folder inside it as the input.
    counts = images.count_values("label")
    folders = sorted(map(str, counts))
    names = [folder.split("/") if folder else [] for folder in folders]
    levels = zip(*(some[:-1] for some in names), strict=False)  # without each last folder, which may be the class
    shared = len(list(takewhile(lambda level: len({*level}) == 1 and level[0].lower() not in SPLITS, levels)))
    parents = shared if from_archive else 0
    inner = [some[parents:] for some in names]
    has_splits = _have_splits(inner, source)
    parsed = {folder: _parse(some, has_splits) for folder, some in zip(folders, inner, strict=True)}
    _check_loose(images, counts, {folder for folder, (_, label) in parsed.items() if label is None}, source)
    labels: Labels = {folder: label for folder, (_, label) in parsed.items()}
    label_names = tuple(sorted({label for label in labels.values() if label is not None}))
    if label_names == ("images",) and "*.txt" in skipped:
        raise DataError(
            f"{source} holds its images in folders `images` and *.txt files beside them, as YOLO's datasets do. Boxes "
            "are read from COCO's and Pascal VOC's files: export the dataset as one of these, or name the folder "
            "`images` as the input for the images without boxes."
        )
    labels, label_names = order_classes(config, labels, label_names, is_numeric=False)
    return Listing(
        *name_input(source),
        set_classes(images, labels, {folder: split for folder, (split, _) in parsed.items()}),
        label_names=label_names,
        skipped=skipped,
        unpack=list_unpacked(images),
        note=_explain_parents(folders, source, shared - parents),
    )


def _check_loose(images: ImageTable, counts: Mapping[str | None, int], loose: Collection[str], source: str) -> None:
    """Checks that all images lie in class folders, or none; `counts` are the images of each folder."""
    num_loose = sum(counts[folder] for folder in loose)
    if num_loose and num_loose < len(images):
        codes, folders = images.get_codes("label")
        is_loose = np.array([folder in loose for folder in folders], bool)
        first = min(images.get_paths(np.flatnonzero(is_loose[codes])))
        raise DataError(
            f"{num_loose} of {len(images)} images in {source} lie in no class folder, such as {first}. Put every "
            "image into a class folder, or none."
        )


def _explain_parents(folders: Sequence[str], source: str, num_parents: int) -> str:
    """Returns advice for a folder whose class folders may lie deeper, below common parents; otherwise empty."""
    below = sorted({folder.split("/")[num_parents] for folder in folders}) if num_parents else []
    if len(below) < 2:
        return ""
    above = "/".join(folders[0].split("/")[:num_parents])
    names = ", ".join(below[:3]) + ", ..." * (len(below) > 3)
    path = file_io.join(source, above)
    return (
        f"All images lie in {above}, so they have one class. If the {len(below)} folders in it ({names}) are the "
        f"classes, name {path if file_io.is_folder(path) else 'the archive that holds them'} as the input."
    )


def _have_splits(paths: Sequence[Sequence[str]], source: str) -> bool:
    """Tests whether the top folders are splits, such as `train`; `paths` are all folders that hold images."""
    depths: dict[str, int] = {}  # for each top folder, the most folders above an image in it
    for top, *below in filter(None, paths):
        depths[top.lower()] = max(depths.get(top.lower(), 0), 1 + len(below))
    splits = depths.keys() & SPLITS.keys()
    splits_hold_folders = any(depths[top] > 1 for top in splits)
    others = sorted(depths.keys() - splits)
    # A class may well be called "train", but not with classes in it.
    if others and "train" in splits and depths["train"] > 1:
        raise DataError(
            f"{source} holds 'train' beside {others[0]!r}: its folders must be all splits (train, validation, "
            f"test) or all classes. Move what belongs to neither out of it."
        )
    return bool(splits) and not others and (splits_hold_folders or "train" in splits)


def _parse(names: Sequence[str], has_splits: bool) -> tuple[str, str | None]:
    """Returns the split (empty if the plan decides) and the class (None without one) of images below these folders."""
    split = SPLITS.get(names[0].lower(), "") if has_splits and names else ""
    below = names[1:] if split else names
    return split, below[0] if below else None
