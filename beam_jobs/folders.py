"""Walks a folder, local or on a remote file system, archives in it included."""

import os
import stat
from collections.abc import Iterator

from beam_jobs import files
from beam_jobs.archives import Member, is_archive, list_archive, strip_archive_suffix
from tfpipe.errors import DataError

_Identity = tuple[int, int]  # device and inode


def list_folder(root: str) -> Iterator[Member]:
    """Every file below `root`, links followed; paths relative to it.

    Raises:
        DataError: There is no such folder, or a link leads back to a folder that it lies in.
    """
    if files.is_remote(root):
        for path, size in files.list_tree(root):
            yield from _expand(root, path, size)
        return
    if not os.path.isdir(root):
        known = "a folder, a .csv, .jsonl or .parquet manifest, or a .tar, .tar.gz or .zip archive"
        what = "is none of these" if os.path.exists(root) else "does not exist"
        raise DataError(f"The input must be {known}; {root} {what}.")
    status = os.stat(root)
    yield from _walk(root, "", ((status.st_dev, status.st_ino),))


def _walk(root: str, prefix: str, above: tuple[_Identity, ...]) -> Iterator[Member]:
    with os.scandir(os.path.join(root, prefix)) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = prefix + entry.name
        try:
            status = entry.stat()
        except OSError:  # a link to nothing: reading it later says so, with its path
            yield Member(path, 0)
            continue
        if stat.S_ISDIR(status.st_mode):
            identity = status.st_dev, status.st_ino
            if identity in above:
                raise DataError(f"Folders must not loop, but {os.path.join(root, path)} leads back to one above it.")
            yield from _walk(root, path + "/", (*above, identity))
        elif not stat.S_ISREG(status.st_mode):
            yield Member(path, 0, skip="not a regular file")
        else:
            yield from _expand(root, path, status.st_size)


def _expand(root: str, path: str, size: int) -> Iterator[Member]:
    """A file, or what is in it where it is an archive."""
    if not is_archive(path) or path.rsplit("/", 1)[-1].startswith("."):
        yield Member(path, size)
        return
    inside = strip_archive_suffix(path)
    for member in list_archive(files.join(root, path), path):
        yield member._replace(path=f"{inside}/{member.path}")
