"""Files by path or URL: the standard library for this machine, Beam's file systems for `gs://`, `s3://`, `hdfs://`.

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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from tfpipe import storage
from tfpipe.errors import DataError, MissingDependencyError

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
    """Gives Beam's file systems the pipeline's options (endpoints, credentials) in this process."""
    from apache_beam.options.pipeline_options import PipelineOptions

    _file_systems().set_options(PipelineOptions(list(beam_args)))


def absolute(path: str) -> str:
    """A local path from the root, without `.` and `..`; a URL without a closing slash."""
    return path.rstrip("/") if is_remote(path) else os.path.abspath(path)


def resolved(path: str) -> str:
    """`absolute`, with links followed."""
    return absolute(path) if is_remote(path) else os.path.realpath(path)


def open_read(path: str) -> BinaryIO:
    """Opens a file's bytes as they are, whatever its ending; seekable."""
    if is_remote(path):
        return cast(BinaryIO, _beam(path).open(path, compression_type="uncompressed"))
    return open(path, "rb", buffering=_READ_BUFFER_BYTES)


def read_bytes(path: str) -> bytes:
    """The whole file."""
    if is_remote(path):
        with open_read(path) as file:
            return file.read()
    with open(path, "rb", buffering=0) as file:  # one read into one bytes object of the right size
        return file.read()


def read_range(path: str, offset: int, size: int) -> bytes:
    """`size` bytes from `offset`; fewer only where the file ends."""
    with open_read(path) if is_remote(path) else open(path, "rb", buffering=0) as file:
        file.seek(offset)
        return file.read(size)


def write_bytes(path: str, data: bytes, temporary: str | None = None) -> None:
    """Writes a whole file, making its folder; arguments as of `create`."""
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
        with _beam(path).create(path, compression_type="uncompressed") as remote:
            yield remote
        return
    temporary = temporary or f"{path}.{os.getpid()}.tmp"
    os.makedirs(os.path.dirname(temporary) or ".", exist_ok=True)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with storage.new_file(path, temporary) as file:
        yield file


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    return bool(_beam(path).exists(path)) if is_remote(path) else os.path.exists(path)


def size(path: str) -> int:
    """Bytes of a file, or -1 where there is no regular file."""
    if is_remote(path):
        (match,) = _beam(path).match([path])
        return match.metadata_list[0].size_in_bytes if match.metadata_list else -1
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def sizes(paths: Sequence[str]) -> list[int]:
    """`size` of many files; on a remote file system one listing per folder instead of a question per file."""
    known: dict[str, int] = {}
    for folder in sorted({path.rsplit("/", 1)[0] for path in paths if is_remote(path)}):
        (match,) = _beam(folder).match([f"{folder}/*"])
        known.update((found.path, found.size_in_bytes) for found in match.metadata_list)
    return [known.get(path, -1) if is_remote(path) else size(path) for path in paths]


def list_tree(base: str) -> Iterator[tuple[str, int]]:
    """Every file below `base` on a remote file system: its name relative to `base`, and its bytes."""
    base = base.rstrip("/")
    (match,) = _beam(base).match([f"{base}/**"])
    for found in match.metadata_list:
        if not found.path.endswith("/"):
            yield found.path[len(base) + 1 :], found.size_in_bytes


def names(base: str) -> list[str]:
    """What lies directly in a folder, sorted; nothing where there is no such folder."""
    if is_remote(base):
        return sorted({name.split("/", 1)[0] for name, _ in list_tree(base)})
    return sorted(os.listdir(base)) if os.path.isdir(base) else []


def rename(source: str, target: str) -> None:
    """Gives a file another name, replacing what was there."""
    if is_remote(target):
        _beam(target).rename([source], [target])
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.replace(source, target)


def remove_tree(path: str) -> None:
    """Removes a folder and all in it, if it is there."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
    elif _beam(path).exists(path) or any(list_tree(path)):
        _beam(path).delete([path.rstrip("/") + "/"])


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    if not is_remote(path):
        Path(path).unlink(missing_ok=True)
    elif exists(path):
        _beam(path).delete([path])


def _beam(path: str) -> Any:
    """Beam's file systems; refuses a URL that none of them knows, which Beam would say with a bare ValueError."""
    systems = _file_systems()
    try:
        systems.get_filesystem(path)
    except ValueError as error:
        raise DataError(
            f"No file system is installed for {path}; gs:// needs apache-beam[gcp], s3:// needs apache-beam[aws]."
        ) from error
    return systems


def _file_systems() -> Any:
    try:
        from apache_beam.io.filesystems import FileSystems
    except ImportError as error:
        raise MissingDependencyError(
            "A URL is opened through Apache Beam. Install it with: pip install 'tfpipe[beam]'."
        ) from error
    return FileSystems


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
