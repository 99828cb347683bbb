"""The layers of a dataset: what its records were before and after each `append` and `delete`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from tfpipe.dataset import dataset_files
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.catalog import Catalog, Entry, Kind
from tfpipe.format.join_manifests import join_manifests
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.format.view import HIDDEN, View
from tfpipe.storage import file_io
from tfpipe.system.units import human_count

_logger = logging.getLogger(__name__)


def load_history(directory: str) -> History:
    """Reads the layers of a dataset; arguments and errors are those of `load_manifest`."""
    return History.read(dataset_files.load_own_manifest(directory)).check_newest()


def has_layers(directory: str) -> bool:
    """Returns whether a directory is a dataset to which records were appended, or of which some were deleted."""
    files = [file_io.join(directory, name) for name in (file_names.CATALOG, file_names.MANIFEST)]
    return all(map(file_io.exists, files)) and History.read(dataset_files.load_own_manifest(directory)).newest > 1


@dataclass(frozen=True, eq=False)
class History:
    """The layers of a dataset, and the manifests that were read for them."""

    base: Manifest  # the first layer, without columns
    catalog: Catalog
    opened: dict[int, Manifest] = field(default_factory=dict)  # manifests of appended records, by layer
    joined: dict[tuple[int, ...], Manifest] = field(default_factory=dict)  # of all records, by the appending layers

    @classmethod
    def read(cls, base: Manifest) -> History:
        """Reads the catalog of a dataset."""
        history = cls(base, Catalog())  # keeps the manifests that are opened while the catalog is read
        catalog = dataset_files.load_catalog(
            base.directory, lambda catalog: replace(history, catalog=catalog).count_records()
        )
        return replace(history, catalog=catalog)

    def cut(self, newest: int) -> History:
        """Returns the history up to layer `newest`."""
        return replace(self, catalog=self.catalog.cut(self.base.directory, newest))

    def check_newest(self) -> History:
        """Checks that the newest layer was made for the records of the layer before, and returns this history."""
        if self.catalog.layers:
            self.check(self.catalog.layers[-1])
        return self

    @property
    def newest(self) -> int:
        """The number of the newest layer."""
        return len(self.catalog.layers) + 1

    def check(self, layer: Entry) -> None:
        """Checks that a layer was made for the records of the layer before."""
        if layer.below != dataset_files.list_fingerprints(self.join_shards(layer.number - 1)):
            raise FormatError(
                f"Layer {layer.number} of {self.base.directory} was made for other records than those below it. Copy "
                "the dataset again."
            )

    def load(self, view: str = "", *, with_columns: bool = True) -> Manifest:
        """Returns the newest layer, or the newest that a view fits as the view shows it, without deleted records."""
        if not view:
            return self.load_state(self.newest, self.newest, with_columns=with_columns)
        made = dataset_files.load_view(self.join_shards(self.newest), self.catalog, view)
        fits = (
            number
            for number in range(self.newest, 0, -1)
            if dataset_files.find_misfit(self.join_shards(number), made) is None
        )
        return self.load_state(next(fits, self.newest), self.newest, made, with_columns=with_columns)

    def load_state(
        self, number: int, hidden_at: int, view: View | None = None, *, with_columns: bool = True
    ) -> Manifest:
        """Returns the manifest of layer `number`, without the records that are deleted at layer `hidden_at`."""
        manifest = self.join_shards(number)
        if with_columns:
            columns = [self.load_column(name, number) for name in self.catalog.list_names("column")]
            manifest = dataset_files.use_columns(manifest, [column for column in columns if column is not None])
        if view is not None:
            manifest = dataset_files.use_view(manifest, view)
        splits = {name: self._hide(info, hidden_at) for name, info in manifest.splits.items()}
        return replace(manifest, splits=splits)

    def find_state(self, fits: Callable[[Manifest], bool], view: View | None) -> tuple[int, int] | None:
        """Finds the `number` and the `hidden_at`, for `load_state`, of the newest state that fits; None without one."""
        tried = set()
        for hidden_at in range(self.newest, 0, -1):
            for number in range(self.newest, 0, -1):
                state = self.list_layers("append", number), self.list_layers("delete", hidden_at)
                if state in tried:
                    continue
                tried.add(state)
                try:
                    if fits(self.load_state(number, hidden_at, view, with_columns=False)):
                        return number, hidden_at
                except FormatError:  # the view was made for other shards
                    continue
        return None

    def join_shards(self, number: int) -> Manifest:
        """Returns the manifest of all records in the shards of a layer, without columns."""
        appended = self.list_layers("append", number)
        if not appended:
            return replace(self.base, layer=number)
        if appended not in self.joined:
            manifests = [self.base, *map(self.load_appended, appended)]
            folders = ["", *(self.get_layer(layer).path for layer in appended)]
            self.joined[appended] = join_manifests(manifests, folders)
        return replace(self.joined[appended], layer=number)

    def count_records(self) -> dict[str, int]:
        """Counts the records of each split in the shards of the newest layer, hidden ones too."""
        return {name: info.stored_records for name, info in self.join_shards(self.newest).splits.items()}

    def load_appended(self, number: int) -> Manifest:
        """Returns the manifest of the records that a layer appended."""
        if number not in self.opened:
            entry = self.get_layer(number)
            directory = file_io.join(self.base.directory, entry.path)
            try:
                appended = dataset_files.load_own_manifest(directory)
            except DataError as error:
                raise FormatError(f"The records of layer {number} are missing: {error}") from None
            if dataset_files.list_fingerprints(appended) != entry.made:
                path = file_io.join(directory, file_names.MANIFEST)
                raise FormatError(f"{path} is not that of the records that layer {number} appended. Copy it again.")
            self.opened[number] = appended
        return self.opened[number]

    def get_layer(self, number: int) -> Entry:
        """Returns the catalog's entry of layer `number`, 2 or later."""
        return self.catalog.layers[number - 2]

    def list_layers(self, kind: Kind, number: int) -> tuple[int, ...]:
        """Lists the numbers of the layers of one kind up to layer `number`."""
        return tuple(layer.number for layer in self.catalog.layers[: number - 1] if layer.kind == kind)

    def _hide(self, info: SplitInfo, number: int) -> SplitInfo:
        """Returns a split without the records deleted at layer `number`, which may be later than the split's layer."""
        entries = [self.get_layer(each).hidden for each in self.list_layers("delete", number)]
        hidden = np.concatenate([np.empty(0, HIDDEN), *(entry[info.name] for entry in entries if info.name in entry)])
        hidden = hidden[np.argsort(hidden["number"], kind="stable")]
        return dataset_files.hide_records(info, hidden[hidden["number"] < info.stored_records])

    def load_column(self, name: str, number: int) -> Manifest | None:
        """Returns the manifest of a column at layer `number`; None, with a warning, if some records lack values."""
        layers = self.load_column_layers(name, number)
        lacking = next((layer for layer, column in layers.items() if column is None), None)
        if lacking is not None:
            if any(layers.values()) and (self.base.directory, name, lacking) not in _WARNED:
                _WARNED.add((self.base.directory, name, lacking))
                records = self.base if lacking == 1 else self.load_appended(lacking)
                count = sum(split.records for split in records.splits.values())
                _logger.warning(
                    "The column %r has no values for the %s of layer %d, so it is not read. Add them: tfpipe add %s "
                    "TABLE --name %s",
                    *(name, human_count(count, "record"), lacking, self.base.directory, name),
                )
            return None
        found = [column for column in layers.values() if column is not None]
        if len(found) == 1:
            return found[0]
        folders = [f"{file_names.COLUMNS_DIR}/{os.path.basename(column.directory)}" for column in found]
        return replace(join_manifests(found, folders), directory=self.base.directory)

    def load_column_layers(self, name: str, number: int) -> dict[int, Manifest | None]:
        """Returns a column's manifest for each layer that added records; None for a layer without values."""
        layers = dict[int, Manifest | None]()
        for layer in (1, *self.list_layers("append", number)):
            entry = self.catalog.find("column", name, layer)
            records = self.base if layer == 1 else self.load_appended(layer)
            layers[layer] = None if entry is None else dataset_files.load_column(records, entry, self.base.directory)
        return layers


_WARNED: set[tuple[str, str, int]] = set()
"""The columns about whose missing values this process has warned, which it does once."""
