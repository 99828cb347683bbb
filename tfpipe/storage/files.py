"""Files by path or URL: the standard library for this machine, a `Store` for gs://, s3:// and az://.

A file appears under its final name whole or not at all: locally by a temporary name and a rename, in an object store
because an object appears when it is closed. `use_stores` adds other file systems, as a Beam job does.
"""

import contextlib
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO
from uuid import uuid4

from tfpipe.errors import DataError
from tfpipe.storage.buckets import SCHEMES
from tfpipe.storage.file_store import FileStore
from tfpipe.storage.store import Store
from tfpipe.system import file_io
from tfpipe.system.file_io import is_url

OpenStore = Callable[[str, str], FileStore]
"""A function that opens the store of a scheme, the first of whose URLs it gets too; `http` stands for `https`."""

_READ_BUFFER_BYTES = 1 << 20
_WEB_FILE_BYTES = 100_000  # about that of a photograph in ImageNet


def make_absolute(path: str) -> str:
    """Returns an absolute local path without `.` and `..`, or a URL without a closing slash."""
    return path.rstrip("/") if is_url(path) else os.path.abspath(path)


def resolve_links(path: str) -> str:
    """Returns `make_absolute(path)` with links followed."""
    return make_absolute(path) if is_url(path) else os.path.realpath(path)


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading at any place. Compressed files are not unpacked."""
    if is_url(path):
        return _get_store(path).open(path)
    return open(path, "rb", buffering=_READ_BUFFER_BYTES)


def read_bytes(path: str) -> bytes:
    """Returns the whole file."""
    if is_url(path):
        return _get_store(path).read(path)
    with open(path, "rb", buffering=0) as file:  # one read into one bytes object of the right size
        return file.read()


def read_regular(path: str) -> bytes | None:
    """Returns the whole file, or None if it is a folder, a pipe or a device, whose reading may never end."""
    return _get_store(path).read(path) if is_url(path) else file_io.read_regular(path)


def read_range(path: str, offset: int, size: int) -> bytes:
    """Returns `size` bytes from `offset`; fewer only at the end of the file."""
    if is_url(path):
        return _get_store(path).read(path, offset, size)
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        return file.read(size)


def write_bytes(path: str, data: bytes, temporary: str | None = None) -> None:
    """Writes a whole file and makes its folder; arguments as for `create`."""
    if is_url(path):
        _get_store(path).write(path, data)
        return
    with create(path, temporary) as file:
        file.write(data)


@contextlib.contextmanager
def create(path: str, temporary: str | None = None) -> Iterator[IO[bytes]]:
    """Opens a new file that appears under `path` when the block ends well. Its bytes are then on the disk itself.

    Args:
        path: The final name.
        temporary: The local name to write under until then, on the same disk; by default beside `path`.
    """
    if is_url(path):
        with _get_store(path).create(path) as remote:
            yield remote
        return
    temporary = temporary or f"{path}.{uuid4().hex}.tmp"  # not the process id: other machines write here too
    os.makedirs(os.path.dirname(temporary) or ".", exist_ok=True)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with file_io.new_file(path, temporary) as file:
        yield file


def exists(path: str) -> bool:
    """Returns whether there is a file, or on this machine a folder."""
    return _get_store(path).size(path) >= 0 if is_url(path) else os.path.exists(path)


def get_size(path: str) -> int:
    """Returns the bytes of a file, or -1 if there is no regular file."""
    return _get_store(path).size(path) if is_url(path) else file_io.get_file_size(path)


def is_web(path: str) -> bool:
    """Returns whether `path` is a URL of a web server, from which files can only be fetched."""
    return path.startswith(("http://", "https://"))


def get_sizes(paths: Sequence[str]) -> list[int]:
    """Returns the size of many files. A remote folder is listed once, instead of one request for each file.

    A file on the web counts as 100 KB, since to ask for its size costs as much as to fetch it.
    """
    files_in_folder = Counter(_folder(path) for path in paths if is_url(path) and not is_web(path))
    listed_sizes: dict[str, int] = {}
    for folder, count in sorted(files_in_folder.items()):
        if count > 1:
            listed_sizes.update(_get_store(folder).list(f"{folder}/", recursive=False))

    def look_up(path: str) -> int:
        if is_web(path):
            return _WEB_FILE_BYTES
        is_listed = is_url(path) and files_in_folder[_folder(path)] > 1
        return listed_sizes.get(path, -1) if is_listed else get_size(path)

    return [look_up(path) for path in paths]


def list_tree(base: str) -> Iterator[tuple[str, int]]:
    """Yields every file below `base` in a store: its name relative to `base`, and its bytes."""
    base = base.rstrip("/") + "/"
    for path, num_bytes in _get_store(base).list(base):
        if not path.endswith("/"):
            yield path[len(base) :], num_bytes


def list_children(base: str) -> Iterator[tuple[str, int]]:
    """Yields what lies directly in a folder of a store: files with their bytes, folders with a slash and -1."""
    base = base.rstrip("/") + "/"
    for path, num_bytes in _get_store(base).list(base, recursive=False):
        if path != base and ("/" not in path[len(base) :].rstrip("/")):
            yield path[len(base) :], num_bytes


def list_names(base: str) -> list[str]:
    """Returns the names of the files and folders directly in a folder, sorted; none if there is no such folder."""
    if is_url(base):
        base = base.rstrip("/") + "/"
        relative_paths = (path[len(base) :] for path, _ in _get_store(base).list(base, recursive=False))
        return sorted({path.split("/", 1)[0] for path in relative_paths if path})
    return sorted(os.listdir(base)) if os.path.isdir(base) else []


def rename(source: str, target: str) -> None:
    """Gives a file another name and replaces a file that has this name."""
    if is_url(target):
        _get_store(target).rename(source, target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(source, target)


def remove_tree(path: str) -> None:
    """Removes a folder and its content, if it exists."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    base = path.rstrip("/") + "/"
    _get_store(base).delete(url for url, _ in _get_store(base).list(base))


def remove(path: str) -> None:
    """Removes a file, if it exists."""
    if not is_url(path):
        Path(path).unlink(missing_ok=True)
    else:
        _get_store(path).delete([path])


def use_stores(open_other: OpenStore) -> None:
    """Opens the stores of this process anew, by a function that knows more of them than this module."""
    global _open_store
    _open_store = open_other
    _stores.clear()


def check_stores(paths: Iterable[str]) -> None:
    """Asks every store among `paths` once, before anything costs time.

    Raises:
        DataError: A bucket does not exist, denies access or cannot be reached, or there are no credentials.
    """
    for path in filter(is_url, paths):
        _get_store(path).check(path)


def _open_bucket(scheme: str, url: str) -> FileStore:
    if scheme not in SCHEMES:
        raise DataError(f"No file system is installed for {url.rstrip('/')}; there are gs://, s3:// and az://.")
    return Store(scheme)


_open_store: OpenStore = _open_bucket
_stores: dict[str, FileStore] = {}  # by scheme; a client is of use to one process only
_stores_pid = os.getpid()
_opening = threading.Lock()  # a runner may work in threads, and one client serves them all


def _folder(path: str) -> str:
    return path.rsplit("/", 1)[0]


def _get_store(path: str) -> FileStore:
    """Returns the store of a URL, and opens it when it is first needed: the clients take seconds to import."""
    global _stores_pid
    if _stores_pid != os.getpid():  # after a fork, two processes on one connection would get each other's answers
        _stores.clear()
        _stores_pid = os.getpid()
    scheme = "http" if is_web(path) else path.partition("://")[0]
    with _opening:
        if scheme not in _stores:
            _stores[scheme] = _open_store(scheme, path)
        return _stores[scheme]
