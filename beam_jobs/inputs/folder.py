"""Walks a folder, local or on a remote file system, as a stream."""

import os
import stat
from collections.abc import Iterator

from beam_jobs.inputs.archive import Member
from beam_jobs.storage import filesystem
from tfpipe.errors import DataError

_Identity = tuple[int, int]  # device and inode


def list_folder(root: str) -> Iterator[Member]:
    """Every file below `root`, in no order, links followed; paths relative to it.

    Raises:
        DataError: There is no such folder, or a link leads back to a folder that it lies in.
    """
    if filesystem.is_remote(root):
        for path, size in filesystem.list_tree(root):
            yield Member(path, size)
        return
    if not os.path.isdir(root):
        known = "a folder, a .csv, .jsonl or .parquet manifest, or a .tar, .tar.gz or .zip archive"
        what = "is none of these" if os.path.exists(root) else "does not exist"
        raise DataError(f"The input must be {known}; {root} {what}.")
    status = os.stat(root)
    yield from _walk(root, "", ((status.st_dev, status.st_ino),))


def _walk(root: str, prefix: str, above: tuple[_Identity, ...]) -> Iterator[Member]:
    folders: list[tuple[str, _Identity]] = []
    # As the file system gives them: to sort a folder of millions would take a kilobyte for each of its files.
    with os.scandir(os.path.join(root, prefix)) as entries:
        for entry in entries:
            path = prefix + entry.name
            try:
                status = entry.stat()
            except OSError:  # a link to nothing: reading it later says so, with its path
                yield Member(path, 0)
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append((path, (status.st_dev, status.st_ino)))
            elif not stat.S_ISREG(status.st_mode):
                yield Member(path, 0, skip="not a regular file")
            else:
                yield Member(path, status.st_size)
    for path, identity in sorted(folders):
        if identity in above:
            raise DataError(f"Folders must not loop, but {os.path.join(root, path)} leads back to one above it.")
        yield from _walk(root, path + "/", (*above, identity))
