"""The manifest of a finished dataset, from a local disk or an object store."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.join_manifests import join_manifests
from tfpipe.format.layer import (
    MAX_LAYER_BYTES,
    Layer,
    State,
    decode_layer,
    layer_file,
    layer_folder,
    list_numbers,
    list_states,
)
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.format.view import (
    MAX_VIEW_BYTES,
    VIEW_SUFFIX,
    VIEWS_DIR,
    Hidden,
    View,
    ViewSplit,
    decode_view,
    view_file,
)
from tfpipe.storage import buckets, file_io
from tfpipe.system.extras import check_installed
from tfpipe.system.units import human_count, shorten

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
    manifest = load_own_manifest(directory, root=root)
    columns, layers = list_added(directory)
    if view.isdecimal():
        return History.open(manifest, columns, cut_layers(directory, layers, int(view))).load_numbered()
    if layers:
        return History.open(manifest, columns, layers).load(view)
    manifest = use_columns(manifest, [load_column(manifest, name) for name in columns])
    return use_view(manifest, load_view(manifest, view)) if view else manifest


def load_history(directory: str) -> History:
    """Reads the layers of a dataset; arguments and errors are those of `load_manifest`."""
    return History.open(load_own_manifest(directory), *list_added(directory))


def cut_layers(directory: str, layers: Sequence[int], newest: int) -> Sequence[int]:
    """Returns the numbers of the entries up to a layer.

    Raises:
        DataError: There is no such layer.
    """
    if not 1 <= newest <= len(layers) + 1:
        raise DataError(f"{directory} has no layer {newest}; its layers are 1 to {len(layers) + 1}.")
    return layers[: newest - 1]


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
    """Lists the names of the columns of a dataset. In a bucket, one that is not finished is not there yet."""
    folder = file_io.join(directory, file_names.COLUMNS_DIR)
    names = filter(file_names.is_column_name, file_io.list_names(folder))
    if not file_io.is_url(directory):
        return list(names)
    return [name for name in names if file_io.get_size(file_io.join(folder, name, file_names.MANIFEST)) >= 0]


def list_added(directory: str) -> tuple[list[str], list[int]]:
    """Lists the columns and the layers of a dataset. Where a store lists nothing there are none, with a warning.

    A store is asked for both at once, so that layers take no time of their own.
    """
    layers_dir = file_io.join(directory, file_names.LAYERS_DIR)
    try:
        if not file_io.is_url(directory):
            return list_columns(directory), list_numbers(file_io.list_names(layers_dir))
        with ThreadPoolExecutor(1) as thread:
            names = thread.submit(file_io.list_names, layers_dir)
            return list_columns(directory), list_numbers(names.result())
    except DataError as error:
        _logger.warning("%s is read without columns and layers, which cannot be listed: %s", directory, error)
        return [], []


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
    """Returns the manifest of a dataset as a view shows it. Records that are hidden stay hidden.

    Raises:
        FormatError: The view stands on other shards.
    """
    if (split := find_misfit(manifest, view)) is not None:
        raise FormatError(
            f"The view {view.name!r} was made for other shards than those of {split!r} in {manifest.directory}. "
            "Make it again by `tfpipe view`."
        )
    chosen = {name: view.splits[name] for name in manifest.splits if view.splits[name].records}
    splits = {name: choose_records(manifest.splits[name], records) for name, records in chosen.items()}
    return replace(manifest, splits=splits, view=view.name)


def find_misfit(manifest: Manifest, view: View) -> str | None:
    """Returns the first split whose shards are not those that a view was made for; None if there is none."""
    for name, info in manifest.splits.items():
        if name not in view.splits or view.splits[name].fingerprint != info.stored_fingerprint:
            return name
    return None


def choose_records(info: SplitInfo, chosen: ViewSplit) -> SplitInfo:
    """Returns a split of which only some records are read."""
    return replace(info, chosen=chosen, class_counts=chosen.class_counts)


def hide_records(info: SplitInfo, hidden: Hidden) -> SplitInfo:
    """Returns a split without records that are hidden: of those that a view chose, or of all."""
    if not hidden.records:
        return info
    numbers = np.arange(info.stored_records)
    whole = ViewSplit(numbers, None, len(numbers), info.bytes, info.class_counts, info.stored_fingerprint)
    return choose_records(info, (info.chosen or whole).leave_out(hidden))


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


@dataclass(frozen=True, eq=False)
class History:
    """The states of a dataset, one for each layer.

    Attributes:
        base: The manifest of the first layer, without columns.
        columns: The names of its columns.
        layers: The entries of the others, from layer 2 on.
        states: The state at each layer, from the first on.
        opened: The appended datasets that were opened, by their layers.
        joined: The manifests of all records, by the appended layers.
    """

    base: Manifest
    columns: Sequence[str]
    layers: tuple[Layer, ...]
    states: tuple[State, ...]
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
        layers = tuple(map(decode_layer, data, paths, numbers))
        history = cls(base, columns, layers, tuple(list_states(layers)))
        if layers:
            history.check(layers[-1])
        return history

    @property
    def newest(self) -> int:
        """The number of the newest layer."""
        return len(self.states)

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
        made = load_view(self.base, view)
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
        found = {name: self.list_hidden(hidden_at, name, number) for name in manifest.splits}
        splits = {name: hide_records(info, found[name]) for name, info in manifest.splits.items()}
        return replace(manifest, splits=splits)

    def find_state(self, fits: Callable[[Manifest], bool], view: View | None) -> tuple[int, int] | None:
        """Finds the newest state that fits: the layer whose shards it reads, and the one that says what is hidden."""
        tried = set()
        for hidden_at in range(self.newest, 0, -1):
            for number in range(self.newest, 0, -1):
                state = self.states[number - 1].appended, self.states[hidden_at - 1].deletes
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
        appended = self.states[number - 1].appended
        if not appended:
            return replace(self.base, layer=number)
        if appended not in self.joined:
            parts = [self.base, *map(self.load_part, appended)]
            self.joined[appended] = join_manifests(parts, _list_folders(appended))
        return replace(self.joined[appended], layer=number)

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

    def list_hidden(self, number: int, split: str, of: int | None = None) -> Hidden:
        """Returns the records of a split that are hidden at a layer.

        Args:
            number: The number of the layer.
            split: The name of the split.
            of: The number of the layer whose shards number the records. None: the same.
        """
        entries = [self.layers[layer - 2].hidden for layer in self.states[number - 1].deletes]
        hidden = Hidden.join([entry[split] for entry in entries if split in entry])
        return hidden.choose(hidden.numbers < self.count_shared(number, of or number, split)) if entries else hidden

    def count_shared(self, number: int, other: int, split: str) -> int:
        """Returns the number of first records of a split that two layers have in common, hidden or not."""
        chains = (self.states[each - 1].appended for each in (number, other))
        shared = [one for one, two in zip(*chains, strict=False) if one == two]
        parts = [self.base, *map(self.load_part, shared)]
        return sum(part.splits[split].records for part in parts if split in part.splits)

    def load_column(self, name: str, number: int) -> Manifest | None:
        """Returns a column of the records of a layer; None if it lacks values for some, with a warning.

        Raises:
            DataError: The column is not complete.
            FormatError: Its manifest is damaged, or it was made for other records.
        """
        column, appended = load_column(self.base, name), self.states[number - 1].appended
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


def list_fingerprints(manifest: Manifest) -> dict[str, str]:
    """Returns the `stored_fingerprint` of each split."""
    return {name: info.stored_fingerprint for name, info in manifest.splits.items()}


def _list_folders(appended: Sequence[int]) -> list[str]:
    """Lists the folders of the first layer and of appended ones, relative to the dataset."""
    return ["", *map(layer_folder, appended)]


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
