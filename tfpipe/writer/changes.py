"""Changes a dataset, by one process at a time: a change writes new files, and then the catalog that names them.

On a disk a lock keeps others out. In a bucket the catalog is replaced only if it is still the one that was read.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tfpipe.dataset.dataset_files import check_links, list_fingerprints, list_unnamed
from tfpipe.dataset.history import History, load_history
from tfpipe.dataset.load import split_address
from tfpipe.errors import ConfigError, DataError
from tfpipe.format import file_names
from tfpipe.format.catalog import Catalog, Entry, Kind
from tfpipe.format.view import View
from tfpipe.storage import file_io, local
from tfpipe.storage.stores import get_store
from tfpipe.writer.working_folder import WorkingFolder
from tfpipe.writer.write import WriteFolder

_OURS = re.compile(r"(?:([0-9]+)|.+)-[0-9a-f]{12}(?:\.view)?")


class _DatasetFolder(WorkingFolder):
    """The working folder in a dataset, whose lock lets one process at a time change the dataset."""

    ending = f"/{file_names.WORK_DIR}"  # the folder that `tfpipe shard` locks, which may replace the dataset


@dataclass(frozen=True)
class Change:
    """A change of a dataset by this process."""

    history: History  # of the dataset before the change
    version: Any  # the bucket's version of the catalog that was read; None on a disk

    @property
    def directory(self) -> str:
        """The dataset, without links."""
        return self.history.base.directory

    def make_layer(self, kind: Kind, job: str, **values: Any) -> Entry:
        """Returns the catalog's entry for a new layer; arguments are those of `Entry`."""
        below = list_fingerprints(self.history.join_shards(self.history.newest))
        return Entry(kind, job, self.history.newest + 1, below=below, **values)

    def make_view(self, view: View, data: bytes) -> Entry:
        """Returns the catalog's entry for a view; `data` are the bytes of the view's file."""
        below = {name: split.fingerprint for name, split in view.splits.items()}
        return Entry("view", hashlib.sha256(data).hexdigest(), name=view.name, below=below)

    def write(self, path: str, data: bytes) -> None:
        """Writes a file of the dataset, which appears whole or not at all."""
        path, temporary = file_io.join(self.directory, path), file_io.join(self.directory, file_names.WORK_DIR, "new")
        with file_io.explain_os_errors(f"write {path}"):
            file_io.write_file(path, data, temporary, makes_folders=True)

    def commit(self, entries: Sequence[Entry]) -> None:
        """Writes the catalog with new entries: from then on the files that they name belong to the dataset."""
        catalog = self.history.catalog.change(entries)
        path = file_io.join(self.directory, file_names.CATALOG)
        if not file_io.is_url(path):
            with file_io.explain_os_errors(f"write to {self.directory}"):
                for folder in {os.path.dirname(entry.path) for entry in entries}:
                    local.sync_folder(file_io.join(self.directory, folder))
            self.write(file_names.CATALOG, catalog.encode())
            local.sync_folder(self.directory)
        elif not get_store(path).replace(path, catalog.encode(), self.version):
            raise DataError(
                f"Another process changed {self.directory} meanwhile, so this change is not made. Run the same "
                "command again."
            )
        for stale in self._list_stale(catalog):
            file_io.remove_tree(file_io.join(self.directory, stale))
            file_io.remove(file_io.join(self.directory, stale))

    def _list_stale(self, catalog: Catalog) -> Iterator[str]:
        """Yields the files and folders that no entry names any more, and on a disk what a killed change left."""
        named, newest = {entry.path for entry in catalog.entries}, len(catalog.layers) + 1
        if file_io.is_url(self.directory):  # where another process may be writing
            yield from {entry.path for entry in self.history.catalog.entries} - named
            return
        for path in list_unnamed(self.directory, catalog):
            ours = _OURS.fullmatch(os.path.basename(path).removesuffix(WriteFolder.ending))
            is_unfinished = path.endswith(WriteFolder.ending) and path.removesuffix(WriteFolder.ending) not in named
            # An unfinished append goes on while its layer is the next one.
            if ours and not is_unfinished and int(ours[1] or 0) <= newest:
                yield path


@contextlib.contextmanager
def open_change(directory: str) -> Iterator[Change]:
    """Yields a change of a dataset. On a disk a lock keeps other processes from changing the dataset in the block."""
    load_history(directory)  # raises an error for a wrong path, before a folder is made in it
    check_links(directory)
    directory = file_io.resolve_links(directory)
    with _DatasetFolder(directory).lock(f"changes {directory}"):
        path = file_io.join(directory, file_names.CATALOG)
        version = get_store(path).get_replaceable(path) if file_io.is_url(path) else None  # asked for before the read
        yield Change(load_history(directory), version)


@contextlib.contextmanager
def open_layers(dataset: str | os.PathLike[str]) -> Iterator[Change]:
    """Yields a change that adds a layer to a dataset, after a check that the dataset can have layers."""
    directory, view = split_address(os.fspath(dataset).removeprefix("file://"))
    if view:
        raise ConfigError(f"Layers belong to a dataset and not to {dataset}. Leave the @ out.")
    with open_change(directory) as change:
        if change.history.base.foreign is not None:
            raise ConfigError(
                f"{dataset} describes files of others, which have no layers. Write it anew by `tfpipe reshard`."
            )
        if change.history.base.stands_on:
            raise ConfigError(f"{dataset} is a column, which has no layers. Give its dataset.")
        yield change
