"""Finds the facts about each record of a dataset, and makes those that no writer left beside the shards."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from tfpipe.engine.record_reader import RecordReader
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.storage import file_io
from tfpipe.system.extras import importing
from tfpipe.writer.record_facts import RecordFacts, is_of_shard

_ROWS_AT_ONCE = 256


def find_facts(manifest: Manifest, split: str, folder: str, threads: int = 1) -> list[str]:
    """Returns the file with the facts of each shard of a split, and makes those that are missing.

    Args:
        manifest: The manifest of a dataset on this machine.
        split: The name of the split.
        folder: A folder for facts that cannot be written beside the indexes.
        threads: The number of shards that are read at once.

    Raises:
        ConfigError: The shards are compressed.
        FormatError: A shard is damaged.
        DataError: A shard cannot be read.
        MissingDependencyError: PyArrow is not installed.
    """
    with importing("A view", "DuckDB and PyArrow", "tfpipe[views]"):
        import pyarrow.parquet  # noqa: F401
    reader = RecordReader(manifest.directory, manifest.choose(split, None).keep_columns(()), split)
    shards = manifest.splits[split].shards
    starts = np.concatenate([[0], np.cumsum([shard.records for shard in shards])]).tolist()
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(partial(_find_shard_facts, reader, folder), shards, starts[:-1]))


def list_left_out(manifest: Manifest) -> Any:
    """Returns the records that are not chosen: a `pyarrow.Table` with their `split` and their `row_number_`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = pa.schema([("split", pa.string()), ("row_number_", pa.int64())])
    tables = []
    for name, info in manifest.splits.items():
        left_out = np.ones(info.stored_records, np.bool_)
        left_out[slice(None) if info.chosen is None else info.chosen.numbers] = False
        # Memory of Arrow's own: its threads may free it when the interpreter is gone.
        numbers = pc.indices_nonzero(pa.array(left_out)).cast(pa.int64())
        tables.append(pa.table([pa.array([name] * len(numbers), pa.string()), numbers], schema))
    return pa.concat_tables(tables)


def _find_shard_facts(reader: RecordReader, folder: str, shard: ShardInfo, start: int) -> str:
    path = file_io.join(reader.directory, file_names.facts_name(shard.file))
    if is_of_shard(path, shard.sha256, shard.records):
        return path
    facts = RecordFacts(reader.manifest)
    for begin in range(start, start + shard.records, _ROWS_AT_ONCE):
        for features in reader.iterate(np.arange(begin, min(begin + _ROWS_AT_ONCE, start + shard.records))):
            facts.add(features)
    data = facts.encode(shard.sha256)
    try:
        file_io.write_file(path, data)
    except OSError:  # of a dataset that may only be read
        path = os.path.join(folder, file_names.facts_name(shard.file).replace("/", "-"))
        file_io.write_file(path, data)
    return path
