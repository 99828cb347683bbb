"""Reading and writing the files of a dataset, on a local disk or in an object store.

Small files are read whole. A local file is written under a temporary name and renamed, so nobody finds half of one.
Local files are opened so that the call cannot block. What lies in gs://, s3:// or az:// is read by `tfpipe.storage`,
where that can be. Any other URL, and all writing, goes through `tf.io.gfile`.
"""

import contextlib
import errno
import fnmatch
import glob
import hashlib
import io
import os
import posixpath
import stat
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, BinaryIO, cast

from tfpipe.errors import DataError, FormatError, first_line
from tfpipe.storage import buckets, reading
from tfpipe.system.extras import importing

_WRITE_BUFFER_BYTES = 1 << 20
_SYNC_BYTES = 16 << 20  # a disk needs some ten milliseconds for them, and a thread a tenth of one to start
_HASH_CHUNK_BYTES = 1 << 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # no space on the disk, or in this user's share of it
_THREADS = 16  # an object store answers in tens of milliseconds, however small the file


def is_url(path: str) -> bool:
    """Returns whether `path` names a file on another machine."""
    return "://" in path


def join(base: str, *parts: str) -> str:
    """Returns `base` with `parts` below it. A part that is absolute or a URL stands alone, as in `os.path.join`."""
    for part in parts:
        if is_url(part):
            base = part
        else:
            base = posixpath.join(base, part) if is_url(base) else os.path.join(base, part)
    return base


def get_file_size(path: str) -> int:
    """Returns the bytes of a regular local file, or -1 if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def hash_stream(file: IO[bytes]) -> str:
    """Returns the SHA-256 of the rest of an open file, as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    while chunk := file.read(_HASH_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def hash_file(path: str) -> str:
    """Returns the SHA-256 of a local file, as lower-case hexadecimal digits."""
    with open(path, "rb", buffering=0) as file:
        return hash_stream(file)


def open_descriptor(path: str) -> int:
    """Opens a regular local file for reading, and returns its descriptor. Refuses a FIFO or a device without a wait.

    Raises:
        OSError: The file cannot be opened.
        FormatError: The path is not a regular file.
    """
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
    """Returns the whole of a local file, or None if it is not a regular one: nothing waits for a FIFO or a device.

    It takes four system calls, half as many as `open` and a look at the file before it.

    Raises:
        OSError: The file cannot be read.
    """
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
        if len(data) != status.st_size:  # it grows or shrinks, or is larger than one call reads
            while more := os.read(descriptor, _HASH_CHUNK_BYTES):
                data += more
        return data
    finally:
        os.close(descriptor)


class _EarlySyncedFile(io.FileIO):
    """A file whose bytes go to the disk while more are written, so that no core is idle at the end of a large one."""

    _unsynced_bytes = 0
    _thread: threading.Thread | None = None
    _error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Writes `data`, and has another thread bring what was written to the disk each time that it is much."""
        count = super().write(data)
        self._unsynced_bytes += count
        if self._unsynced_bytes >= _SYNC_BYTES and (self._thread is None or not self._thread.is_alive()):
            self._unsynced_bytes = 0
            self._thread = threading.Thread(target=self._sync_early, daemon=True)
            self._thread.start()
        return count

    def sync(self) -> None:
        """Waits until all bytes are on the disk.

        Raises:
            OSError: The disk did not take them, now or earlier. The system reports such an error only once.
        """
        self._wait()
        if self._error is not None:
            raise self._error
        os.fsync(self.fileno())

    def close(self) -> None:
        """Closes the file. Its thread ends before: another file may get the same descriptor."""
        self._wait()
        super().close()

    def _sync_early(self) -> None:
        try:
            os.fsync(self.fileno())
        except OSError as error:
            self._error = self._error or error

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()


@contextlib.contextmanager
def new_file(path: str, temporary: str | None = None) -> Iterator[BinaryIO]:
    """Opens a new local file that appears under `path` when the block ends without an error.

    The bytes are on disk by then, not only in the disk's cache.

    Args:
        path: The final name.
        temporary: The name to write under until then, on the same disk. Default: a name beside `path` that is
            different in every process.

    Raises:
        OSError: The file cannot be written. Nothing is left of it, and a file that was at `path` before is still there.
    """
    temporary = temporary or f"{path}.{os.getpid()}.tmp"
    try:
        with _EarlySyncedFile(temporary, "wb") as raw, io.BufferedWriter(raw, _WRITE_BUFFER_BYTES) as file:
            yield cast(BinaryIO, file)
            file.flush()
            raw.sync()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def write_file(path: str, data: bytes) -> None:
    """Writes `data` as a `new_file`."""
    with new_file(path) as file:
        file.write(data)


def sync_folder(path: str) -> None:
    """Makes sure that the names in a local folder are on the disk, as the bytes of a `new_file` are already."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str) -> None:
    """Creates a folder and those above it, on this machine or in an object store, unless it is there.

    Raises:
        OSError: It cannot be created.
    """
    if not is_url(path):
        return os.makedirs(path, exist_ok=True)
    tf = _tensorflow(path)
    try:
        tf.io.gfile.makedirs(path)
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error


def exists(path: str) -> bool:
    """Returns whether there is a file or folder of this name, on this machine or in an object store.

    Raises:
        DataError: The object store does not answer.
    """
    if not is_url(path):
        return os.path.exists(path)
    tf = _tensorflow(path)
    try:
        return bool(tf.io.gfile.exists(path))
    except tf.errors.OpError as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}.") from error


def list_folder(path: str) -> list[str]:
    """Returns the names in a folder, sorted; none if it does not exist.

    Raises:
        OSError: It cannot be read.
    """
    if not is_url(path):
        return sorted(os.listdir(path)) if os.path.exists(path) else []
    tf = _tensorflow(path)
    try:
        return sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path)) if tf.io.gfile.exists(path) else []
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error


def remove_file(path: str) -> None:
    """Deletes a file, on this machine or in an object store.

    Raises:
        OSError: It cannot be deleted.
    """
    if not is_url(path):
        return os.remove(path)
    tf = _tensorflow(path)
    try:
        tf.io.gfile.remove(path)
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error


def write_anywhere(path: str, data: bytes) -> None:
    """Writes a whole file on this machine or in an object store, which shows it only when it is complete.

    Raises:
        OSError: It cannot be written.
    """
    if not is_url(path):
        return write_file(path, data)
    tf = _tensorflow(path)
    try:
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(data)
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error


def read_bytes(path: str, max_bytes: int) -> bytes:
    """Reads a whole file.

    Args:
        path: A local path or a URL.
        max_bytes: The largest size that is accepted. A larger file is refused before it is read.

    Raises:
        FileNotFoundError: The file does not exist.
        DataError: The file cannot be read. The message says why.
        FormatError: The file is too large, or it is not a regular file.
        MissingDependencyError: The path is a URL, and neither obstore nor TensorFlow is installed.
    """
    try:
        if reading.can_read(path):
            return reading.read_object(path, max_bytes)
        if is_url(path):
            return _read_remote(path, max_bytes)
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            _check_size(path, size, max_bytes)
            return file.read(size)  # not to the end: the file may be growing
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, path) from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_start(path: str, num_bytes: int) -> bytes:
    """Reads the first `num_bytes` of a file, or all of a shorter one. Raises the errors of `read_bytes`."""
    try:
        if reading.can_read(path):
            return reading.read_start(path, num_bytes)
        if is_url(path):
            tf = _tensorflow(path)
            try:
                with tf.io.gfile.GFile(path, "rb") as file:
                    data: bytes = file.read(num_bytes)
                    return data
            except tf.errors.OpError as error:
                raise DataError(f"{path} cannot be read: {first_line(error)}.") from error
        with open_file(path) as file, io.BufferedReader(cast(io.RawIOBase, file)) as buffered:
            return buffered.read(num_bytes)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_all(paths: Sequence[str], max_bytes: Sequence[int]) -> Iterator[bytes]:
    """Yields the bytes of many files, in the order of `paths`.

    Files of an object store are read several at a time, files of a local disk one by one.
    """
    if not paths or not is_url(paths[0]):
        yield from map(read_bytes, paths, max_bytes)
        return
    pool = ThreadPoolExecutor(min(_THREADS, len(paths)))
    try:
        waiting: deque[Future[bytes]] = deque()
        for path, limit in zip(paths, max_bytes, strict=True):
            waiting.append(pool.submit(read_bytes, path, limit))
            if len(waiting) > _THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def find(pattern: str) -> list[str]:
    """Returns the files that match a pattern with `*`, `?` or `[...]`, sorted by name; an empty list if none does.

    Raises:
        DataError: The object store does not answer.
    """
    if not is_url(pattern):
        return sorted(path for path in glob.glob(pattern) if os.path.isfile(path))
    folder, _, name = pattern.rpartition("/")
    if reading.can_read(pattern) and not glob.has_magic(folder):
        return sorted(url for url in reading.list_sizes(folder) if fnmatch.fnmatchcase(url, f"{folder}/{name}"))
    tf = _tensorflow(pattern)
    try:
        return sorted(tf.io.gfile.glob(pattern))
    except tf.errors.OpError as error:
        raise DataError(f"{pattern} cannot be listed: {first_line(error)}.") from error


def read_size(path: str) -> int:
    """Returns the bytes of a file, on this machine or in an object store. Raises the errors of `read_bytes`."""
    if not is_url(path):
        return os.stat(path).st_size
    if reading.can_read(path):
        return reading.get_size(path)
    tf = _tensorflow(path)
    try:
        return int(tf.io.gfile.stat(path).length)
    except tf.errors.OpError as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}.") from error


def total_bytes(paths: Sequence[str]) -> int:
    """Returns the sum of the sizes of files. Raises the errors of `read_bytes`."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(pool.map(read_size, paths))


def check_files(paths: Sequence[str], sizes: Sequence[int]) -> None:
    """Checks that files exist, can be opened, and have the sizes that the manifest gives.

    Local files are checked one by one. Files of an object store are listed in one request; TensorFlow's client does not
    tell their sizes.

    Raises:
        FormatError: A file is missing or has another size.
        DataError: A file cannot be opened, or the object store does not answer.
    """
    if paths and is_url(paths[0]):
        directory = paths[0].rpartition("/")[0]
        if reading.can_read(directory):
            found: dict[str, int] = {}
            for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
                found |= reading.list_sizes(folder)
            for path, size in zip(paths, sizes, strict=True):
                _check_found(path, size, found.get(path))
            return
        listed = set(find(f"{directory}/*"))
        missing = next((path for path in paths if path not in listed), None)
        if missing is not None:
            raise FormatError(f"{missing} is missing. Copy the dataset again.")
        return
    for path, size in zip(paths, sizes, strict=True):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return _check_found(path, size, None)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
        if not stat.S_ISREG(status.st_mode):
            raise FormatError(f"{path} must be a regular file.")
        _check_found(path, size, status.st_size)
        if not os.access(path, os.R_OK):
            raise DataError(f"{path} cannot be read: {os.strerror(errno.EACCES)}.")


def _check_found(path: str, expected: int, found: int | None) -> None:
    """Refuses a file that is missing (None), or that has another size than the manifest gives."""
    if found is None:
        raise FormatError(f"{path} is missing. Copy the dataset again.")
    if found != expected:
        raise FormatError(f"{path} must have {expected:,} bytes, as its manifest says, got {found:,}. Copy it again.")


def check_tensorflow_reads(path: str) -> None:
    """Checks that TensorFlow has a client for a URL. A local path needs none.

    Raises:
        DataError: It has none.
        MissingDependencyError: TensorFlow is not installed.
    """
    if is_url(path):
        _tensorflow(path)


def can_tensorflow_read(path: str) -> bool:
    """Returns whether TensorFlow has a client for a URL, or the path is a local one."""
    try:
        check_tensorflow_reads(path)
    except DataError:
        return False
    return True


@contextlib.contextmanager
def explain_os_errors(
    action: str, if_full: str = "Free some and run the same command again.", otherwise: str = ""
) -> Iterator[None]:
    """Turns a full disk, a missing permission and other errors of the system into a sentence or two.

    Args:
        action: The work of the block, as in "write to /data/out".
        if_full: The advice where the disk is full.
        otherwise: The advice for any other error.

    Raises:
        DataError: The block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename and str(error.filename) not in action else ""
        advice = if_full if error.errno in _DISK_FULL else otherwise
        raise DataError(f"Could not {action}: {reason}{where}. {advice}".rstrip()) from error


def _read_remote(path: str, max_bytes: int) -> bytes:
    tf = _tensorflow(path)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            _check_size(path, file.size(), max_bytes)
            data: bytes = file.read()
            return data
    except tf.errors.NotFoundError as error:
        raise FileNotFoundError(f"{path}: {first_line(error)}") from None
    except tf.errors.OpError as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}.") from error


def _check_size(path: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise FormatError(f"{path} must have at most {max_bytes:,} bytes, got {size:,}.")


def _tensorflow(path: str) -> Any:
    with importing(f"Reading {path}", "TensorFlow", "tfpipe[tensorflow]"):
        import tensorflow
    scheme = path.partition("://")[0]
    if scheme not in tensorflow.io.gfile.get_registered_schemes():
        install = f"install {buckets.REQUIREMENT}, " if scheme in buckets.SCHEMES else ""
        raise DataError(
            f"TensorFlow cannot read {scheme}:// URLs, got {path}. Copy the dataset to a local disk or to gs://, "
            f"{install}or mount the bucket as a folder and name that."
        )
    return tensorflow
