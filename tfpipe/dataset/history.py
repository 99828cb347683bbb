"""The layers of a dataset: what its records were before and after each `append` and `delete`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tfpipe.dataset.parts import (
    find_misfit,
    hide_records,
    list_added,
    list_columns,
    list_fingerprints,
    load_column,
    load_own_manifest,
    load_view,
    use_columns,
    use_view,
)
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.join_manifests import join_manifests
from tfpipe.format.layer import MAX_LAYER_BYTES, Kind, Layer, decode_layer, layer_file, layer_folder
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.format.view import Hidden, View
from tfpipe.storage import file_io
from tfpipe.system.units import human_count

_logger = logging.getLogger(__name__)


def cut_layers(directory: str, layers: Sequence[int], newest: int) -> Sequence[int]:
    """Returns the numbers of the entries up to a layer.

    Raises:
        DataError: There is no such layer.
    """
    if not 1 <= newest <= len(layers) + 1:
        raise DataError(f"{directory} has no layer {newest}; its layers are 1 to {len(layers) + 1}.")
    return layers[: newest - 1]


def load_history(directory: str) -> History:
    """Reads the layers of a dataset; arguments and errors are those of `load_manifest`."""
    return History.open(load_own_manifest(directory), *list_added(directory))


@dataclass(frozen=True, eq=False)
class History:
    """The states of a dataset, one for each layer.

    Attributes:
        base: The manifest of the first layer, without columns.
        columns: The names of its columns.
        layers: The entries of the others, from layer 2 on.
        opened: The appended datasets that were opened, by their layers.
        joined: The manifests of all records, by the appended layers.
    """

    base: Manifest
    columns: Sequence[str]
    layers: tuple[Layer, ...]
    opened: dict[int, Manifest] = field(default_factory=dict)
    joined: dict[tuple[int, ...], Manifest] = field(default_factory=dict)

    @classmethod
    def open(cls, base: Manifest, columns: Sequence[str], numbers: Sequence[int]) -> History:
        """Reads the entries of layers.

        Args:
            base: The manifest of the first layer, without columns.
            columns: The names of its columns.
            numbers: The numbers of the entries that were found.

        Raises:
            FormatError: An entry is missing or damaged, or was made for other records.
        """
        for expected, number in enumerate(numbers, start=2):
            if number != expected:
                missing = file_io.join(base.directory, layer_file(expected))
                raise FormatError(f"{missing} is missing, and a later layer is there. Copy the dataset again.")
        paths = [file_io.join(base.directory, layer_file(number)) for number in numbers]
        data = file_io.read_all(paths, [MAX_LAYER_BYTES] * len(paths))
        history = cls(base, columns, ())
        try:
            for entry, path, number in zip(data, paths, numbers, strict=True):
                layer = decode_layer(entry, path, number, history.count_records)
                history = replace(history, layers=(*history.layers, layer))
        except FileNotFoundError as error:  # a link to nothing
            raise FormatError(f"{error.filename} cannot be read: it is not there. Copy the dataset again.") from None
        if history.layers:
            history.check(history.layers[-1])
        return history

    @property
    def newest(self) -> int:
        """The number of the newest layer."""
        return len(self.layers) + 1

    def check(self, layer: Layer) -> None:
        """Checks that a layer stands on the state below it.

        Raises:
            FormatError: It was made for other shards.
        """
        if layer.below != list_fingerprints(self.join_shards(layer.number - 1)):
            path = file_io.join(self.base.directory, layer_file(layer.number))
            raise FormatError(f"{path} was made for other records than those below it. Copy the dataset again.")

    def load(self, view: str = "", *, with_columns: bool = True) -> Manifest:
        """Returns the dataset at the newest layer, or as a view shows it.

        A view shows the newest layer whose shards are those it was made for, without what the newest layer hides.

        Args:
            view: The name of the view; empty for all records.
            with_columns: Whether the columns are read.

        Raises:
            DataError: There is no such view.
            FormatError: A layer, a column or the view is damaged, or the view was made for other shards.
        """
        if not view:
            return self.load_state(self.newest, self.newest, with_columns=with_columns)
        made = load_view(self.join_shards(self.newest), view)
        fits = (number for number in range(self.newest, 0, -1) if find_misfit(self.join_shards(number), made) is None)
        return self.load_state(next(fits, self.newest), self.newest, made, with_columns=with_columns)

    def load_numbered(self) -> Manifest:
        """Returns the dataset at the newest layer, under the address of this layer."""
        return replace(self.load(), view=str(self.newest))

    def load_state(
        self, number: int, hidden_at: int, view: View | None = None, *, with_columns: bool = True
    ) -> Manifest:
        """Returns the records of one layer without those that another one hides.

        Args:
            number: The number of the layer whose shards are read.
            hidden_at: The number of the layer that says which records are hidden.
            view: The view through which they are read.
            with_columns: Whether the columns are read.
        """
        manifest = self.join_shards(number)
        if with_columns:
            columns = [self.load_column(name, number) for name in self.columns]
            manifest = use_columns(manifest, [column for column in columns if column is not None])
        if view is not None:
            manifest = use_view(manifest, view)
        splits = {name: self._hide(info, hidden_at) for name, info in manifest.splits.items()}
        return replace(manifest, splits=splits)

    def find_state(self, fits: Callable[[Manifest], bool], view: View | None) -> tuple[int, int] | None:
        """Finds the newest state that fits: the layer whose shards it reads, and the one that says what is hidden."""
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
            parts = [self.base, *map(self.load_part, appended)]
            self.joined[appended] = join_manifests(parts, _list_folders(appended))
        return replace(self.joined[appended], layer=number)

    def count_records(self) -> dict[str, int]:
        """Counts the records of each split in the shards of the newest layer, hidden ones too."""
        return {name: info.stored_records for name, info in self.join_shards(self.newest).splits.items()}

    def load_part(self, number: int) -> Manifest:
        """Returns the manifest of the records that a layer appended.

        Raises:
            FormatError: It is not the manifest that the layer was made with.
        """
        if number not in self.opened:
            directory = file_io.join(self.base.directory, layer_folder(number))
            try:
                part = load_own_manifest(directory)
            except DataError as error:
                raise FormatError(f"The records of layer {number} are missing: {error}") from None
            if list_fingerprints(part) != self.layers[number - 2].appended:
                path = file_io.join(directory, file_names.MANIFEST)
                raise FormatError(f"{path} is not that of the records that layer {number} appended. Copy it again.")
            self.opened[number] = part
        return self.opened[number]

    def list_layers(self, kind: Kind, number: int) -> tuple[int, ...]:
        """Lists the numbers of the layers of one kind up to a layer."""
        return tuple(layer.number for layer in self.layers[: number - 1] if layer.kind == kind)

    def _hide(self, info: SplitInfo, number: int) -> SplitInfo:
        """Returns a split without the records that are hidden at a layer, which may also be a later one."""
        entries = [self.layers[each - 2].hidden for each in self.list_layers("delete", number)]
        hidden = Hidden.join([entry[info.name] for entry in entries if info.name in entry])
        return hide_records(info, hidden.choose(hidden.numbers < info.stored_records))

    def load_column(self, name: str, number: int) -> Manifest | None:
        """Returns a column of the records of a layer; None if it lacks values for some, with a warning.

        Raises:
            DataError: The column is not complete.
            FormatError: Its manifest is damaged, or it was made for other records.
        """
        column, appended = load_column(self.base, name), self.list_layers("append", number)
        if not appended:
            return column
        parts = [column]
        for layer in appended:
            part = self.load_part(layer)
            if name not in list_columns(part.directory):
                self._warn(name, layer)
                return None
            parts.append(load_column(part, name))
        folders = [file_io.join(folder, file_names.COLUMNS_DIR, name) for folder in _list_folders(appended)]
        return replace(join_manifests(parts, folders), directory=self.base.directory)

    def _warn(self, column: str, layer: int) -> None:
        if (self.base.directory, column, layer) not in _WARNED:
            _WARNED.add((self.base.directory, column, layer))
            count = human_count(sum(self.layers[layer - 2].records.values()), "record")
            _logger.warning(
                "The column %r has no values for the %s of layer %d, so it is not read. Add them: tfpipe add %s TABLE "
                "--name %s",
                *(column, count, layer, self.base.directory, column),
            )


_WARNED: set[tuple[str, str, int]] = set()
"""The columns of which this process has said that they lack values: a warning comes once."""


def _list_folders(appended: Sequence[int]) -> list[str]:
    """Lists the folders of the first layer and of appended ones, relative to the dataset."""
    return ["", *map(layer_folder, appended)]
