"""Reads the files of a dataset, each by itself: the manifest of one folder, the catalog, columns, views."""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.catalog import MAX_CATALOG_BYTES, Catalog, Entry, decode_catalog
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.format.view import MAX_VIEW_BYTES, VIEWS_DIR, View, ViewSplit, check_view_name, decode_view
from tfpipe.storage import buckets, file_io
from tfpipe.system.extras import check_installed

_logger = logging.getLogger(__name__)


def load_own_manifest(directory: str, *, root: str | None = None) -> Manifest:
    """Reads the manifest of a dataset without its columns; arguments and errors are those of `load_manifest`."""
    path = file_io.join(directory, file_names.MANIFEST)
    version = _get_version(path)  # taken before the file is read
    try:
        data = file_io.read_bytes(path, manifest_json.MAX_BYTES)
    except FileNotFoundError:
        raise _explain_missing(directory) from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8: the byte at {error.start} does not belong there.") from None
    return _locate_shards(replace(manifest_json.loads(text, path), directory=directory, version=version), root)


def check_unchanged(manifest: Manifest, split: str) -> None:
    """Refuses a split whose files were written anew since its manifest was read: they may hold other records."""
    for layer in manifest.layers or (manifest,):
        version = _get_version(file_io.join(layer.directory, file_names.MANIFEST))
        if not layer.version or version == layer.version or split not in layer.splits:
            continue
        if not version or _read_fingerprint(layer.directory, split, version) != layer.splits[split].stored_fingerprint:
            raise DataError(
                f"{layer.directory} was written anew with other records since it was opened. Open it again."
            )


@lru_cache(16)
def _read_fingerprint(directory: str, split: str, version: str) -> str:
    """Returns a split's fingerprint, cached for each `version` of the manifest; empty without such a split."""
    splits = load_own_manifest(directory).splits
    return splits[split].stored_fingerprint if split in splits else ""


def _get_version(path: str) -> str:
    """Returns a text that changes when a local file is written anew; empty if there is none, and for a URL."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ino}"
    return ""


def load_catalog(directory: str, count: Callable[[Catalog], Mapping[str, int]]) -> Catalog:
    """Reads the catalog; it is empty before the first change and, with a warning, where a bucket denies access."""
    path = file_io.join(directory, file_names.CATALOG)
    try:
        return decode_catalog(file_io.read_bytes(path, MAX_CATALOG_BYTES), path, count)
    except FileNotFoundError:
        if os.path.lexists(path):  # a link to nothing
            raise FormatError(f"{path} cannot be read: it is not there. Copy the dataset again.") from None
    except DataError as error:
        if not isinstance(error.__cause__, PermissionError) or not file_io.is_url(directory):
            raise
        _logger.warning("%s is read without columns and layers, which cannot be looked up: %s", directory, error)
    return Catalog()


def load_column(manifest: Manifest, entry: Entry, directory: str) -> Manifest | None:
    """Reads the manifest of a column that belongs to the records of a layer; None if somebody removed its folder."""
    folder = file_io.join(directory, entry.path)
    try:
        column = load_own_manifest(folder)
    except DataError:
        if file_io.exists(folder):
            raise
        return None
    fits = column.foreign is None and column.splits.keys() == manifest.splits.keys()
    fits = fits and list_fingerprints(column) == entry.made
    for split, info in manifest.splits.items() if fits else ():
        fits &= column.stands_on.get(split) == info.fingerprint
        fits &= column.splits[split].records_per_shard == info.records_per_shard
    if not fits:
        raise FormatError(
            f"{folder} was made for other records than those of {manifest.directory}. Remove this folder, and add "
            "the column again by `tfpipe add`."
        )
    return column


def use_columns(manifest: Manifest, columns: Sequence[Manifest]) -> Manifest:
    """Adds columns to the manifest of a dataset; refuses two features of one name."""
    seen = dict.fromkeys(manifest.schema.names, manifest.directory)
    for column in columns:
        for name in column.schema.names:
            if name in seen:
                raise FormatError(
                    f"{seen[name]} and {column.directory} both have a feature {name!r}. Remove the folder of a column."
                )
            seen[name] = column.directory
    return replace(manifest, columns=tuple(columns))


def load_view(manifest: Manifest, catalog: Catalog, name: str) -> View:
    """Reads a view of a dataset, whose manifest has the shards of all layers."""
    directory, entry = manifest.directory, catalog.find("view", check_view_name(name))
    if entry is not None:
        records = {split: info.stored_records for split, info in manifest.splits.items()}
        path = file_io.join(directory, entry.path)
        with contextlib.suppress(FileNotFoundError):  # somebody removed the view
            return decode_view(file_io.read_bytes(path, MAX_VIEW_BYTES), path, records)
    names = [other for other in catalog.list_names("view") if other != name]
    has = f"it has {', '.join(names)}" if names else "it has none"
    raise DataError(f"{directory} has no view {name!r}; {has}. `tfpipe view {directory} ... --name {name}` makes one.")


def use_view(manifest: Manifest, view: View) -> Manifest:
    """Returns the manifest of a dataset as a view shows it; the caller leaves out deleted records afterwards."""
    if (split := find_misfit(manifest, view)) is not None:
        raise FormatError(
            f"The view {view.name!r} was made for other shards than those of {split!r} in {manifest.directory}. "
            "Make it again by `tfpipe view`."
        )
    splits = {
        name: replace(split, chosen=view.splits[name], class_counts=view.splits[name].class_counts)
        for name, split in manifest.splits.items()
        if view.splits[name].records
    }
    return replace(manifest, splits=splits, view=view.name)


def find_misfit(manifest: Manifest, view: View) -> str | None:
    """Returns the first split whose shards are not those that a view was made for; None if there is none."""
    made_for = {name: split.fingerprint for name, split in view.splits.items()}
    there = list_fingerprints(manifest)
    return next((name for name in there if made_for.get(name) != there[name]), None)


def hide_records(info: SplitInfo, hidden: NDArray[Any]) -> SplitInfo:
    """Returns a split without deleted records, [n] of `HIDDEN`: the rest of a view's records, or the rest of all."""
    if not len(hidden):
        return info
    numbers = np.arange(info.stored_records)
    whole = ViewSplit(numbers, None, len(numbers), info.bytes, info.class_counts, info.stored_fingerprint)
    left = (info.chosen or whole).leave_out(hidden)
    return replace(info, chosen=left, class_counts=left.class_counts)


def list_fingerprints(manifest: Manifest) -> dict[str, str]:
    """Returns the `stored_fingerprint` of each split."""
    return {name: info.stored_fingerprint for name, info in manifest.splits.items()}


def check_local(directory: str) -> None:
    """Refuses a directory that is not on this machine."""
    if file_io.is_url(directory):
        raise ConfigError(
            f"A dataset is read from a local directory, got {directory!r}. Copy it to a local disk first."
        )


def list_unnamed(directory: str, catalog: Catalog, listing: Collection[str] = ()) -> Iterator[str]:
    """Yields the files and folders of changes that no entry of the catalog names, relative to the dataset.

    A bucket is not asked again: `listing` has its files.
    """
    named = {entry.path for entry in catalog.entries}
    for folder in (file_names.LAYERS_DIR, file_names.COLUMNS_DIR, VIEWS_DIR):
        if file_io.is_url(directory):
            names = sorted({path.split("/")[1] for path in listing if path.startswith(f"{folder}/")})
        else:
            names = file_io.list_names(file_io.join(directory, folder))
        yield from (path for path in (f"{folder}/{name}" for name in names) if path not in named)


def check_links(directory: str) -> None:
    """Refuses to change a dataset that contains links to other folders."""
    file_io.refuse_links(directory, (file_names.INDEX_DIR, file_names.COLUMNS_DIR, file_names.LAYERS_DIR, VIEWS_DIR))


def check_readable(directory: str) -> None:
    """Refuses a directory neither on this machine nor in a store that tfpipe reads without TensorFlow."""
    if not directory.startswith(tuple(f"{scheme}://" for scheme in buckets.SCHEMES)):
        check_local(directory)
        return
    check_installed("obstore", f"Reading {directory} without TensorFlow", "obstore", buckets.REQUIREMENT)


def _locate_shards(manifest: Manifest, root: str | None) -> Manifest:
    """Returns the manifest with the shards' directory `root`; without `root` warns if the shards lie elsewhere."""
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
