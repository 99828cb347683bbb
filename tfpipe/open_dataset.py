"""The manifest of a finished dataset, from a local disk or an object store."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.manifest import Manifest
from tfpipe.format.view import MAX_VIEW_BYTES, VIEW_SUFFIX, VIEWS_DIR, View, decode_view, view_file
from tfpipe.storage import buckets, file_io
from tfpipe.system.extras import check_installed
from tfpipe.system.units import shorten

_logger = logging.getLogger(__name__)
_Data = TypeVar("_Data")


def load_manifest(directory: str | os.PathLike[str], *, root: str | None = None) -> Manifest:
    """Reads the manifest of a finished dataset.

    The shards lie beside the manifest. Only a manifest from `tfpipe index` can name another directory for them, and no
    name of a shard can leave that directory. A warning names the directory, so that a foreign manifest cannot make a
    program read other files unnoticed. `root` overrules it, and then there is no warning.

    Args:
        directory: The dataset that `tfpipe shard` or `tfpipe index` wrote: a local directory, or a URL of gs://,
            s3:// or az://, or another one that TensorFlow can read. Behind an `@` may stand a view of it, as in
            `data/flowers@large`.
        root: The directory or URL where the shards of an indexed dataset lie, whatever the manifest says.

    Raises:
        ConfigError: `root` is given for a dataset that tfpipe wrote itself.
        DataError: There is no such directory, no finished dataset in it, or no such view; the message says which.
        FormatError: The manifest or the view cannot be used; the message gives the place.
        MissingDependencyError: `directory` is a URL, and neither obstore nor TensorFlow is installed.
    """
    if not isinstance(directory, str | os.PathLike):
        raise ConfigError(f"A dataset must be a path or URL, got {shorten(directory)}.")
    directory, view = split_address(os.fspath(directory).removeprefix("file://"))
    manifest = load_own_manifest(directory, root=root)
    manifest = use_columns(manifest, [load_column(manifest, name) for name in list_columns(directory)])
    return use_view(manifest, load_view(manifest, view)) if view else manifest


def load_own_manifest(directory: str, *, root: str | None = None) -> Manifest:
    """Reads the manifest of a dataset without its columns; arguments and errors are those of `load_manifest`."""
    path = file_io.join(directory, file_names.MANIFEST)
    try:
        data = file_io.read_bytes(path, manifest_json.MAX_BYTES)
    except FileNotFoundError:
        raise _explain_missing(directory) from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8: the byte at {error.start} does not belong there.") from None
    return _locate_shards(replace(manifest_json.loads(text, path), directory=directory), root)


def list_columns(directory: str) -> list[str]:
    """Lists the names of the columns of a dataset. Where a store lists nothing to us there are none, with a warning."""
    try:
        names = file_io.list_names(file_io.join(directory, file_names.COLUMNS_DIR))
    except DataError as error:
        _logger.warning("%s is read without columns, which cannot be listed: %s", directory, error)
        return []
    return list(filter(file_names.is_column_name, names))


def load_column(manifest: Manifest, name: str) -> Manifest:
    """Reads the manifest of a column, and checks that it belongs to the records of the dataset.

    Raises:
        DataError: The column is not complete.
        FormatError: Its manifest is damaged, or it was made for other records.
    """
    directory = file_io.join(manifest.directory, file_names.COLUMNS_DIR, name)
    column = load_own_manifest(directory)
    fits = column.foreign is None and column.splits.keys() == manifest.splits.keys()
    for split, info in manifest.splits.items() if fits else ():
        fits &= column.stands_on.get(split) == info.fingerprint
        fits &= column.splits[split].records_per_shard == info.records_per_shard
    if not fits:
        raise FormatError(
            f"{directory} was made for other records than those of {manifest.directory}. Remove this folder, and add "
            "the column again by `tfpipe add`."
        )
    return column


def use_columns(manifest: Manifest, columns: Sequence[Manifest]) -> Manifest:
    """Returns the manifest of a dataset with its columns.

    Raises:
        FormatError: Two of them, or one and the records, have a feature of the same name.
    """
    seen = dict.fromkeys(manifest.schema.names, manifest.directory)
    for column in columns:
        for name in column.schema.names:
            if name in seen:
                raise FormatError(
                    f"{seen[name]} and {column.directory} both have a feature {name!r}. Remove the folder of a column."
                )
            seen[name] = column.directory
    return replace(manifest, columns=tuple(columns))


def split_address(address: str) -> tuple[str, str]:
    """Splits `data/flowers@large` into the directory and the view, which is empty without an `@`.

    A path that exists is a directory, whatever its name.
    """
    directory, at, view = address.rstrip("/").rpartition("@")
    if not at or "/" in view or os.path.exists(address):
        return address, ""
    return directory, view


def load_view(manifest: Manifest, name: str) -> View:
    """Reads a view of a dataset.

    Raises:
        ConfigError: No view can have this name.
        DataError: The dataset has no such view.
        FormatError: Its file is damaged.
    """
    path = file_io.join(manifest.directory, view_file(name))
    try:
        return decode_view(file_io.read_bytes(path, MAX_VIEW_BYTES), path)
    except FileNotFoundError:
        names = list_views(manifest.directory)
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise DataError(
            f"{manifest.directory} has no view {name!r}; {has}. `tfpipe view {manifest.directory} ... --name {name}` "
            "makes one."
        ) from None


def list_views(directory: str) -> list[str]:
    """Lists the names of the views of a dataset."""
    files = file_io.list_names(file_io.join(directory, VIEWS_DIR))
    return sorted(file.removesuffix(VIEW_SUFFIX) for file in files if file.endswith(VIEW_SUFFIX))


def use_view(manifest: Manifest, view: View) -> Manifest:
    """Returns the manifest of a dataset as a view shows it.

    Raises:
        FormatError: The view stands on other shards.
    """
    splits = {}
    for name, info in manifest.splits.items():
        chosen = view.splits.get(name)
        if chosen is None or chosen.fingerprint != info.fingerprint:
            raise FormatError(
                f"The view {view.name!r} was made for other shards than those of {name!r} in {manifest.directory}. "
                "Make it again by `tfpipe view`."
            )
        if chosen.records:
            splits[name] = replace(info, chosen=chosen, class_counts=chosen.class_counts)
    return replace(manifest, splits=splits, view=view.name)


def load_if_path(data: _Data | str | os.PathLike[str], *kinds: type[_Data]) -> _Data | Manifest:
    """Returns the manifest of the dataset at a path or URL, and data of the given kinds as they are.

    Raises:
        ConfigError: The data are of another kind.
        DataError: There is no finished dataset at the path.
        FormatError: The manifest cannot be used.
    """
    if isinstance(data, str | os.PathLike):
        return load_manifest(data)
    if not isinstance(data, kinds):
        *names, last = ("path", "URL", *(kind.__name__ for kind in kinds))
        raise ConfigError(f"A dataset must be a {', '.join(names)} or {last}, got {shorten(data)}.")
    return data


def _locate_shards(manifest: Manifest, root: str | None) -> Manifest:
    """Returns the manifest with the directory of its shards.

    Raises:
        ConfigError: `root` is given for a dataset that tfpipe wrote itself.
        FormatError: The manifest at a URL names a folder of some machine.
    """
    directory, foreign = manifest.directory, manifest.foreign
    if foreign is None:
        if root is not None:
            raise ConfigError(f"`root` is for what `tfpipe index` described; the shards of {directory} lie in it.")
        return manifest
    if root is not None:
        return replace(manifest, foreign=replace(foreign, root=root))
    if foreign.root != ".":
        if file_io.is_url(directory) and not file_io.is_url(foreign.root):
            raise FormatError(
                f"{file_io.join(directory, file_names.MANIFEST)} says that its shards lie in {foreign.root}, a folder "
                "of some machine. Say where they lie with load_manifest(..., root=...)."
            )
        _logger.warning("The shards of %s lie outside it, in %s, as its manifest says.", directory, foreign.root)
    return manifest


def check_local(directory: str) -> None:
    """Refuses a directory that is not on this machine.

    Raises:
        ConfigError: `directory` is a URL.
    """
    if file_io.is_url(directory):
        raise ConfigError(
            f"A dataset is read from a local directory, got {directory!r}. Copy it to a local disk first."
        )


def check_readable(directory: str) -> None:
    """Refuses a directory that is neither on this machine nor in an object store that tfpipe reads without TensorFlow.

    Raises:
        ConfigError: It is a URL of another kind.
        MissingDependencyError: It is in an object store, and obstore is not installed.
    """
    if not directory.startswith(tuple(f"{scheme}://" for scheme in buckets.SCHEMES)):
        check_local(directory)
        return
    check_installed("obstore", f"Reading {directory} without TensorFlow", "obstore", buckets.REQUIREMENT)


def _explain_missing(directory: str) -> DataError:
    if file_io.is_url(directory):
        return DataError(f"{directory} holds no {file_names.MANIFEST}: it is not a finished tfpipe dataset.")
    if not os.path.lexists(directory):
        return DataError(f"{directory} does not exist.")
    if not os.path.isdir(directory):
        return DataError(f"{directory} must be the directory of a dataset, the one that holds {file_names.MANIFEST}.")
    missing = f"{directory} holds no {file_names.MANIFEST}: it is not a finished tfpipe dataset."
    if os.path.isdir(os.path.join(directory, file_names.WORK_DIR)):
        return DataError(
            f"{missing} An earlier run was not finished; run the same `tfpipe shard` command again to finish it.",
            page="symptoms#the-run-does-not-go-on",
        )
    return DataError(f"{missing} `tfpipe shard` writes one out of images, `tfpipe index` one for TFRecords of others.")
