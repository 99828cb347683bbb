"""The files that options name: checked before the work, written whole after it."""

import os

from tfpipe.errors import ConfigError, DataError
from tfpipe.storage import file_io


def check_target(path: str) -> None:
    """Checks before the work is done that a file can be written at a path."""
    _check_kind(path)
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        advice = "Create it, or choose another place."
        raise ConfigError(f"{path} cannot be written: the folder {folder} does not exist. {advice}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} cannot be written: no permission to write to {folder}. Choose another place.")


def write_file(path: str, data: bytes) -> None:
    """Writes a whole file, which appears under its name when it is complete."""
    _check_kind(path)
    try:
        file_io.write_file(os.path.realpath(path), data)  # a link keeps pointing where it did
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error


def _check_kind(path: str) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{path} must be a file, and is a folder or a device.")
