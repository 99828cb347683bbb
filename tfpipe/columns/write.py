"""Writes a column: its values come from whoever makes them, record by record in the order of the shards.

```
new = NewColumn.open("/data/flowers", ColumnConfig("captions"), {"caption": Text()})
new.write(make_values, identity=[])     # a function of a split and a shard's number that yields an `Entry` per record
```

A run that was killed goes on when the same is asked for again: shards that are finished are not made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.columns.config import ColumnConfig
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import IMAGE_ENCODED, FeatureSpec, check_names
from tfpipe.format.view import View, ViewSplit, view_file
from tfpipe.open_dataset import check_local, load_manifest, load_view
from tfpipe.storage import file_io, local
from tfpipe.writer.fields import Field, Image, Images, Label, Mask, RecordForm
from tfpipe.writer.job import WriteFolder, WriteJob
from tfpipe.writer.working_folder import check_output
from tfpipe.writer.write import put_together, write_split

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


@dataclass(frozen=True)
class NewColumn:
    """A column that is to be written.

    Attributes:
        manifest: The manifest of the dataset, on this machine.
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

        Args:
            make: The function that makes the values.
            identity: The facts that tell the values from others, beside the options and the schema.

        Raises:
            ConfigError: A value does not fit the schema.
            DataError: A record has no value and must have one, the function raised an error, or the column cannot be
                written.
        """
        if os.path.lexists(self.directory):
            raise ConfigError(f"{self.directory} exists. Give another `name`, or remove this folder first.")
        facts = [__version__, self.form.schema.to_json(), repr(self.config), self._stands_on, *identity]
        view = None if self.config.missing != "view" else self._check_view(facts)
        job = WriteJob(WriteFolder(check_output(self.directory)), self.form, None, False, self.workers)
        with job.folder.open(_hash(facts), f"adds {self.config.name!r} to {self.manifest.directory}"):
            written = {}
            for split, info in self.manifest.splits.items():
                records = partial(_make_records, self.config, self.form, job.folder, make, split, info.num_shards)
                written[split] = write_split(job, split, info.num_shards, records)
                counts = [shard.info.records for shard in written[split]]
                if counts != [shard.records for shard in info.shards]:
                    raise DataError(
                        f"Each record of {split!r} must have one value: {sum(counts):,} came for {info.records:,}."
                    )
            if view is not None:
                path = file_io.join(self.manifest.directory, view_file(self.config.name))
                made = self._make_view(job.folder, view).encode()
                file_io.write_file(path, made, job.folder.path("view"), makes_folders=True)
            put_together(job, self.config.name, written, self._stands_on)
            job.folder.publish()
            local.sync_folder(os.path.dirname(self.directory))
        return load_manifest(self.manifest.directory)

    @property
    def _stands_on(self) -> dict[str, str]:
        return {split: info.fingerprint for split, info in self.manifest.splits.items()}

    def _check_features(self) -> None:
        """Refuses features that cannot lie beside those of the records."""
        schema, old = self.form.schema, self.manifest.full_schema
        for name in schema.names:
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
        if os.path.lexists(path) and load_view(self.manifest, self.config.name).made_from.get("where") != mark:
            raise ConfigError(f"There is a view {self.config.name!r} already. Give the column another `name`.")
        return mark

    def _make_view(self, folder: WriteFolder, mark: str) -> View:
        splits = {}
        for split, info in self.manifest.splits.items():
            names = (file_names.shard_name(split, number, info.num_shards) for number in range(info.num_shards))
            notes = np.concatenate([np.fromfile(folder.digests_path(name), _NOTES) for name in names])
            numbers = np.flatnonzero(notes != _MISSING).astype(np.int64)
            splits[split] = _make_view_split(self.manifest, split, numbers, notes[numbers])
        if not any(split.records for split in splits.values()):
            raise DataError(f"No record of {self.manifest.directory} has a value, so the view would have none.")
        return View(self.config.name, splits, {"where": mark})


def load_for_column(dataset: str | os.PathLike[str]) -> Manifest:
    """Loads the manifest of a dataset that can get a column.

    Raises:
        ConfigError: The dataset lies elsewhere, is a view, or is compressed.
        DataError: There is no dataset.
    """
    manifest = load_manifest(os.fspath(dataset))
    check_local(manifest.directory)
    if manifest.view:
        raise ConfigError(f"A column is added to a dataset and not to the view {manifest.view!r}. Leave the @ out.")
    for split in manifest.splits:
        RecordReader(manifest.directory, manifest, split).close()  # which refuses compressed shards
    return manifest


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
    config: ColumnConfig,
    form: RecordForm,
    folder: WriteFolder,
    make: Make,
    split: str,
    num_shards: int,
    number: int,
) -> Iterator[Mapping[str, Any]]:
    """Yields the values of the records of a shard, and then notes which records have one."""
    default, notes = make_default(form, config.default), []
    for row, (label, values) in enumerate(make(split, number)):
        if values is None and config.missing == "error":
            raise DataError(
                f"Record {row} of shard {number} of {split!r} has no value. Give it one, or set `missing` to "
                "default or view."
            )
        notes.append(_MISSING if values is None else _NO_CLASS if label is None or label < 0 else label)
        yield default if values is None else values
    name = file_names.shard_name(split, number, num_shards)
    file_io.write_file(folder.digests_path(name), np.array(notes, _NOTES).tobytes())


def _make_view_split(
    manifest: Manifest, split: str, numbers: NDArray[np.int64], labels: NDArray[np.int64]
) -> ViewSplit:
    info, classes = manifest.splits[split], len(manifest.label_names)
    counts = np.bincount(labels[(labels >= 0) & (labels < classes)], minlength=classes)
    reader = RecordReader(manifest.directory, manifest.keep_columns(()), split)
    return ViewSplit(
        numbers,
        None,
        info.records,
        int(reader.list_sizes(numbers).sum()),
        tuple(counts.tolist()) if info.class_counts else (),
        info.fingerprint,
    )


def _hash(facts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
