"""Files by path or URL: the standard library for this machine, a `Store` for `gs://`, `s3://` and what else Beam knows.

Local paths do not go through Beam: a worker process then never imports it (1.2 s and 100 MB), and opening an
image costs a tenth. A file appears under its final name whole or not at all: locally by a temporary name and
a rename, on an object store because an object appears when it is closed.
"""

import contextlib
import errno
import os
import posixpath
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, BinaryIO
from uuid import uuid4

from beam_jobs.storage.object_store import Store
from tfpipe.errors import DataError, MissingDependencyError
from tfpipe.system import file_io

_FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or this user's share of it
_READ_BUFFER_BYTES = 1 << 20


def is_remote(path: str) -> bool:
    """Whether `path` is a URL of a file system."""
    return "://" in path


def join(base: str, *parts: str) -> str:
    """`base` with `parts` below it; a part that is absolute or a URL stands alone, as in `os.path.join`."""
    for part in parts:
        if is_remote(part):
            base = part
        else:
            base = posixpath.join(base, part) if is_remote(base) else os.path.join(base, part)
    return base


def configure(beam_args: Iterable[str]) -> None:
    """Gives the stores the pipeline's options (endpoints, credentials) in this process."""
    global _beam_args
    _beam_args = tuple(beam_args)
    _stores.clear()


def configured() -> tuple[str, ...]:
    """What `configure` was given in this process; for another one that is to reach the same stores."""
    return _beam_args


def check_stores(paths: Iterable[str]) -> None:
    """Asks every store among `paths` once, before anything costs time.

    Raises:
        DataError: A bucket is not there, not allowed or not reached, or there are no credentials.
    """
    for path in filter(is_remote, paths):
        _store(path).check(path)


def absolute(path: str) -> str:
    """A local path from the root, without `.` and `..`; a URL without a closing slash."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)


def resolved(path: str) -> str:
    """`absolute`, with links followed."""
    return absolute(path) if is_remote(path) else os.path.realpath(path)


def open_read(path: str) -> BinaryIO:
    """Opens a file's bytes as they are, whatever its ending; seekable."""
    if is_remote(path):
        return _store(path).open(path)
    return open(path, "rb", buffering=_READ_BUFFER_BYTES)


def read_bytes(path: str) -> bytes:
    """The whole file."""
    if is_remote(path):
        return _store(path).read(path)
    with open(path, "rb", buffering=0) as file:  # one read into one bytes object of the right size
        return file.read()


def read_range(path: str, offset: int, size: int) -> bytes:
    """`size` bytes from `offset`; fewer only where the file ends."""
    if is_remote(path):
        return _store(path).read(path, offset, size)
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        return file.read(size)


def write_bytes(path: str, data: bytes, temporary: str | None = None) -> None:
    """Writes a whole file, making its folder; arguments as of `create`."""
    if is_remote(path):
        _store(path).write(path, data)
        return
    with create(path, temporary) as file:
        file.write(data)


@contextlib.contextmanager
def create(path: str, temporary: str | None = None) -> Iterator[IO[bytes]]:
    """A new file that appears under `path` when the block ends well, on disk and not only in its cache.

    Args:
        path: Its final name.
        temporary: Local name to write under meanwhile, on the same disk; default: beside it.
    """
    if is_remote(path):
        with _store(path).create(path) as remote:
            yield remote
        return
    temporary = temporary or f"{path}.{uuid4().hex}.tmp"  # not the process id: other machines write here too
    os.makedirs(os.path.dirname(temporary) or ".", exist_ok=True)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with file_io.new_file(path, temporary) as file:
        yield file


def exists(path: str) -> bool:
    """Whether there is a file, or on this machine a folder."""
    return _store(path).size(path) >= 0 if is_remote(path) else os.path.exists(path)


def size(path: str) -> int:
    """Bytes of a file, or -1 where there is no regular file."""
    if is_remote(path):
        return _store(path).size(path)
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def sizes(paths: Sequence[str]) -> list[int]:
    """`size` of many files; on a remote file system one listing per folder instead of a question per file."""
    wanted = Counter(path.rsplit("/", 1)[0] for path in paths if is_remote(path))
    known: dict[str, int] = {}
    for folder, count in sorted(wanted.items()):
        if count > 1:
            known.update(_store(folder).list(f"{folder}/", recursive=False))

    def one(path: str) -> int:
        asked_alone = not is_remote(path) or wanted[path.rsplit("/", 1)[0]] == 1
        return size(path) if asked_alone else known.get(path, -1)

    return [one(path) for path in paths]


def list_tree(base: str) -> Iterator[tuple[str, int]]:
    """Every file below `base` on a remote file system: its name relative to `base`, and its bytes."""
    base = base.rstrip("/") + "/"
    for path, num_bytes in _store(base).list(base):
        if not path.endswith("/"):
            yield path[len(base) :], num_bytes


def names(base: str) -> list[str]:
    """What lies directly in a folder, sorted; nothing where there is no such folder."""
    if is_remote(base):
        base = base.rstrip("/") + "/"
        found = (path[len(base) :] for path, _ in _store(base).list(base, recursive=False))
        return sorted({name.split("/", 1)[0] for name in found if name})
    return sorted(os.listdir(base)) if os.path.isdir(base) else []


def rename(source: str, target: str) -> None:
    """Gives a file another name, replacing what was there."""
    if is_remote(target):
        _store(target).rename(source, target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(source, target)


def remove_tree(path: str) -> None:
    """Removes a folder and all in it, if it is there."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    base = path.rstrip("/") + "/"
    _store(base).delete(found for found, _ in _store(base).list(base))


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
    else:
        _store(path).delete([path])


_beam_args: tuple[str, ...] = ()
_stores: dict[str, Store] = {}  # by scheme; what a client opened is of use to one process only
_stores_of = os.getpid()
_opening = threading.Lock()  # an engine may work in threads, and one client serves them all


def _store(path: str) -> Store:
    """The store of a URL, made where it is first needed: the clients take seconds to import."""
    global _stores_of
    if _stores_of != os.getpid():  # forked: two processes on one connection would get each other's answers
        _stores.clear()
        _stores_of = os.getpid()
    scheme = path.partition("://")[0]
    with _opening:
        if scheme not in _stores:
            _stores[scheme] = _open_store(scheme, path)
        return _stores[scheme]


def _open_store(scheme: str, path: str) -> Store:
    try:
        from apache_beam.options import pipeline_options
    except ImportError as error:
        raise MissingDependencyError(
            "A URL is opened through Apache Beam. Install it with: pip install 'tfpipe[beam]'."
        ) from error
    options = pipeline_options.PipelineOptions(list(_beam_args))
    if scheme == "gs":
        from beam_jobs.storage.gcs import GcsStore

        return GcsStore(options.view_as(pipeline_options.GoogleCloudOptions))
    if scheme == "s3":
        from beam_jobs.storage.s3 import S3Store

        return S3Store(options.view_as(pipeline_options.S3Options))
    from beam_jobs.storage.beam_store import OtherStore

    return OtherStore(path, options)


@contextlib.contextmanager
def explain_os_errors(doing: str) -> Iterator[None]:
    """Turns a full disk, a missing permission and the like into a `DataError` of one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename and str(error.filename) not in doing else ""
        advice = " Free some and run the same command again." if error.errno in _FULL else ""
        raise DataError(f"Could not {doing}: {reason}{where}.{advice}") from error
