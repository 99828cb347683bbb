"""Lists the images of a folder or an archive as one tree of files.

An archive inside a folder counts as a folder with the archive's name without the ending. Many archives are read side by
side. Only the columns of the table grow with the number of images: there is no set of paths and no dictionary of files.
"""

import os
import posixpath
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from beam_jobs.inputs.archive import ListedFile, is_archive, list_archive, strip_archive_suffix
from beam_jobs.plan.image_ref import ImageRef
from beam_jobs.plan.image_table import TELL_EVERY, ImageTable, ImageTableBuilder
from beam_jobs.process_pool import map_unordered
from beam_jobs.storage import filesystem
from tfpipe.errors import DataError
from tfpipe.images.skip_by_name import get_skip_reason
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer, Progress

# A process takes longer to start than archives of fewer bytes take to be read.
_SIDE_BY_SIDE_FROM_BYTES = 32 * 2**20
_Archive = tuple[str, str]  # its path, and its location relative to the folder
_FolderId = tuple[int, int]  # device and inode


@dataclass(frozen=True, slots=True)
class Tree:
    """The images of a folder or an archive.

    Attributes:
        images: The images. The `label` of each is the folder that it lies in; its meaning follows from the layout of
            all folders.
        skipped: The number of files that were passed over, by reason.
    """

    images: ImageTable
    skipped: Counter[str]


class _TreeBuilder:
    """The builder of a tree, to which files are added."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._images, self._skipped = ImageTableBuilder(), Counter[str]()
        self._observer = observer or Observer()

    def add(self, files: Iterable[ListedFile], folder: str = "") -> None:
        """Adds the files that may be images; `folder` is put before their paths."""
        images = self._images
        for file in files:
            path = folder + file.path
            reason = file.skip or get_skip_reason(path)
            if reason:
                self._skipped[reason] += 1
                continue
            images.append(ImageRef(path, file.size, file.location, label=path.rpartition("/")[0]))
            if len(images) % TELL_EVERY == 0:
                self._observer.progress(Progress(len(images)))

    def extend(self, tree: Tree) -> None:
        """Adds another tree."""
        self._images.extend(tree.images)
        self._skipped += tree.skipped
        self._observer.progress(Progress(len(self._images)))

    def finish(self) -> Tree:
        """Returns the tree."""
        return Tree(self._images.finish(), self._skipped)


def list_tree(source: str, workers: int = 0, observer: Observer | None = None) -> Tree:
    """Lists the images of a folder or an archive. Archives in the folder are listed too.

    Args:
        source: A path or URL.
        workers: The number of processes that read archives if a folder has several; 0 means one per core.
        observer: The observer of the listing, which gets the number of listed images now and then.

    Raises:
        DataError: The source is missing or damaged, its folders loop, or it holds names that point outside or two
            images of one path.
    """
    builder = _TreeBuilder(observer)
    if is_archive(source):
        builder.add(list_archive(source, posixpath.basename(source)))
        return _drop_equal_paths(builder.finish(), source)
    archives: list[str] = []
    archive_bytes = 0

    def set_archives_aside() -> Iterator[ListedFile]:
        nonlocal archive_bytes
        for file in list_folder(source):
            if not file.skip and is_archive(file.path) and not posixpath.basename(file.path).startswith("."):
                archives.append(file.path)
                archive_bytes += file.size
            else:
                yield file

    builder.add(set_archives_aside())
    archives.sort()
    processes = (workers or usable_cpus()) if archive_bytes >= _SIDE_BY_SIDE_FROM_BYTES else 1
    for tree in _list_archives([(filesystem.join(source, path), path) for path in archives], processes):
        builder.extend(tree)
    tree = builder.finish()
    return _drop_equal_paths(tree, source) if archives else tree


def list_folder(root: str) -> Iterator[ListedFile]:
    """Yields every file below a folder, in any order. Links are followed, and paths are relative to the folder.

    Args:
        root: A path or URL.

    Raises:
        DataError: There is no such folder, or a link leads back to a folder that it lies in.
    """
    if filesystem.is_url(root):
        for path, size in filesystem.list_tree(root):
            yield ListedFile(path, size)
        return
    if not os.path.isdir(root):
        kinds = "a folder, a .csv, .jsonl or .parquet manifest, or a .tar, .tar.gz or .zip archive"
        fault = "is none of these" if os.path.exists(root) else "does not exist"
        raise DataError(f"The input must be {kinds}; {root} {fault}.")
    status = os.stat(root)
    yield from _walk(root, "", ((status.st_dev, status.st_ino),))


def _walk(root: str, prefix: str, parents: tuple[_FolderId, ...]) -> Iterator[ListedFile]:
    folders: list[tuple[str, _FolderId]] = []
    # Files come in the file system's order: to sort a folder of millions would take a kilobyte for each file.
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            path = prefix + entry.name
            try:
                status = entry.stat()
            except OSError:  # a link to nothing: the worker that reads it will say so, with its path
                yield ListedFile(path, 0)
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append((path, (status.st_dev, status.st_ino)))
            elif not stat.S_ISREG(status.st_mode):
                yield ListedFile(path, 0, skip="not a regular file")
            else:
                yield ListedFile(path, status.st_size)
    for path, folder_id in sorted(folders):
        if folder_id in parents:
            raise DataError(f"Folders must not loop, but {os.path.join(root, path)} leads back to one above it.")
        yield from _walk(root, path + "/", (*parents, folder_id))


def _list_archives(archives: list[_Archive], workers: int) -> Iterator[Tree]:
    """Yields one tree for each archive, in the order of the archives. Several are read at once."""
    if len(archives) < 2 or workers < 2:
        yield from (_list_one_archive((0, archive))[1] for archive in archives)
        return
    set_up = partial(filesystem.configure, filesystem.get_options())
    waiting: dict[int, Tree] = {}
    next_position = 0
    positions_and_trees = map_unordered(
        _list_one_archive, enumerate(archives), min(workers, len(archives)), set_up=set_up
    )
    for position, tree in positions_and_trees:
        waiting[position] = tree
        while next_position in waiting:
            yield waiting.pop(next_position)
            next_position += 1


def _list_one_archive(numbered: tuple[int, _Archive]) -> tuple[int, Tree]:
    position, (path, location) = numbered
    builder = _TreeBuilder()
    with filesystem.explain_os_errors(f"read {path}"):
        builder.add(list_archive(path, location), strip_archive_suffix(location) + "/")
    return position, builder.finish()


def _drop_equal_paths(tree: Tree, source: str) -> Tree:
    """Keeps the last member of each name in one archive, as unpacking a tar file does.

    Raises:
        DataError: Two images of one path lie in different places.
    """
    images = tree.images
    hashes = images.hash_texts("path", b"")
    order = np.argsort(hashes, kind="stable")
    equals_next = hashes[order][1:] == hashes[order][:-1]
    if not equals_next.any():
        return tree
    last_index: dict[str, int] = {}
    last_file: dict[str, str] = {}
    dropped: list[int] = []
    candidates = np.sort(order[np.append(False, equals_next) | np.append(equals_next, False)])
    for i, image in zip(candidates.tolist(), images.iterate(candidates), strict=True):
        path, file = image.path, image.location.file
        earlier_file = last_file.get(path, file)
        if earlier_file != file:  # a folder and an archive, or two archives, of one name
            places = sorted(place or "a folder" for place in (earlier_file, file))
            raise DataError(f"{source} holds {path} twice, in {places[0]} and in {places[1]}. Rename one of them.")
        if path in last_index:
            dropped.append(last_index[path])
        last_index[path], last_file[path] = i, file
    return replace(tree, images=images.take(np.setdiff1d(np.arange(len(images)), dropped)))
