"""Makes a view with DuckDB: chooses records by a condition, samples them, and sets how often each is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset.dataset_files import check_links, check_local
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, first_line
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.view import MAX_WEIGHT, WEIGHT_UNITS, View, ViewSplit
from tfpipe.storage import file_io
from tfpipe.system import host_limits
from tfpipe.system.extras import importing
from tfpipe.system.hash_permutation import SAMPLE, IntArray, hash_numbers, key_of
from tfpipe.system.units import human_text
from tfpipe.views.config import CLASS_BALANCED, ViewConfig
from tfpipe.writer import record_info
from tfpipe.writer.changes import open_change
from tfpipe.writer.record_info import RecordInfo

_MEMORY = "1GB"  # for DuckDB, which puts larger data into a temporary folder
_AT_ONCE = 2**20  # records whose sizes are looked up in one call

_ROWS_AT_ONCE = 256

_Rows: TypeAlias = dict[str, NDArray[Any]]
"""Chosen records of a split: their `numbers`, ascending; their `labels`, -1 for none; and `weights` from a column."""


def make_view(manifest: Manifest, config: ViewConfig) -> View:
    """Chooses the records of a view."""
    check_local(manifest.directory)
    config = replace(config, where=human_text(config.where), without=tuple(map(human_text, config.without)))
    if manifest.view:
        raise ConfigError(f"A view is made of a dataset and not of the view {manifest.view!r}. Leave the @ out.")
    with importing("A view", "DuckDB and PyArrow", "tfpipe[views]"), open_info(manifest) as table:
        found = {name: table.choose(name, config) for name in manifest.splits}
        if config.without and record_info.NAME not in table.columns:
            raise ConfigError("`without` names records, and those of this dataset have no names.")
        if config.without and (unknown := table.list_unknown(config.without)):
            raise ConfigError(
                f"Each name of `without` must belong to a record, got {len(unknown):,} of {len(config.without):,} that "
                f"do not, such as {unknown[0]!r}."
            )
    splits = {name: _make_split(manifest, name, _sample(rows, config, name), config) for name, rows in found.items()}
    if not any(split.records for split in splits.values()):
        if count := sum(len(rows["numbers"]) for rows in found.values()):
            raise DataError(
                f"No record of {manifest.directory} is left by `sample`, got {config.sample} of {count:,}. "
                "Give a larger one."
            )
        raise DataError(f"No record of {manifest.directory} fulfills the condition, got {config.where!r}.")
    made_from: dict[str, str | int | float | None] = {"where": config.where, "weights": config.weights}
    made_from |= {"sample": config.sample, "seed": config.seed, "without": len(config.without)}
    return View(config.name, splits, made_from)


def write_view(manifest: Manifest, view: View, overwrite: bool = False) -> str:
    """Writes a view of a dataset, and returns its path. Writing the same view again is no error."""
    data = view.encode()
    with open_change(manifest.directory) as change:
        entry = change.make_view(view, data)
        there = change.history.catalog.find("view", view.name)
        if there is not None and there.job != entry.job and not overwrite:
            raise ConfigError(
                f"{manifest.address}@{view.name} exists. Give another `name`, or `overwrite` to replace it."
            )
        change.write(entry.path, data)
        change.commit([entry])
        return file_io.join(manifest.directory, entry.path)


class InfoTable:
    """A DuckDB database with a row for each record: all are in `stored`, the chosen ones in `chosen`."""

    def __init__(self, connection: Any, manifest: Manifest, infos: Sequence[tuple[Sequence[str], list[str]]]) -> None:
        """Makes the tables; `infos` has the names and the files of the records' info, then those of each column's."""
        self.connection, self._manifest = connection, manifest
        names = record_info.spell([name for names, _ in infos for name in names])
        self.columns = ("split", *names, "duplicate")
        shards: list[tuple[int, int, str]] = []
        for split, info in manifest.splits.items():
            starts = np.cumsum([0, *(shard.records for shard in info.shards)]).tolist()
            shards += [(len(shards) + k, start, split) for k, start in enumerate(starts[:-1])]
        taken = [f"info{k}.{quote(name)}" for k, (inner, _) in enumerate(infos) for name in inner]
        shown = ", ".join(f"{inner} AS {quote(name)}" for inner, name in zip(taken, names, strict=True))
        tables = []
        for k, (_, paths) in enumerate(infos):
            connection.execute(f"CREATE TABLE files{k} (filename VARCHAR, shard INTEGER, start BIGINT, split VARCHAR)")
            rows = [(path, *shard) for path, shard in zip(paths, shards, strict=True)]
            connection.executemany(f"INSERT INTO files{k} VALUES (?, ?, ?, ?)", rows)
            read = f"read_parquet({_quote_texts(paths)}, filename = true, file_row_number = true) AS info{k}"
            tables.append(f"({read} JOIN files{k} ON info{k}.filename = files{k}.filename)")
        joins = "".join(
            f" JOIN {table} ON files{k}.shard = files0.shard AND info{k}.file_row_number = info0.file_row_number"
            for k, table in enumerate(tables[1:], start=1)
        )
        connection.execute(
            "CREATE VIEW stored AS SELECT files0.split, files0.start + info0.file_row_number AS row_number_, "
            f"files0.shard AS shard_, {shown} FROM {tables[0]}{joins}"
        )
        connection.register("left_out", _list_left_out(manifest))
        connection.execute(
            "CREATE VIEW numbered AS SELECT * FROM stored ANTI JOIN left_out USING (split, row_number_)"
            if any(info.chosen is not None for info in manifest.splits.values())
            else "CREATE VIEW numbered AS SELECT * FROM stored"
        )
        duplicate = "false"
        if record_info.DIGEST in self.columns:
            duplicate = f"row_number() OVER (PARTITION BY {record_info.DIGEST} ORDER BY shard_, row_number_) > 1"
        connection.execute(f"CREATE VIEW chosen AS SELECT *, {duplicate} AS duplicate FROM numbered")

    def choose(self, split: str, config: ViewConfig) -> _Rows:
        """Chooses the records of a split that fulfill the condition and are not named in `without`."""
        has_labels = record_info.LABEL_ID in self.columns
        by_column = config.weights not in (None, CLASS_BALANCED)
        if by_column and config.weights not in self.columns:
            raise ConfigError(
                f"`weights` must be {CLASS_BALANCED} or a column, of {', '.join(self.columns)}; got {config.weights!r}."
            )
        if config.weights == CLASS_BALANCED and not has_labels:
            raise ConfigError(f"`weights` {CLASS_BALANCED} needs labels, and {self._manifest.directory} has none.")
        wanted = {"numbers": "row_number_"}
        wanted |= {"labels": f"CAST(coalesce({record_info.LABEL_ID}, -1) AS INTEGER)"} if has_labels else {}
        wanted |= {"weights": f"CAST({quote(str(config.weights))} AS DOUBLE)"} if by_column else {}
        # A condition with `duplicate` sorts all digests; without `duplicate` DuckDB reads the table in pieces.
        condition = f"({config.where})" if config.where.strip() else "true"
        columns = ", ".join(f"{expression} AS {name}_" for name, expression in wanted.items())
        query = f"SELECT {columns} FROM chosen WHERE split = ? AND {condition}"
        if config.without:
            query += f" AND {record_info.NAME} NOT IN (SELECT unnest(?))"
        found = self._run(query, [split, list(config.without)] if config.without else [split], config)
        arrays = {name: np.ma.getdata(found.pop(f"{name}_")) for name in wanted}
        if np.any(arrays["numbers"][1:] < arrays["numbers"][:-1]):  # DuckDB's threads mix the order
            order = np.argsort(arrays["numbers"], kind="stable")
            arrays = {name: array[order] for name, array in arrays.items()}
        return arrays

    def list_unknown(self, names: tuple[str, ...], among: str = "numbered") -> list[str]:
        """Lists the names that no chosen record has; with `stored` in place of `numbered`, no record at all."""
        query = f"SELECT name FROM unnest(?) AS asked(name) WHERE name NOT IN (SELECT {record_info.NAME} FROM {among})"
        return [name for (name,) in self.connection.execute(query, [list(names)]).fetchall()]

    def _run(self, query: str, parameters: list[Any], config: ViewConfig) -> dict[str, Any]:
        import duckdb

        try:
            rows: dict[str, Any] = self.connection.execute(query, parameters).fetchnumpy()
            return rows
        except duckdb.ConversionException as error:
            weights = f"`weights` must be a column of numbers, got {config.weights!r}, and " if config.weights else ""
            text = ": `label` is text, `label_id` a number" if record_info.LABEL_ID in self.columns else ""
            raise ConfigError(f"{weights}`where` must compare like with like{text}. {first_line(error)}") from None
        except duckdb.Error as error:
            quotes = " Text stands in single quotes." if '"' in config.where else ""
            raise ConfigError(
                f"`where` must be a condition over the columns {', '.join(self.columns)}; got {config.where!r}."
                f"{quotes} DuckDB says: {first_line(error)}"
            ) from None


@contextmanager
def open_info(manifest: Manifest) -> Iterator[InfoTable]:
    """Opens a database with the record info of a dataset, and first makes missing files."""
    import duckdb

    check_links(manifest.directory)
    with tempfile.TemporaryDirectory(prefix="tfpipe-info-") as folder:
        threads = host_limits.usable_cpus()
        infos = []
        for part in (manifest, *manifest.columns):
            names = list(record_info.list_columns(part))
            if names or part is manifest:
                inner = tempfile.mkdtemp(dir=folder)
                found = (find_info(part, split, inner, threads) for split in manifest.splits)
                infos.append((names, [path for paths in found for path in paths]))
        with duckdb.connect() as connection:
            connection.execute(
                f"SET memory_limit = '{_MEMORY}'; SET threads = {threads}; SET enable_progress_bar = false"
            )
            connection.execute(f"SET temp_directory = {quote_text(folder)}")
            yield InfoTable(connection, manifest, infos)


def _sample(rows: _Rows, config: ViewConfig, split: str) -> _Rows:
    """Samples the requested share of the records, by a hash of the seed and their numbers."""
    numbers = rows["numbers"]
    count = round(config.sample * len(numbers))
    if count == len(numbers):
        return rows
    key = key_of(SAMPLE, config.seed, *split.encode())
    hashes = hash_numbers(key, numbers)
    largest = np.partition(hashes, count - 1)[count - 1] if count else -1  # below every hash
    below = np.flatnonzero(hashes < largest)
    kept = np.union1d(below, np.flatnonzero(hashes == largest)[: count - len(below)])
    return {name: array[kept] for name, array in rows.items()}


def _make_split(manifest: Manifest, split: str, rows: _Rows, config: ViewConfig) -> ViewSplit:
    units = _to_units(rows["weights"], split) if "weights" in rows else None
    if config.weights == CLASS_BALANCED and len(rows["numbers"]):
        units = _balance(rows["labels"], split)
    return make_view_split(manifest, split, rows["numbers"], rows.get("labels"), units)


def make_view_split(
    manifest: Manifest,
    split: str,
    numbers: IntArray,
    labels: NDArray[np.integer[Any]] | None,
    units: NDArray[np.uint32] | None = None,
) -> ViewSplit:
    """Makes the view of a split from numbers of records, labels (below 0: none), and how often each is read."""
    info, classes = manifest.splits[split], len(manifest.label_names)
    stored = RecordReader(manifest.directory, manifest.choose(split, None).keep_columns(()), split)
    sizes = (stored.list_sizes(numbers[k : k + _AT_ONCE]).sum() for k in range(0, len(numbers), _AT_ONCE))
    known = np.empty(0, np.int64) if labels is None else labels[(labels >= 0) & (labels < classes)]
    counts = tuple(np.bincount(known, minlength=classes).tolist()) if info.class_counts else ()
    return ViewSplit(numbers, units, info.stored_records, sum(map(int, sizes)), counts, info.stored_fingerprint)


def _balance(labels: NDArray[np.int32], split: str) -> NDArray[np.uint32]:
    """Returns weights with which all classes are read equally often; their sum is the number of records."""
    counts = np.bincount(labels + 1)
    units = np.zeros(len(counts), np.uint32)
    units[counts > 0] = _to_units(len(labels) / np.count_nonzero(counts) / counts[counts > 0], split)
    return units[labels + 1]


def _to_units(weights: NDArray[np.float64], split: str) -> NDArray[np.uint32]:
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT)))
    if len(wrong):
        raise ConfigError(
            f"`weights` must be numbers from 0 to {MAX_WEIGHT:,}, got {weights[wrong[0]]} in a record of {split!r}."
        )
    return np.round(weights * WEIGHT_UNITS).astype(np.uint32)


def quote(name: str) -> str:
    """Returns the name of a column in SQL's quotes."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Returns a text in SQL's quotes."""
    return "'" + text.replace("'", "''") + "'"


def _quote_texts(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(quote_text, dict.fromkeys(texts)))}]"


def find_info(manifest: Manifest, split: str, folder: str, threads: int = 1) -> list[str]:
    """Returns the paths of the record info of a split's shards, and makes missing ones."""
    with importing("A view", "DuckDB and PyArrow", "tfpipe[views]"):
        import pyarrow.parquet  # noqa: F401
    reader = RecordReader(manifest.directory, manifest.choose(split, None).keep_columns(()), split)
    shards = manifest.splits[split].shards
    starts = np.concatenate([[0], np.cumsum([shard.records for shard in shards])]).tolist()
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(partial(_find_shard_info, reader, folder), shards, starts[:-1]))


def _list_left_out(manifest: Manifest) -> Any:
    """Returns the records that are not chosen: a `pyarrow.Table` with their `split` and their `row_number_`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([("split", pa.string()), ("row_number_", pa.int64())])
    tables = []
    for name, info in manifest.splits.items():
        left_out = np.ones(info.stored_records, np.bool_)
        left_out[slice(None) if info.chosen is None else info.chosen.numbers] = False
        # Arrow must own the memory, because its threads may free it when the interpreter is gone.
        numbers = pc.indices_nonzero(pa.array(left_out)).cast(pa.int64())
        tables.append(pa.table([pa.array([name] * len(numbers), pa.string()), numbers], schema))
    return pa.concat_tables(tables)


def _find_shard_info(reader: RecordReader, folder: str, shard: ShardInfo, start: int) -> str:
    path = file_io.join(reader.directory, file_names.info_name(shard.file))
    info = RecordInfo(reader.manifest)
    if info.is_of_shard(path, shard.sha256, shard.records):
        return path
    for begin in range(start, start + shard.records, _ROWS_AT_ONCE):
        for features in reader.iterate(np.arange(begin, min(begin + _ROWS_AT_ONCE, start + shard.records))):
            info.add(features)
    data = info.encode(shard.sha256)
    try:
        file_io.write_file(path, data)
    except OSError:  # the dataset is read-only
        path = os.path.join(folder, file_names.info_name(shard.file).replace("/", "-"))
        file_io.write_file(path, data)
    return path
