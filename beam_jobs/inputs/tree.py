"""A folder or an archive as one tree of files, listed in columns; many archives are indexed side by side.

Nothing here grows with the images but the columns themselves: no set of paths, no dictionary of members.
"""

import posixpath
from collections import Counter
from collections.abc import Iterable
from functools import partial

import numpy as np

from beam_jobs.inputs.archive import Member, is_archive, list_archive, strip_archive_suffix
from beam_jobs.inputs.folder import list_folder
from beam_jobs.plan.columnar import CodedColumn
from beam_jobs.plan.image_ref import ImageRef
from beam_jobs.plan.image_table import TELL_EVERY, RefList
from beam_jobs.process_pool import map_unordered
from beam_jobs.storage import filesystem
from tfpipe.errors import DataError
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.progress import Observer, Progress

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

# Below, an archive is read sooner than a process is started.
_SIDE_BY_SIDE_FROM_BYTES = 32 * 2**20
_Archive = tuple[str, str]  # where it lies, and what its members name as their location


class Tree:
    """The images of a tree: `refs` with neither split nor label, their `folders`, and what was `skipped`, by reason."""

    def __init__(self, observer: Observer | None = None) -> None:
        self.refs, self.folders = RefList(), CodedColumn()
        self.skipped: Counter[str] = Counter()
        self._observer = observer

    def add(self, members: Iterable[Member], inside: str = "") -> None:
        """Adds members that may be images; `inside` is the folder that they count as lying in."""
        for member in members:
            path = inside + member.path
            reason = member.skip or skip_reason(path)
            if reason:
                self.skipped[reason] += 1
                continue
            self.refs.append(ImageRef(path, *member[1:6]))
            self.folders.append(path.rpartition("/")[0])
            if len(self.refs) % TELL_EVERY == 0:
                self._tell()

    def extend(self, other: "Tree") -> None:
        """Adds another tree."""
        self.refs.extend(other.refs)
        self.folders.extend(other.folders)
        self.skipped += other.skipped
        self._tell()

    def _tell(self) -> None:
        if self._observer is not None:
            self._observer.progress(Progress(len(self.refs)))

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_observer": None}  # which stays in the process that asked


def list_tree(source: str, workers: int = 0, observer: Observer | None = None) -> Tree:
    """The images of a folder or an archive, archives in the folder included.

    Args:
        source: A path or URL.
        workers: Processes that read archives where a folder has several; 0: one per core.
        observer: The object that is told now and then how many images were found so far.

    Raises:
        DataError: It is missing, damaged, loops, or holds hostile names or two images of one path.
    """
    tree = Tree(observer)
    if is_archive(source):
        tree.add(list_archive(source, posixpath.basename(source)))
        return _without_equal_paths(tree, source)
    archives: list[str] = []
    num_bytes = 0

    def loose() -> Iterable[Member]:
        nonlocal num_bytes
        for member in list_folder(source):
            if not member.skip and is_archive(member.path) and not member.path.rpartition("/")[2].startswith("."):
                archives.append(member.path)
                num_bytes += member.size
            else:
                yield member

    tree.add(loose())
    archives.sort()
    processes = (workers or usable_cpus()) if num_bytes >= _SIDE_BY_SIDE_FROM_BYTES else 1
    for one in _index_all([(filesystem.join(source, path), path) for path in archives], processes):
        tree.extend(one)
    return _without_equal_paths(tree, source) if archives else tree


def _index_all(archives: list[_Archive], workers: int) -> Iterable[Tree]:
    """One tree for each archive, in their order, however many are read at once."""
    if len(archives) < 2 or workers < 2:
        yield from (_index((0, archive))[1] for archive in archives)
        return
    set_up = partial(filesystem.configure, filesystem.configured())
    waiting: dict[int, Tree] = {}
    expected = 0
    indexed = map_unordered(_index, enumerate(archives), min(workers, len(archives)), set_up=set_up)
    for position, tree in indexed:
        waiting[position] = tree
        while expected in waiting:
            yield waiting.pop(expected)
            expected += 1


def _index(numbered: tuple[int, _Archive]) -> tuple[int, Tree]:
    position, (path, location) = numbered
    tree = Tree()
    with filesystem.explain_os_errors(f"read {path}"):
        tree.add(list_archive(path, location), strip_archive_suffix(location) + "/")
    return position, tree


def _without_equal_paths(tree: Tree, source: str) -> Tree:
    """In one archive the last of equal names counts, as when a tar is unpacked."""
    hashes = tree.refs.paths.hashes(b"")
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    if not same.any():
        return tree
    last: dict[str, ImageRef] = {}
    positions: dict[str, int] = {}
    dropped: list[int] = []
    for i in np.sort(order[np.append(False, same) | np.append(same, False)]).tolist():
        ref = tree.refs[i]
        earlier = last.get(ref.path, ref)
        if earlier.location != ref.location:  # a folder and an archive, or two archives, of one name
            places = sorted(place or "a folder" for place in (earlier.location, ref.location))
            raise DataError(f"{source} holds {ref.path} twice, in {places[0]} and in {places[1]}. Rename one of them.")
        if ref.path in positions:
            dropped.append(positions[ref.path])
        last[ref.path], positions[ref.path] = ref, i
    kept = np.setdiff1d(np.arange(len(tree.refs)), dropped)
    tree.refs, tree.folders = tree.refs.take(kept), tree.folders.take(kept)
    return tree


def skip_reason(path: str) -> str:
    """Why a file plainly is no image, by its name; empty where it may be one."""
    *folders, name = path.split("/")
    if name.startswith(".") or any(folder.startswith(".") for folder in folders):
        return "hidden"
    if name.lower() in NO_IMAGE_NAMES or any(folder.lower() in NO_IMAGE_FOLDERS for folder in folders):
        return "no image by name"
    suffix = posixpath.splitext(name)[1].lower()
    return f"*{suffix}" if suffix in NO_IMAGE_SUFFIXES else ""
