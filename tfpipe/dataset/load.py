"""The manifest of a finished dataset, from a local disk or an object store."""

import os
from dataclasses import replace
from typing import TypeVar

from tfpipe.dataset.dataset_files import load_own_manifest
from tfpipe.dataset.history import History
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.system.units import shorten

_Data = TypeVar("_Data")


def load_manifest(directory: str | os.PathLike[str], *, root: str | None = None) -> Manifest:
    """Reads the manifest of a finished dataset.

    The shards lie beside the manifest. Only a manifest from `tfpipe index` can name another directory for them, and no
    name of a shard can leave that directory. A warning names the directory, so that a foreign manifest cannot make a
    program read other files unnoticed. `root` overrules it, and then there is no warning.

    Args:
        directory: The dataset that `tfpipe shard` or `tfpipe index` wrote: a local directory, or a URL of gs://,
            s3:// or az://, or another one that TensorFlow can read. Behind an `@` may stand a view of it, as in
            `data/flowers@large`, or one of its layers, as in `data/flowers@2`.
        root: The directory or URL where the shards of an indexed dataset lie, whatever the manifest says.

    Raises:
        ConfigError: `root` is given for a dataset that tfpipe wrote itself.
        DataError: There is no such directory, no finished dataset in it, or no such view or layer; the message says
            which.
        FormatError: The manifest or the view cannot be used; the message gives the place.
        MissingDependencyError: `directory` is a URL, and neither obstore nor TensorFlow is installed.
    """
    if not isinstance(directory, str | os.PathLike):
        raise ConfigError(f"A dataset must be a path or URL, got {shorten(directory)}.")
    directory, view = split_address(os.fspath(directory).removeprefix("file://"))
    history = History.read(load_own_manifest(directory, root=root))
    if view.isdecimal():
        return replace(history.cut(int(view)).check_newest().load(), view=str(int(view)))
    return history.check_newest().load(view)


def load_if_path(data: _Data | str | os.PathLike[str], *kinds: type[_Data]) -> _Data | Manifest:
    """Loads the manifest of the dataset at a path or URL; returns data of the given kinds as it is."""
    if isinstance(data, str | os.PathLike):
        return load_manifest(data)
    if not isinstance(data, kinds):
        *names, last = ("path", "URL", *(kind.__name__ for kind in kinds))
        raise ConfigError(f"A dataset must be a {', '.join(names)} or {last}, got {shorten(data)}.")
    return data


def split_address(address: str) -> tuple[str, str]:
    """Splits `data/flowers@large` into directory and view. An existing path is a directory, with the view ""."""
    directory, at, view = address.rstrip("/").rpartition("@")
    if not at or "/" in view or os.path.exists(address):
        return address, ""
    return directory, view
