"""Local files. A file appears whole or not at all, and no call waits for a pipe or a device."""

import contextlib
import errno
import hashlib
import io
import os
import stat
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import IO, Any, BinaryIO, cast
from uuid import uuid4

from tfpipe.errors import FormatError
from tfpipe.system.aside import run_aside
from tfpipe.system.file_lock import open_no_link

_WRITE_BUFFER_BYTES = 1 << 20
_SYNC_BYTES = 16 << 20  # a disk takes about 10 ms to sync these, and a thread 0.1 ms to start
HASH_CHUNK_BYTES = 1 << 20


def get_file_size(path: str) -> int:
    """Returns the bytes of a regular local file, or -1 if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def sync_folder(path: str) -> None:
    """Writes the names in a local folder to the disk; `new_file` has synced the bytes of the files already."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_stream(file: IO[bytes]) -> str:
    """Returns the SHA-256 of the rest of an open file, as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    while chunk := file.read(HASH_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def open_descriptor(path: str) -> int:
    """Opens a regular local file for reading, and returns its descriptor. Refuses a FIFO or a device at once."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FormatError(f"{path} must be a regular file.")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: str) -> BinaryIO:
    """Opens a regular local file for reading, unbuffered; errors are those of `open_descriptor`."""
    return open(open_descriptor(path), "rb", buffering=0)


def read_regular(path: str) -> bytes | None:
    """Reads a whole local file with four system calls; returns None if it is not a regular file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device that is not there
            return None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        data = os.read(descriptor, status.st_size + 1)
        if len(data) != status.st_size:  # the file grows or shrinks, or is larger than one call reads
            while more := os.read(descriptor, HASH_CHUNK_BYTES):
                data += more
        return data
    finally:
        os.close(descriptor)


class _EarlySyncedFile(io.FileIO):
    """A file that is synced while it is written, so that no core idles during a long sync at the end."""

    _unsynced_bytes = 0
    _early: Future[None] | None = None

    def write(self, data: Any, /) -> int:
        """Writes `data`, and has another thread sync the file after each `_SYNC_BYTES`."""
        count = super().write(data)
        self._unsynced_bytes += count
        if self._unsynced_bytes >= _SYNC_BYTES and (self._early is None or self._early.done()):
            if self._early is not None:
                self._early.result()
            self._unsynced_bytes = 0
            self._early = run_aside(lambda: os.fsync(self.fileno()), "tfpipe-sync")
        return count

    def sync(self) -> None:
        """Waits until all bytes are on the disk."""
        if self._early is not None:
            self._early.result()
        os.fsync(self.fileno())

    def close(self) -> None:
        """Closes the file after its thread ended, because another file may get the same descriptor."""
        if self._early is not None:
            wait((self._early,))
        super().close()


@contextlib.contextmanager
def new_file(path: str, temporary: str | None = None) -> Iterator[BinaryIO]:
    """Opens a new local file that appears under `path`, synced to disk, when the block ends without an error."""
    temporary = temporary or f"{path}.{uuid4().hex}.tmp"
    try:
        with (
            _EarlySyncedFile(temporary, "wb", opener=open_no_link) as raw,
            io.BufferedWriter(raw, _WRITE_BUFFER_BYTES) as file,
        ):
            yield cast(BinaryIO, file)
            file.flush()
            raw.sync()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def write_new(path: str, data: bytes) -> bool:
    """Writes a small file unless it exists, and returns whether it did."""
    temporary = f"{path}.{uuid4().hex}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.link(temporary, path)  # unlike a rename, this fails if the name is taken, on NFS too
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
    return True
