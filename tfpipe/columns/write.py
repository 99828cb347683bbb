"""Writes a column: its values come from whoever makes them, record by record in the order of the shards.

```
new = NewColumn.open("/data/flowers", ColumnConfig("captions"), {"caption": Text()})
new.write(make_values, identity=[])     # a function of a split and a shard's number that yields an `Entry` per record
```

A run that was killed goes on when the same is asked for again: shards that are finished are not made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
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
from tfpipe.dataset.load import load_manifest
from tfpipe.dataset.parts import check_readable, hide_records, list_fingerprints, load_own_manifest, load_view
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import IMAGE_ENCODED, FeatureSpec, Schema, check_names
from tfpipe.format.view import Hidden, View, ViewSplit, view_file
from tfpipe.storage import file_io
from tfpipe.writer.fields import Field, Image, Images, Label, Mask, RecordForm
from tfpipe.writer.job import WriteFolder, WriteJob
from tfpipe.writer.working_folder import check_output
from tfpipe.writer.write import put_together, write_split
from tfpipe.writer.written_shard import WrittenShard

_NO_CLASS, _MISSING = -1, -2  # in the notes of a shard, which else hold the class of each record with a value
_NOTES = np.dtype("<i8")


class Entry(NamedTuple):
    """The value of one record.

    Attributes:
        label: The class of the record, counted from 0; None without one.
        values: The value of each feature; None if the record has none.
    """

    label: int | None
    values: Mapping[str, Any] | None


Make = Callable[[str, int], Iterable[Entry]]
"""A function of a split and the number of a shard that yields the values of its records, in their order."""


class ShardRows(NamedTuple):
    """The records of a shard that get values.

    Attributes:
        split: The name of the split.
        file: The name of the shard in its layer.
        number: The number of the shard, counted through all layers.
        records: The number of its records.
        chosen: The rows of those that are not hidden, ascending: int64 [n].
    """

    split: str
    file: str
    number: int
    records: int
    chosen: NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """The records of one layer.

    Attributes:
        manifest: The manifest of the first layer, or of an appended one.
        shards: The number of shards of each split before its own.
        records: The number of records of each split before its own.
    """

    manifest: Manifest
    shards: Mapping[str, int]
    records: Mapping[str, int]

    def list_rows(self, whole: Manifest, split: str) -> list[ShardRows]:
        """Lists the rows of the shards of a split.

        Args:
            whole: The manifest of all layers, which knows the hidden records.
            split: The name of the split.
        """
        chosen, first, rows = whole.splits[split].chosen, self.records.get(split, 0), []
        for number, shard in enumerate(self.manifest.splits[split].shards, start=self.shards.get(split, 0)):
            visible = np.arange(shard.records) if chosen is None else chosen.list_rows(first, shard.records)
            rows.append(ShardRows(split, shard.file, number, shard.records, visible))
            first += shard.records
        return rows


def list_parts(manifest: Manifest) -> list[Part]:
    """Lists the layers whose records a dataset has."""
    shards, records, parts = Counter[str](), Counter[str](), []
    for each in manifest.parts or (manifest,):
        parts.append(Part(each, dict(shards), dict(records)))
        shards.update({split: info.num_shards for split, info in each.splits.items()})
        records.update({split: info.stored_records for split, info in each.splits.items()})
    return parts


def find_schema(manifest: Manifest, name: str) -> Schema | None:
    """Returns the features that a column has for some layers already; None if it has none yet."""
    for part in list_parts(manifest):
        folder = file_io.join(part.manifest.directory, file_names.COLUMNS_DIR, name)
        if _is_there(folder):
            return load_own_manifest(folder).schema
    return None


def choose_lacking(manifest: Manifest, name: str) -> Manifest:
    """Returns the manifest with only those records for which a column has no values yet."""
    folder, parts = file_io.join(file_names.COLUMNS_DIR, name), list_parts(manifest)
    having = [part for part in parts if _is_there(file_io.join(part.manifest.directory, folder))]
    if len(having) in (0, len(parts)):
        return manifest
    for split in manifest.splits:
        numbers = [
            part.records.get(split, 0) + np.arange(part.manifest.splits[split].records)
            for part in having
            if split in part.manifest.splits
        ]
        have = np.concatenate([np.empty(0, np.int64), *numbers])
        nothing = np.zeros(len(have), np.int64)
        info = hide_records(manifest.splits[split], Hidden(have, nothing.astype(np.int32) - 1, nothing))
        manifest = replace(manifest, splits={**manifest.splits, split: info})
    return manifest


@dataclass(frozen=True)
class NewColumn:
    """A column that is to be written.

    Attributes:
        manifest: The manifest of the dataset.
        config: The options.
        form: The form of the values.
        workers: The number of worker processes. 0: this process alone.
    """

    manifest: Manifest
    config: ColumnConfig
    form: RecordForm
    workers: int = 0

    @classmethod
    def open(
        cls, dataset: str | os.PathLike[str], config: ColumnConfig, schema: Mapping[str, Field], workers: int = 0
    ) -> NewColumn:
        """Opens a dataset for a new column.

        Raises:
            ConfigError: The dataset lies elsewhere, is a view, or has such a column or feature; or the schema or a
                default cannot be used.
            DataError: There is no dataset.
        """
        manifest = load_for_column(dataset)
        for name, kind in schema.items():
            if isinstance(kind, Label | Image | Images | Mask):
                raise ConfigError(
                    f"A column holds Tensor, Text, Values or Labels, got {name!r} as {type(kind).__name__}. Shard "
                    "images and classes with `tfpipe shard`."
                )
        new = cls(manifest, config, RecordForm(schema), workers)
        new._check_features()
        return new

    @property
    def directory(self) -> str:
        """The folder of the column."""
        return file_io.join(self.manifest.directory, file_names.COLUMNS_DIR, self.config.name)

    def write(self, make: Make, identity: Sequence[object] = ()) -> Manifest:
        """Writes the column, and returns the manifest of the dataset with it.

        Appended records get their values in a folder of their own. A column that some layers have is written for the
        others alone.

        Args:
            make: The function that makes the values.
            identity: The facts that tell the values from others, beside the options and the schema.

        Raises:
            ConfigError: A value does not fit the schema.
            DataError: A record has no value and must have one, the function raised an error, or the column cannot be
                written.
        """
        _write_layers(self._plan(make, identity))
        return load_manifest(self.manifest.directory)

    def _plan(self, make: Make, identity: Sequence[object] = ()) -> list[NewLayerColumn]:
        """Returns what there is to write: the values of the records of each layer that has none yet.

        Raises:
            ConfigError: All layers have the column.
        """
        replaces = self.config.replace
        if replaces and file_io.is_url(self.directory):
            raise ConfigError(
                f"A column is replaced on a local disk alone: a bucket cannot exchange {self.directory} at one moment. "
                "Give another `name`, or remove this folder first."
            )
        lacking = [part for part in list_parts(self.manifest) if replaces or not _is_there(self._get_folder(part))]
        if not lacking:
            raise ConfigError(f"{self.directory} exists. Give another `name`, or set `replace`.")
        if self.config.missing == "view" and self.manifest.parts:
            raise ConfigError(
                f"`missing` view is for a dataset without appended layers, and {self.manifest.directory} has some: "
                "layers may get their values one after another, and a view does not grow. Set `missing` to default, "
                "and make the view by `tfpipe view`."
            )
        return [self._plan_part(part, make, identity) for part in lacking]

    def _plan_part(self, part: Part, make: Make, identity: Sequence[object]) -> NewLayerColumn:
        stands_on = list_fingerprints(part.manifest)
        facts = [__version__, self.form.schema.to_json(), repr(self.config), stands_on, *identity]
        mark = None if self.config.missing != "view" else self._check_view(facts)
        output = check_output(
            self._get_folder(part), is_ours=lambda name: self.config.replace or name == WriteFolder.ending
        )
        job = WriteJob(WriteFolder(output), self.form, None, False, self.workers)
        return NewLayerColumn(self, part, job, make, _hash(facts), mark)

    def _get_folder(self, part: Part) -> str:
        return file_io.join(part.manifest.directory, file_names.COLUMNS_DIR, self.config.name)

    def _check_features(self) -> None:
        """Refuses features that cannot lie beside those of the records, or not behind those of the same column."""
        columns = [one for one in self.manifest.columns if one.name != self.config.name or not self.config.replace]
        schema, old = self.form.schema, replace(self.manifest, columns=tuple(columns)).full_schema
        for part in list_parts(self.manifest):
            folder = self._get_folder(part)
            if self.manifest.parts and _is_there(folder) and not self.config.replace:
                there = load_own_manifest(folder).schema
                if there != schema:
                    raise ConfigError(
                        f"The features must be those in {folder}, {', '.join(there.names)}, of the same types, got "
                        f"{', '.join(schema.names)}."
                    )
        can_replace = not file_io.is_url(self.manifest.directory)
        for name in schema.names:
            for column in columns:
                if name in column.schema:
                    also = f", or set `replace` and `name` {column.name} to replace that column" if can_replace else ""
                    raise ConfigError(
                        f"{self.manifest.directory} has a feature {name!r} in its column {column.name!r}. Give the new "
                        f"one another name{also}."
                    )
            if name in old:
                raise ConfigError(f"{self.manifest.directory} has a feature {name!r}. Give the new one another name.")
        others = [spec for spec in old.features if not spec.name.startswith(IMAGE_ENCODED.partition("/")[0] + "/")]
        check_names([*others, *schema.features])
        unknown = [name for name in self.config.default if name not in schema or name in schema.sizes_keys]
        if unknown:
            raise ConfigError(f"`default` must name features of {', '.join(schema.names)}, got {unknown[0]!r}.")
        self.form.check(make_default(self.form, self.config.default))

    def _check_view(self, facts: list[object]) -> str:
        """Returns what marks the view of this job, and refuses to replace another view of its name."""
        mark = f"column {_hash(facts)}"
        path = file_io.join(self.manifest.directory, view_file(self.config.name))
        if file_io.exists(path) and load_view(self.manifest, self.config.name).made_from.get("where") != mark:
            raise ConfigError(f"There is a view {self.config.name!r} already. Give the column another `name`.")
        return mark


@dataclass(frozen=True)
class NewLayerColumn:
    """The values of the records of one layer that are to be written.

    Attributes:
        column: The column.
        part: The records.
        job: The settings of the writer.
        make: The function that makes the values.
        identity: The text that tells this job from others.
        mark: The mark of the view that is written too; None for no view.
    """

    column: NewColumn
    part: Part
    job: WriteJob
    make: Make
    identity: str
    mark: str | None

    def open(self) -> contextlib.AbstractContextManager[None]:
        """Makes and locks the working folder, for `write` and what follows; errors are those of `NewColumn.write`."""
        busy = f"adds {self.column.config.name!r} to {self.column.manifest.directory}"
        return self.job.folder.open(self.identity, busy)

    def write(self) -> dict[str, list[WrittenShard]]:
        """Writes the shards of each split; errors are those of `NewColumn.write`."""
        splits = self.part.manifest.splits.items()
        return {name: write_split(self.job, name, info.num_shards, self._list_records(name)) for name, info in splits}

    def finish(self, written: Mapping[str, list[WrittenShard]]) -> None:
        """Puts the shards of each split together, with the manifest last."""
        folder, manifest = self.job.folder, self.column.manifest
        if self.mark is not None:
            path = file_io.join(manifest.directory, view_file(self.column.config.name))
            file_io.write_file(path, self._make_view(self.mark).encode(), folder.path("view"), makes_folders=True)
        put_together(self.job, self.column.config.name, written, list_fingerprints(self.part.manifest))

    def _list_records(self, split: str) -> Callable[[int], Iterator[Mapping[str, Any]]]:
        rows = self.part.list_rows(self.column.manifest, split)
        return partial(_make_records, self.column.config, self.job.form, self.job.folder, self.make, rows)

    def _make_view(self, mark: str) -> View:
        splits, manifest = {}, self.column.manifest
        for split, info in manifest.splits.items():
            names = (file_names.shard_name(split, number, info.num_shards) for number in range(info.num_shards))
            data = b"".join(file_io.read_whole(self.job.folder.digests_path(name)) for name in names)
            notes = np.frombuffer(data, _NOTES)
            numbers = np.flatnonzero(notes != _MISSING).astype(np.int64)
            splits[split] = _make_view_split(manifest, split, numbers, notes[numbers])
        if not any(split.records for split in splits.values()):
            raise DataError(f"No record of {manifest.directory} has a value, so the view would have none.")
        return View(self.column.config.name, splits, {"where": mark})


def _write_layers(layers: Sequence[NewLayerColumn]) -> None:
    """Writes the values of all layers; errors are those of `NewColumn.write`."""
    with contextlib.ExitStack() as opened:
        for layer in layers:
            opened.enter_context(layer.open())
        written = [layer.write() for layer in layers]
        for layer, shards in zip(layers, written, strict=True):
            layer.finish(shards)
        _publish(layers)


def _publish(layers: Sequence[NewLayerColumn]) -> None:
    """Gives the folders their names. Old values of appended layers go first, so that nobody reads old beside new."""
    column, first = layers[0].column, layers[0].job.folder
    if column.config.replace:
        layers_dir = file_io.join(column.manifest.directory, file_names.LAYERS_DIR)
        for name in file_io.list_names(layers_dir):
            folder = file_io.join(layers_dir, name, file_names.COLUMNS_DIR, column.config.name)
            if os.path.isdir(folder):
                os.rename(folder, first.path(name))
    for layer in layers:
        layer.job.folder.publish(replaces=column.config.replace)


def load_for_column(dataset: str | os.PathLike[str]) -> Manifest:
    """Loads the manifest of a dataset that can get a column.

    Raises:
        ConfigError: The dataset lies elsewhere, is a view, or is compressed.
        DataError: There is no dataset.
    """
    manifest = load_manifest(os.fspath(dataset))
    check_readable(manifest.directory)
    if manifest.view:
        raise ConfigError(f"A column is added to a dataset and not to the view {manifest.view!r}. Leave the @ out.")
    for split in manifest.splits:
        RecordReader(manifest.directory, manifest, split).close()  # which refuses compressed shards
    return manifest


def _is_there(folder: str) -> bool:
    """Returns whether the folder of a column is there. In a bucket it is once its manifest is."""
    path = file_io.join(folder, file_names.MANIFEST)
    return file_io.get_size(path) >= 0 if file_io.is_url(folder) else os.path.lexists(folder)


def make_default(form: RecordForm, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a record that has none: those given, and else 0, an empty text, an empty list or zeros."""
    names = [spec for spec in form.schema.features if spec.name not in form.schema.sizes_keys]
    return {spec.name: given[spec.name] if spec.name in given else _make_empty(spec) for spec in names}


def _make_empty(spec: FeatureSpec) -> Any:
    if spec.tensor is not None:
        from tfpipe.format.tensors.tensor_type import get_numpy_dtype

        return np.zeros([size or 0 for size in spec.tensor.shape], get_numpy_dtype(spec.tensor.dtype))
    value: Any = {"bytes": b"", "int64": 0, "float": 0.0}[spec.dtype]
    return value if spec.shape == () else [value] * (0 if spec.shape is None else int(np.prod(spec.shape)))


def _make_records(
    config: ColumnConfig, form: RecordForm, folder: WriteFolder, make: Make, shards: Sequence[ShardRows], number: int
) -> Iterator[Mapping[str, Any]]:
    """Yields the values of the records of a shard, and then notes which records have one. Hidden ones get defaults."""
    default, shard = make_default(form, config.default), shards[number]
    notes = np.full(shard.records, _MISSING)
    entries = zip(shard.chosen.tolist(), make(shard.split, shard.number), strict=True)
    done = 0
    for row, (label, values) in entries:
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


def _make_view_split(
    manifest: Manifest, split: str, numbers: NDArray[np.int64], labels: NDArray[np.int64]
) -> ViewSplit:
    info, classes = manifest.splits[split], len(manifest.label_names)
    counts = np.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes)
    reader = RecordReader(manifest.directory, manifest.choose(split, None).keep_columns(()), split)
    return ViewSplit(
        numbers,
        None,
        info.stored_records,
        int(reader.list_sizes(numbers).sum()),
        tuple(counts.tolist()) if info.class_counts else (),
        info.stored_fingerprint,
    )


def _hash(facts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
