"""Writes a column, whose values come record by record in the order of the shards; a killed run goes on."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.columns.config import ColumnConfig
from tfpipe.dataset.dataset_files import check_readable, hide_records, list_fingerprints, load_own_manifest
from tfpipe.dataset.history import History
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError
from tfpipe.fields import Field, Image, Images, Label, Mask
from tfpipe.format import file_names
from tfpipe.format.catalog import Entry, get_path
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import IMAGE_ENCODED, check_names
from tfpipe.format.tensors.tensor_type import get_numpy_dtype
from tfpipe.format.view import HIDDEN, View
from tfpipe.storage import file_io
from tfpipe.views.choose import make_view_split
from tfpipe.writer.changes import Change
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.working_folder import check_output, hash_values
from tfpipe.writer.write import WriteFolder, WriteJob, put_together, write_split

_NO_CLASS, _MISSING = -1, -2  # notes on a record without a class, or without a value; others are the record's class
_NOTES = np.dtype("<i8")


class Value(NamedTuple):
    """The value of one record."""

    label: int | None  # the class of the record, from 0
    values: Mapping[str, Any] | None  # None if the record has none


Make = Callable[[str, int], Iterable[Value]]
"""A function of a split and the number of a shard that yields the values of its records, in their order."""


class ShardRows(NamedTuple):
    """The records of a shard that get values."""

    split: str
    file: str  # in its layer
    number: int  # the shard's in its split, through all layers
    records: int  # hidden ones too
    chosen: NDArray[np.int64]  # rows that are not hidden, ascending: [n]


@dataclass(frozen=True)
class LayerRows:
    """The records of one layer, and their values in a column."""

    number: int
    manifest: Manifest  # of the first layer, or of an appended one
    column: Manifest | None  # of the column's values for this layer; None if there are none yet
    shards: Mapping[str, int]  # the number of shards of each split in earlier layers
    records: Mapping[str, int]  # the number of records of each split in earlier layers

    def list_rows(self, whole: Manifest, split: str) -> list[ShardRows]:
        """Lists the visible rows of each shard of a split; the manifest of all layers knows the hidden records."""
        chosen, first, rows = whole.splits[split].chosen, self.records.get(split, 0), []
        for number, shard in enumerate(self.manifest.splits[split].shards, start=self.shards.get(split, 0)):
            visible = np.arange(shard.records) if chosen is None else chosen.list_rows(first, shard.records)
            rows.append(ShardRows(split, shard.file, number, shard.records, visible))
            first += shard.records
        return rows


def list_layer_rows(history: History, name: str) -> list[LayerRows]:
    """Lists the layers of a dataset that have records, each with the values of a column that it has already."""
    shards, records, layers = Counter[str](), Counter[str](), []
    for number, column in history.load_column_layers(name, history.newest).items():
        manifest = history.base if number == 1 else history.load_appended(number)
        layers.append(LayerRows(number, manifest, column, dict(shards), dict(records)))
        shards.update({split: info.num_shards for split, info in manifest.splits.items()})
        records.update({split: info.stored_records for split, info in manifest.splits.items()})
    return layers


class NewColumn:
    """A column to be written. `identity` has all that decides its values besides the options and the schema."""

    def __init__(
        self,
        change: Change,
        config: ColumnConfig,
        schema: Mapping[str, Field],
        identity: Sequence[object] = (),
        workers: int = 0,
    ) -> None:
        for name, kind in schema.items():
            if isinstance(kind, Label | Image | Images | Mask):
                raise ConfigError(
                    f"A column holds Tensor, Text, Values or Labels, got {name!r} as {type(kind).__name__}. Shard "
                    "images and classes with `tfpipe shard`."
                )
        self.manifest = change.history.load()
        self._change, self._config, self._form = change, config, RecordForm(schema)
        self._layers = list_layer_rows(change.history, config.name)
        self._identity, self._workers = identity, workers

    def list_written(self) -> list[LayerRows]:
        """Lists the layers whose values this very job has written: it was killed after that, or is repeated."""
        return [layer for layer in self._layers if layer.column is not None and self._has_entry(layer)]

    def list_lacking(self) -> list[LayerRows]:
        """Lists the layers whose values are to be written."""
        return [layer for layer in self._layers if self._config.replace or layer.column is None]

    def _has_entry(self, layer: LayerRows) -> bool:
        """Returns whether the catalog has the values of a layer as this very job writes them."""
        entry = self._change.history.catalog.find("column", self._config.name, layer.number)
        return entry is not None and entry.job == self._identify(layer)

    def choose_records(self, layers: Sequence[LayerRows]) -> Manifest:
        """Returns the manifest of the dataset in which only the records of some layers are visible."""
        manifest, others = self.manifest, [layer for layer in self._layers if layer not in layers]
        for split in manifest.splits if others else ():
            numbers = [
                layer.records.get(split, 0) + np.arange(layer.manifest.splits[split].records)
                for layer in others
                if split in layer.manifest.splits
            ]
            hidden = np.zeros(sum(map(len, numbers)), HIDDEN)
            hidden["number"], hidden["label"] = np.concatenate([np.empty(0, np.int64), *numbers]), -1
            info = hide_records(manifest.splits[split], hidden)
            manifest = replace(manifest, splits={**manifest.splits, split: info})
        return manifest

    def check(self) -> None:
        """Refuses a column that cannot be added, before anything is written."""
        config, directory = self._config, self.manifest.directory
        self._check_features()
        if not self.list_lacking():
            raise ConfigError(f"{directory} has a column {config.name!r}. Give another `name`, or set `replace`.")
        if config.missing != "view":
            return
        if len(self._layers) > 1:
            raise ConfigError(
                f"`missing` view is for a dataset without appended layers, and {directory} has some: "
                "layers may get their values one after another, and a view does not grow. Set `missing` to default, "
                "and make the view by `tfpipe view`."
            )
        is_own = config.replace or self._has_entry(self._layers[0])  # whose folder somebody removed
        if self._change.history.catalog.find("view", config.name) and not is_own:
            raise ConfigError(f"There is a view {config.name!r} already. Give the column another `name`.")

    def write(self, make: Make) -> None:
        """Writes the values of the layers that have none, each in a folder of its own."""
        config, busy = self._config, f"adds {self._config.name!r} to {self.manifest.directory}"
        jobs = []
        for layer in self.list_lacking():
            path = file_io.join(self.manifest.directory, get_path("column", config.name, self._identify(layer)))
            folder = WriteFolder(check_output(path, is_ours=lambda name: True))
            jobs.append((layer, WriteJob(folder, self._form, None, False, self._workers)))
        with contextlib.ExitStack() as opened:
            for layer, job in jobs:
                # A killed run may have written a layer as a whole, but not the notes for a view, which it removed.
                if config.missing != "view" and file_io.exists(file_io.join(job.folder.output, file_names.MANIFEST)):
                    continue
                opened.enter_context(job.folder.open(self._identify(layer), busy))
                written = {}
                for split, info in layer.manifest.splits.items():
                    rows = layer.list_rows(self.manifest, split)
                    records = partial(_make_records, config, self._form, job.folder, make, rows)
                    written[split] = write_split(job, split, info.num_shards, records)
                put_together(job, config.name, written, list_fingerprints(layer.manifest))
                if not file_io.is_url(job.folder.output):
                    file_io.remove_tree(job.folder.output)  # of a run that was killed before it made the view
                job.folder.publish()
            entries = [self._make_entry(layer, job) for layer, job in jobs]
            if config.missing == "view":
                view = self._make_view(*jobs[0])
                data = view.encode()
                entries.append(self._change.make_view(view, data))
                self._change.write(entries[-1].path, data)
            self._change.commit(entries)
        for _, job in jobs:
            job.folder.remove()  # also of a killed run

    def _make_entry(self, layer: LayerRows, job: WriteJob) -> Entry:
        """Returns the catalog's entry for the values of a layer, which must be written already."""
        below, made = map(list_fingerprints, (layer.manifest, load_own_manifest(job.folder.output)))
        return Entry("column", self._identify(layer), layer.number, self._config.name, below, made)

    def _identify(self, layer: LayerRows) -> str:
        """Returns the identity of the job that writes the values of the records of a layer."""
        replaced = layer.column.directory if layer.column is not None and self._config.replace else ""
        values = [__version__, self._form.schema.to_json(), repr(self._config), list_fingerprints(layer.manifest)]
        return hash_values(*values, layer.number, os.path.basename(replaced), *self._identity)

    def _check_features(self) -> None:
        """Refuses features whose names the dataset has, or that differ from the column's features in other layers."""
        columns = [one for one in self.manifest.columns if one.name != self._config.name or not self._config.replace]
        schema, old = self._form.schema, replace(self.manifest, columns=tuple(columns)).full_schema
        for layer in self._layers if len(self._layers) > 1 and not self._config.replace else ():
            if layer.column is not None and layer.column.schema != schema:
                names = ", ".join(layer.column.schema.names)
                raise ConfigError(
                    f"The features must be those in {layer.column.directory}, {names}, of the same types, got "
                    f"{', '.join(schema.names)}."
                )
        for name in schema.names:
            for column in columns:
                if name in column.schema:
                    raise ConfigError(
                        f"{self.manifest.directory} has a feature {name!r} in its column {column.name!r}. Give the new "
                        f"one another name, or set `replace` and `name` {column.name} to replace that column."
                    )
            if name in old:
                raise ConfigError(f"{self.manifest.directory} has a feature {name!r}. Give the new one another name.")
        others = [spec for spec in old.features if not spec.name.startswith(IMAGE_ENCODED.partition("/")[0] + "/")]
        check_names([*others, *schema.features])
        unknown = [name for name in self._config.default if name not in schema or name in schema.sizes_keys]
        if unknown:
            raise ConfigError(f"`default` must name features of {', '.join(schema.names)}, got {unknown[0]!r}.")
        self._form.check(make_default(self._form, self._config.default))

    def _make_view(self, layer: LayerRows, job: WriteJob) -> View:
        splits, manifest = {}, self.manifest
        for split, info in manifest.splits.items():
            names = (file_names.shard_name(split, number, info.num_shards) for number in range(info.num_shards))
            data = b"".join(file_io.read_whole(job.folder.digests_path(name)) for name in names)
            notes = np.frombuffer(data, _NOTES)
            numbers = np.flatnonzero(notes != _MISSING).astype(np.int64)
            splits[split] = make_view_split(manifest, split, numbers, notes[numbers])
        if not any(split.records for split in splits.values()):
            raise DataError(f"No record of {manifest.directory} has a value, so the view would have none.")
        return View(self._config.name, splits, {"where": f"column {self._identify(layer)}"})


def load_for_column(dataset: str | os.PathLike[str]) -> Manifest:
    """Loads the manifest of a dataset that can get a column."""
    manifest = load_manifest(os.fspath(dataset))
    check_readable(manifest.directory)
    if manifest.view:
        raise ConfigError(f"A column is added to a dataset and not to the view {manifest.view!r}. Leave the @ out.")
    for split in manifest.splits:
        RecordReader(manifest.directory, manifest, split).close()  # which refuses compressed shards
    return manifest


def make_default(form: RecordForm, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a record that has none: those given, and else 0, an empty text, an empty list or zeros."""
    values: dict[str, Any] = {}
    for spec in form.schema.features:
        empty: Any = {"bytes": b"", "int64": 0, "float": 0.0}[spec.dtype]
        if spec.tensor is not None:
            empty = np.zeros([size or 0 for size in spec.tensor.shape], get_numpy_dtype(spec.tensor.dtype))
        elif spec.shape != ():
            empty = [empty] * (0 if spec.shape is None else int(np.prod(spec.shape)))
        if spec.name not in form.schema.sizes_keys:
            values[spec.name] = given.get(spec.name, empty)
    return values


def _make_records(
    config: ColumnConfig, form: RecordForm, folder: WriteFolder, make: Make, shards: Sequence[ShardRows], number: int
) -> Iterator[Mapping[str, Any]]:
    """Yields the values of a shard's records, defaults for hidden ones, and saves notes on which records have one."""
    default, shard = make_default(form, config.default), shards[number]
    notes = np.full(shard.records, _MISSING)
    done = 0
    for row, (label, values) in zip(shard.chosen.tolist(), make(shard.split, shard.number), strict=True):
        if values is None and config.missing == "error":
            raise DataError(
                f"Record {row} of shard {number} of {shard.split!r} has no value. Give it one, or set `missing` to "
                "default or view."
            )
        yield from repeat(default, row - done)
        notes[row] = _MISSING if values is None else _NO_CLASS if label is None or label < 0 else label
        yield default if values is None else values
        done = row + 1
    yield from repeat(default, shard.records - done)
    file_io.write_file(folder.digests_path(shard.file), notes.astype(_NOTES).tobytes())
