"""Opening a finished dataset: its manifest, from a local disk or an object store."""

import os
from dataclasses import replace

from tfpipe import storage
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import manifest_json, naming
from tfpipe.format.manifest import Manifest

_MAX_MANIFEST_BYTES = 2**30  # some 5 million shards: beyond that it is another file by that name


def load_manifest(directory: str) -> Manifest:
    """Reads the manifest of a finished dataset.

    Args:
      directory: What `tfpipe shard` wrote: a local directory, or a URL that TensorFlow can read, such as gs://.

    Raises:
      DataError: There is no such directory, or no finished dataset in it; the message says which.
      FormatError: The manifest cannot be used; the message gives the place.
      MissingDependencyError: `directory` is a URL and TensorFlow is not installed.
    """
    path = storage.join(directory, naming.MANIFEST)
    try:
        data = storage.read_bytes(path, _MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise DataError(_why_none(directory)) from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8: the byte at {error.start} does not belong there.") from None
    return replace(manifest_json.loads(text, path), directory=directory)


def check_local(directory: str) -> None:
    """Refuses what is no path on this machine.

    Raises:
      ConfigError: `directory` is a URL.
    """
    if storage.is_url(directory):
        raise ConfigError(
            f"A dataset is read from a local directory, got {directory!r}. Copy it to a local disk first."
        )


def _why_none(directory: str) -> str:
    if storage.is_url(directory):
        return f"{directory} holds no {naming.MANIFEST}: it is no finished tfpipe dataset."
    if not os.path.lexists(directory):
        return f"{directory} does not exist."
    if not os.path.isdir(directory):
        return f"{directory} must be the directory of a dataset, the one that holds {naming.MANIFEST}."
    missing = f"{directory} holds no {naming.MANIFEST}: it is no finished tfpipe dataset."
    if os.path.isdir(os.path.join(directory, naming.WORK_DIR)):
        return f"{missing} An earlier run was not finished; run the same `tfpipe shard` command again to finish it."
    return f"{missing} `tfpipe shard` writes one out of images."
