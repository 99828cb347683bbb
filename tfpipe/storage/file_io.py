"""Files by path or URL, in one place. A file appears under its final name whole or not at all."""

import contextlib
import errno
import fnmatch
import glob
import io
import os
import posixpath
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, BinaryIO, cast

from tfpipe.errors import DataError, FormatError
from tfpipe.storage import local
from tfpipe.storage.local import hash_stream as hash_stream
from tfpipe.storage.stores import get_store

_READ_BUFFER_BYTES = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # no space on the disk, or in this user's share of it
_READ_BY_ALL = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_ASKED_AT_ONCE = 1000  # the files that one thread looks up
_LOCAL_S = 5e-5  # seconds a file: a local disk answers sooner, a network file system later
_THREADS = 16  # because an object store takes tens of milliseconds for any file


def is_url(path: str) -> bool:
    """Returns whether `path` names a file on another machine."""
    return "://" in path


def join(base: str, *names: str) -> str:
    """Returns `base` with `names` below it. An absolute name or a URL drops those before it, as in `os.path.join`."""
    for name in names:
        if is_url(name):
            base = name
        else:
            base = posixpath.join(base, name) if is_url(base) else os.path.join(base, name)
    return base


def join_names(base: str, names: Iterable[str]) -> list[str]:
    """Joins `base` with each of many relative names, as `join` does with one."""
    prefix = join(base, "")
    return [prefix + name for name in names]


def make_absolute(path: str) -> str:
    """Returns an absolute local path without `.` and `..`, or a URL without a closing slash."""
    return path.rstrip("/") if is_url(path) else os.path.abspath(path)


def resolve_links(path: str) -> str:
    """Returns `make_absolute(path)` with links followed."""
    return make_absolute(path) if is_url(path) else os.path.realpath(path)


def lies_below(path: str, root: str) -> bool:
    """Returns whether a path, relative to a folder or absolute, names a file below that folder. Links are followed."""
    if not is_url(path):
        path = posixpath.normpath(path)
        if path[0] != "/" and path != ".." and not path.startswith("../"):
            return True
    base = make_absolute(root or ".").rstrip("/")
    whole = make_absolute(join(root, path))
    return whole.startswith(f"{base}/") and "/../" not in f"{whole}/"


def refuse_links(folder: str, names: Iterable[str]) -> None:
    """Refuses to write into a local folder if `names` in it contain links to folders; it may itself be a link."""
    if is_url(folder):
        return
    for path in (join(folder, name) for name in names):
        if os.path.islink(path) and not os.path.isfile(path):
            raise DataError(
                f"Nothing is written through a link to another folder, and {path} leads to {os.readlink(path)}. "
                "Put the folder itself in its place, or remove the link."
            )
        if os.path.isdir(path) and not os.path.islink(path):
            inner: list[str] = []
            with (
                explain_os_errors(f"look into {path}"),
                contextlib.suppress(FileNotFoundError),
                os.scandir(path) as found,
            ):
                inner = [entry.name for entry in found if not entry.is_file(follow_symlinks=False)]
            refuse_links(path, inner)


def check_stores(paths: Iterable[str]) -> None:
    """Checks once that each store among `paths` can be reached, before a job spends time."""
    for path in filter(is_url, paths):
        get_store(path).check(path)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading at any offset, a local file unbuffered. Compressed files are not unpacked."""
    return get_store(path).open(path) if is_url(path) else local.open_file(path)


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading at any offset, with a buffer."""
    return get_store(path).open(path) if is_url(path) else open(path, "rb", buffering=_READ_BUFFER_BYTES)


def read_whole(path: str) -> bytes:
    """Returns a whole file of any size. Raises an `OSError` if it cannot be read."""
    if is_url(path):
        return get_store(path).read(path)
    with open(path, "rb", buffering=0) as file:  # one read into one bytes object of the right size
        return file.read()


def read_regular(path: str) -> bytes | None:
    """Returns a whole file, or None if it is a folder, a pipe or a device, whose reading may never end."""
    return get_store(path).read(path) if is_url(path) else local.read_regular(path)


def read_range(path: str, offset: int, size: int) -> bytes:
    """Returns `size` bytes from `offset`; fewer only at the end of the file."""
    if is_url(path):
        return get_store(path).read(path, offset, size)
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        return file.read(size)


def read_bytes(path: str, max_bytes: int) -> bytes:
    """Reads a whole file, and refuses one of more than `max_bytes`: another program may have written it."""
    try:
        if is_url(path):
            data = get_store(path).read(path, 0, max_bytes + 1)
            if len(data) > max_bytes:
                _check_size(path, get_store(path).size(path), max_bytes)
            return data
        with local.open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            _check_size(path, size, max_bytes)
            return file.read(size)  # not to the end: the file may be growing
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, path) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _explain_reading(path, error) from error


def read_start(path: str, num_bytes: int) -> bytes:
    """Reads the first `num_bytes` of a file, or all of a shorter one. Raises the errors of `read_bytes`."""
    with explain_reading(path):
        if is_url(path):
            return get_store(path).read(path, 0, num_bytes)
        with local.open_file(path) as file, io.BufferedReader(cast(io.RawIOBase, file)) as buffered:
            return buffered.read(num_bytes)


def read_starts(paths: Sequence[str], num_bytes: int) -> list[bytes]:
    """Reads the first bytes of many files as `read_start`, several at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda path: read_start(path, num_bytes), paths))


def create(
    path: str, temporary: str | None = None, *, makes_folders: bool = False
) -> AbstractContextManager[IO[bytes]]:
    """Opens a new file that appears under `path`, synced to disk, when the block ends without an error."""
    if is_url(path):
        return get_store(path).create(path)
    if makes_folders:
        for name in (path, temporary or path):
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    return local.new_file(path, temporary)


def write_file(path: str, data: bytes, temporary: str | None = None, *, makes_folders: bool = False) -> None:
    """Writes a whole file, which appears when it is complete; arguments as for `create`."""
    if is_url(path):
        get_store(path).write(path, data)
        return
    with create(path, temporary, makes_folders=makes_folders) as file:
        file.write(data)


def write_new(path: str, data: bytes) -> bool:
    """Writes a small file and its folders unless the file exists; returns whether it did. Only one process does."""
    if is_url(path):
        return get_store(path).write_new(path, data)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return local.write_new(path, data)


def make_folder(path: str) -> None:
    """Creates a folder and its parents, unless they exist. A bucket needs no folders."""
    if is_url(path):
        get_store(path).make_folder(path)
    else:
        os.makedirs(path, exist_ok=True)


def exists(path: str) -> bool:
    """Returns whether there is a file or a folder of this name."""
    return (get_size(path) >= 0 or is_folder(path)) if is_url(path) else os.path.exists(path)


def is_folder(path: str) -> bool:
    """Returns whether there is a folder of this name; in a bucket, whether an object lies in it."""
    if not is_url(path):
        return os.path.isdir(path)
    return next(iter(get_store(path).list(f"{path.rstrip('/')}/", recursive=False)), None) is not None


def get_size(path: str) -> int:
    """Returns the bytes of a file, or -1 if there is no regular file."""
    return get_store(path).size(path) if is_url(path) else local.get_file_size(path)


def get_versions(paths: Sequence[str]) -> list[str | None]:
    """Returns a text for each file that changes with the file's content; None for one that does not exist."""

    def look_up(path: str) -> str | None:
        if is_url(path):
            return get_store(path).version(path)
        with contextlib.suppress(OSError):
            status = os.stat(path)
            return f"{status.st_size}:{status.st_mtime_ns}"
        return None

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(look_up, paths))


def get_sizes(paths: Sequence[str]) -> list[int]:
    """Returns the size of many files, -1 for a missing one. A remote folder is listed once."""
    files_in_folder = Counter(_folder(path) for path in paths if is_url(path))
    folders = sorted(folder for folder, count in files_in_folder.items() if count > 1)
    listed = dict(entry for folder in folders for entry in get_store(folder).list(f"{folder}/", recursive=False))

    def look_up(path: str) -> int:
        is_listed = is_url(path) and files_in_folder[_folder(path)] > 1
        return listed.get(path, -1) if is_listed else get_size(path)

    return [look_up(path) for path in paths]


def total_bytes(paths: Sequence[str]) -> int:
    """Returns the sum of the sizes of files. Raises the errors of `read_bytes`."""
    sizes = get_sizes(paths)
    if -1 in sizes:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), paths[sizes.index(-1)])
    return sum(sizes)


def list_tree(base: str) -> Iterator[tuple[str, int]]:
    """Yields every file below `base` in a store: its name relative to `base`, and its bytes."""
    base = base.rstrip("/") + "/"
    for path, num_bytes in get_store(base).list(base):
        if not path.endswith("/"):
            yield path[len(base) :], num_bytes


def list_children(base: str) -> Iterator[tuple[str, int]]:
    """Yields the names directly in a folder of a store: `file` with its size, and `folder/` with -1."""
    base = base.rstrip("/") + "/"
    for path, num_bytes in get_store(base).list(base, recursive=False):
        if path != base and ("/" not in path[len(base) :].rstrip("/")):
            yield path[len(base) :], num_bytes


def list_names(base: str) -> list[str]:
    """Returns the names of the files and folders directly in a folder, sorted; none if there is no such folder.

    Raises a `DataError` if the folder cannot be read.
    """
    if is_url(base):
        base = base.rstrip("/") + "/"  # TensorFlow's stores may list files of inner folders
        relative_paths = (path[len(base) :] for path, _ in get_store(base).list(base, recursive=False))
        return sorted({path.split("/", 1)[0] for path in relative_paths if path})
    with explain_reading(base), contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(base)) if os.path.isdir(base) else []
    return []


def find(pattern: str) -> list[str]:
    """Returns the files that match a pattern with `*`, `?` or `[...]`, sorted by name; an empty list if none does."""
    if not is_url(pattern):
        return sorted(path for path in glob.glob(pattern) if os.path.isfile(path))
    levels = pattern.split("/")
    fixed = next((k for k, level in enumerate(levels) if glob.has_magic(level)), len(levels) - 1)
    base = "/".join(levels[:fixed])
    listed = list_children(base) if fixed == len(levels) - 1 else list_tree(base)
    names = (name for name, _ in listed if name.count("/") == len(levels) - fixed - 1)
    return sorted(f"{base}/{name}" for name in names if all(map(fnmatch.fnmatchcase, name.split("/"), levels[fixed:])))


def rename(source: str, target: str) -> None:
    """Gives a file another name and replaces a file that has this name."""
    if is_url(target):
        get_store(target).rename(source, target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(source, target)


def remove_tree(path: str) -> None:
    """Removes a folder and its content, if it exists."""
    if not is_url(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    base = path.rstrip("/") + "/"
    get_store(base).delete(url for url, _ in get_store(base).list(base))


def remove(path: str) -> None:
    """Removes a file, if it exists."""
    if not is_url(path):
        Path(path).unlink(missing_ok=True)
    else:
        get_store(path).delete([path])


def check_files(paths: Sequence[str], sizes: Sequence[int]) -> None:
    """Checks that files exist, can be opened, and have the sizes that the manifest gives; a store is asked once."""
    if paths and is_url(paths[0]):
        for path, size, found in zip(paths, sizes, get_sizes(paths), strict=True):
            _check_found(path, size, found)
        return
    begun, n = time.monotonic(), _ASKED_AT_ONCE
    _check_local(paths[:n], sizes[:n])
    if time.monotonic() - begun < n * _LOCAL_S:  # threads would only wait for each other
        return _check_local(paths[n:], sizes[n:])
    chunks = ((paths[i : i + n], sizes[i : i + n]) for i in range(n, len(paths), n))
    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(lambda chunk: _check_local(*chunk), chunks):
            pass


def _check_local(paths: Sequence[str], sizes: Sequence[int]) -> None:
    for path, size in zip(paths, sizes, strict=True):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return _check_found(path, size, -1)
        except OSError as error:
            raise _explain_reading(path, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path} must be a regular file.")
        _check_found(path, size, status.st_size)
        if status.st_mode & _READ_BY_ALL != _READ_BY_ALL and not os.access(path, os.R_OK):
            raise DataError(f"{path} cannot be read: {os.strerror(errno.EACCES)}.")


def _check_found(path: str, expected: int, found: int) -> None:
    """Refuses a file that is missing (-1), or that has another size than the manifest gives."""
    if found < 0:
        raise FormatError(f"{path} is missing. Copy the dataset again.")
    if found != expected:
        raise FormatError(f"{path} must have {expected:,} bytes, as its manifest says, got {found:,}. Copy it again.")


@contextlib.contextmanager
def explain_os_errors(
    action: str, if_full: str = "Free some and run the same command again.", otherwise: str = ""
) -> Iterator[None]:
    """Turns OS errors into a `DataError` about an action, as in "write to /data/out", with advice."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename and str(error.filename) not in action else ""
        advice = if_full if error.errno in _DISK_FULL else otherwise
        raise DataError(f"Could not {action}: {reason}{where}. {advice}".rstrip()) from error


@contextlib.contextmanager
def explain_reading(path: str) -> Iterator[None]:
    """Turns OS errors while a file is read into a `DataError`."""
    try:
        yield
    except OSError as error:
        raise _explain_reading(path, error) from error


def _explain_reading(path: str, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror or error}.")


def _check_size(path: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise FormatError(f"{path} must have at most {max_bytes:,} bytes, got {size:,}.")


def _folder(path: str) -> str:
    return path.rsplit("/", 1)[0]
