"""Opening a finished dataset: its manifest, and its files as files that cannot block or surprise."""

import os
import stat
from typing import BinaryIO

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import manifest_json, naming
from tfpipe.format.manifest import Manifest

_MAX_MANIFEST_BYTES = 2**30  # some 5 million shards: beyond that it is another file by that name


def load_manifest(directory: str) -> Manifest:
    """Reads the manifest of a finished dataset.

    Args:
      directory: The local directory that `tfpipe shard` wrote.

    Raises:
      ConfigError: `directory` is a URL.
      DataError: There is no such directory, or no finished dataset in it; the message says which.
      FormatError: The manifest cannot be used; the message gives the place.
    """
    check_local(directory)
    path = os.path.join(directory, naming.MANIFEST)
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size >= _MAX_MANIFEST_BYTES:
                raise FormatError(f"{path} must be smaller than 1 GiB; it is no manifest of a dataset.")
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(_why_none(directory)) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8: the byte at {error.start} does not belong there.") from None
    return manifest_json.loads(text, path)


def check_local(directory: str) -> None:
    """Refuses what is no path on this machine.

    Raises:
      ConfigError: `directory` is a URL.
    """
    if "://" in directory:
        raise ConfigError(
            f"A dataset is read from a local directory, got {directory!r}. Copy it to a local disk first."
        )


def open_file(path: str) -> BinaryIO:
    """Opens a regular file for reading, unbuffered; a FIFO or a device is refused instead of waited for.

    Raises:
      OSError: It cannot be opened.
      FormatError: It is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FormatError(f"{path} must be a regular file.")
        return open(descriptor, "rb", buffering=0)
    except BaseException:
        os.close(descriptor)
        raise


def _why_none(directory: str) -> str:
    if not os.path.lexists(directory):
        return f"{directory} does not exist."
    if not os.path.isdir(directory):
        return f"{directory} must be the directory of a dataset, the one that holds {naming.MANIFEST}."
    missing = f"{directory} holds no {naming.MANIFEST}: it is no finished tfpipe dataset."
    if os.path.isdir(os.path.join(directory, naming.WORK_DIR)):
        return f"{missing} An earlier run was not finished; run the same `tfpipe shard` command again to finish it."
    return f"{missing} `tfpipe shard` writes one out of images."
