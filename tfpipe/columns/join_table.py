"""Adds a column from a Parquet table, whose rows DuckDB joins with the records, on disk if memory is too small."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from tfpipe.columns.config import TableConfig
from tfpipe.columns.write import NewColumn, Value, list_layer_rows, load_for_column
from tfpipe.dataset.dataset_files import check_local
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.fields import Field, Tensor, Text, Values
from tfpipe.format.file_names import SPLITS
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import Schema
from tfpipe.storage import file_io
from tfpipe.system.extras import importing
from tfpipe.system.units import human_count
from tfpipe.views.choose import InfoTable, open_info, quote_text
from tfpipe.writer import record_info
from tfpipe.writer.changes import Change, open_change

_SPLIT = "split"
_ROWS_AT_ONCE = 1024
_TENSORS: Mapping[str, Any] = {"halffloat": "float32", "float": "float32", "double": "float64"}


@dataclass(frozen=True)
class Joined:
    """The result of a join."""

    manifest: Manifest
    records: int  # that got a value from the table
    without: int  # records that the table has no row for
    unused: int  # rows that belong to no record


def join_table(dataset: str, table: str, config: TableConfig) -> Joined:
    """Adds the columns of a Parquet table to the records of a dataset; a row with a missing value counts as none."""
    with importing("A table of columns", "DuckDB and PyArrow", "tfpipe[views]"):
        import duckdb  # noqa: F401
        import pyarrow  # noqa: F401
    if os.path.isdir(table):
        raise ConfigError(f"The dataset comes first, and then its table: {table} is a folder. Exchange the two.")
    directory = load_for_column(dataset).directory
    check_local(directory)
    opened = _Table.open(table, config)
    with open_change(directory) as change:
        counts = _join(change, opened, config)
    return Joined(load_manifest(dataset), *counts)


def _join(change: Change, opened: _Table, config: TableConfig) -> tuple[int, int, int]:
    """Joins the table and writes values that no earlier run wrote; returns the counts of `Joined`, in its order."""
    import duckdb

    table, directory = opened.path, change.directory
    layers = list_layer_rows(change.history, config.name)
    schema = next((layer.column.schema for layer in layers if layer.column is not None), None)
    identity = [os.path.abspath(table), *map(str, file_io.get_versions([table]))]
    try:
        described = {name: opened.describe(name) for name in opened.names}
        fields = _follow(described, None if config.replace else schema)
        new = NewColumn(change, config, fields, identity)
        written = [] if new.list_lacking() else new.list_written()
        if not written:
            new.check()
        manifest = new.choose_records(written or new.list_lacking())
        with open_info(manifest.keep_columns(())) as known:
            counts = opened.join(known, manifest)
            counted = accumulate((info.num_shards for info in manifest.splits.values()), initial=0)
            first = dict(zip(manifest.splits, counted, strict=False))
            if not written:
                new.write(lambda split, number: opened.read(known, fields, first[split] + number))
    except duckdb.Error as error:
        raise ConfigError(f"{table} cannot be joined with {directory}: {first_line(error)}") from None
    return counts


def _follow(fields: Mapping[str, Field], schema: Schema | None) -> dict[str, Field]:
    """Returns the fields; one becomes a list of any length if the column's feature is such a list in other layers."""
    followed: dict[str, Field] = {}
    for name, kind in fields.items():
        spec = schema[name] if schema is not None and name in schema else None
        if isinstance(kind, Values) and kind.shape != () and spec is not None and spec.shape is None:
            kind = replace(kind, shape=None)
        elif isinstance(kind, Tensor) and spec is not None and spec.tensor is not None:
            kind = replace(kind, shape=(None,)) if spec.tensor.shape == (None,) else kind
        followed[name] = kind
    return followed


@dataclass(frozen=True)
class _Table:
    """A table in a Parquet file."""

    path: str
    types: Mapping[str, Any]  # of PyArrow
    config: TableConfig

    @classmethod
    def open(cls, path: str, config: TableConfig) -> _Table:
        """Opens a table, and checks that it has the columns that the options name."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(path)
        except FileNotFoundError:
            raise ConfigError(f"There is no table {path}. Give a Parquet file.") from None
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(f"The table must be a Parquet file, and {path} is not: {first_line(error)}") from None
        opened = cls(path, dict(zip(schema.names, schema.types, strict=True)), config)
        if len(opened.types) < len(schema.names):
            raise ConfigError(f"Each column of {path} must have another name, got {', '.join(schema.names)}.")
        for name in (opened.key, *config.features):
            if name not in opened.types:
                raise ConfigError(f"{path} has no column {name!r}; it has {', '.join(opened.types)}.")
        if not opened.names:
            raise ConfigError(f"{path} must have a column besides {opened.key!r}, which becomes a feature.")
        return opened

    @property
    def key(self) -> str:
        """The column that joins a row with its record."""
        return self.config.key or self.config.on

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that become features."""
        return self.config.features or tuple(name for name in self.types if name not in (self.key, _SPLIT))

    @property
    def _rows(self) -> str:
        """The rows in SQL, whose columns are counted: SQL ignores case, and a table may have any names."""
        names = ", ".join(f"column{k}_" for k in range(len(self.types)))
        return f"read_parquet({quote_text(self.path)}, file_row_number = true) AS given({names}, at_)"

    def _place(self, name: str) -> str:
        """Returns the name of a column in `_rows`."""
        return f"column{list(self.types).index(name)}_"

    def describe(self, name: str) -> Field:
        """Returns the field for a column that becomes a feature, by the column's type."""
        import pyarrow.types as pt

        kind = self.types[name]
        kind = kind.value_type if pt.is_dictionary(kind) else kind
        is_list = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
        inner, shape = (kind.value_type, self._find_shape(name)) if is_list else (kind, ())
        if pt.is_floating(inner):
            return Tensor(_TENSORS[str(inner)], shape or (None,)) if is_list else Values("float")
        if pt.is_integer(inner) or pt.is_boolean(inner):
            return Values("int64", shape)
        if pt.is_string(inner) or pt.is_large_string(inner):
            return Values("bytes", shape) if is_list else Text()
        if pt.is_binary(inner) or pt.is_large_binary(inner):
            return Values("bytes", shape)
        raise ConfigError(
            f"A column must hold numbers, texts, bytes or lists of them, and {name!r} of {self.path} holds {kind}. "
            "Name the columns to take in `features`."
        )

    def _find_shape(self, name: str) -> tuple[int] | None:
        """Returns the shape of lists; None if their lengths differ."""
        import duckdb

        length = f"len({self._place(name)})"
        query = f"SELECT min({length}), max({length}) FROM {self._rows}"
        with duckdb.connect() as connection:
            shortest, longest = connection.execute(query).fetchone() or (None, None)
        return (longest,) if longest and shortest == longest else None

    def join(self, known: InfoTable, manifest: Manifest) -> tuple[int, int, int]:
        """Joins rows and records; returns the numbers of records with a row, of those without, and of unused rows."""
        on, by_split = self.config.on, _SPLIT in self.types and self.key != _SPLIT
        own = {"name": record_info.NAME, "number": "row_number_", "digest": record_info.DIGEST}[on]
        if on != "number" and own not in known.columns:
            raise ConfigError(f"`on` {on} needs records with a {on}, and those of {manifest.directory} have none.")
        if on == "number" and len(manifest.splits) > 1 and not by_split:
            raise ConfigError(
                f"`on` number counts from 0 in each split, so the table needs a column `split`, since "
                f"{manifest.directory} has {', '.join(manifest.splits)}."
            )
        run, groups = known.connection.execute, ", ".join(["key_", *(["split_"] if by_split else [])])
        given = self._place(self.key)
        key = f"CAST({given} AS {'BIGINT' if on == 'number' else 'VARCHAR'})"
        key = f"lower({key})" if on == "digest" else key
        cases = " ".join(f"WHEN {quote_text(name)} THEN {quote_text(meant)}" for name, meant in SPLITS.items())
        split = f"CAST({self._place(_SPLIT) if by_split else 'NULL'} AS VARCHAR)"
        known_ones = ", ".join(map(quote_text, manifest.splits))
        split = (
            f"CASE WHEN {split} IN ({known_ones}) THEN {split} ELSE CASE lower({split}) {cases} ELSE {split} END END"
        )
        whole = " AND ".join(f"{self._place(name)} IS NOT NULL" for name in (self.key, *self.names))
        query = f"SELECT {given} FROM {self._rows} WHERE {whole} AND CAST({given} AS DOUBLE) != {key} LIMIT 1"
        if on == "number" and (part := run(query).fetchone()) is not None:
            raise ConfigError(f"Each {self.key!r} of {self.path} must be a whole number, got {part[0]}.")
        run(f"CREATE TABLE keys AS SELECT {key} AS key_, {split} AS split_, at_ FROM {self._rows} WHERE {whole}")
        again = f"SELECT {groups} FROM keys GROUP BY {groups} HAVING count(*) > 1 ORDER BY {groups} LIMIT 1"
        twice = run(again).fetchone()
        if twice is not None:
            raise ConfigError(f"Each row of {self.path} must have another {self.key!r}, got {twice[0]!r} twice.")
        label = record_info.LABEL_ID if record_info.LABEL_ID in known.columns else "NULL"
        taken = ", ".join(f"given.{self._place(name)} AS value{k}_" for k, name in enumerate(self.names))
        run(
            f"CREATE TABLE joined AS SELECT known.*, keys.at_, {taken} "
            f"FROM (SELECT shard_, row_number_, split, {own} AS own_, {label} AS label_ FROM numbered) AS known "
            f"LEFT JOIN keys ON own_ = key_{' AND split = split_' if by_split else ''} "
            f"LEFT JOIN {self._rows} ON given.at_ = keys.at_ ORDER BY shard_, row_number_"
        )
        found, total, used = run("SELECT count(at_), count(*), count(DISTINCT at_) FROM joined").fetchone()
        rows = run("SELECT count(*) FROM keys").fetchone()[0]
        self._check_found(known, manifest, found, total)
        return found, total - found, rows - used

    def _check_found(self, known: InfoTable, manifest: Manifest, found: int, total: int) -> None:
        run = known.connection.execute
        if not found:
            tables = ("key_, split_ FROM keys", "own_, split FROM joined")
            firsts = (run(f"SELECT {name} LIMIT 1").fetchone() or () for name in tables)
            theirs, ours = (" of ".join(repr(part) for part in first if part is not None) for first in firsts)
            got = f"begins with {theirs}" if theirs else "has no whole row"
            raise DataError(
                f"No row of {self.path} belongs to a record by its {self.config.on}: the table {got}, and "
                f"{manifest.directory} with {ours}."
            )
        if found < total and self.config.missing == "error":
            split, own = run("SELECT split, own_ FROM joined WHERE at_ IS NULL LIMIT 1").fetchone()
            raise DataError(
                f"{self.path} has no whole row for {human_count(total - found, 'record')} of {total:,}, such as "
                f"{own!r} of {split!r}. Add the rows, or set `missing` to default or view."
            )

    def read(self, known: InfoTable, fields: Mapping[str, Field], shard: int) -> Iterator[Value]:
        """Yields the joined values of a shard's records; `shard` is its number, counted through all splits."""
        taken = ", ".join(f"value{k}_" for k in range(len(fields)))
        query = f"SELECT label_, at_ IS NOT NULL, {taken} FROM joined WHERE shard_ = ? ORDER BY row_number_"
        tensors = [isinstance(kind, Tensor) for kind in fields.values()]
        with known.connection.cursor() as cursor:
            rows = cursor.sql(query, params=[shard])
            read = rows.to_arrow_reader if hasattr(rows, "to_arrow_reader") else rows.fetch_arrow_reader  # before 1.5
            for batch in read(_ROWS_AT_ONCE):
                labels, there, *columns = batch.columns
                values = map(_list_values, columns, tensors)
                for label, is_there, *row in zip(labels.to_pylist(), there.to_pylist(), *values, strict=True):
                    yield Value(label, dict(zip(fields, row, strict=True)) if is_there else None)


def _list_values(column: Any, is_tensor: bool) -> list[Any]:
    """Returns the values of an Arrow column; vectors become arrays, without a Python object for each number."""
    if not is_tensor:
        values: list[Any] = column.to_pylist()
        return values
    vectors = (vector.values for vector in column)
    return [v.to_pylist() if v is not None and v.null_count else v and np.asarray(v) for v in vectors]
