"""Counts the appended images that a dataset had before, by the facts that the writers left beside the shards."""

from __future__ import annotations

import importlib.util

from tfpipe.dataset.history import load_history
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io
from tfpipe.views.choose import open_facts
from tfpipe.writer import record_facts as facts


def count_repeated(dataset: str, layer: int) -> int | None:
    """Returns the number of records of an appended layer whose originals the dataset had before, byte for byte.

    It reads no shard. None: that takes DuckDB, PyArrow, and the facts of all shards on this machine.

    Args:
        dataset: The directory of the dataset.
        layer: The number of the layer.
    """
    if file_io.is_url(dataset) or any(importlib.util.find_spec(name) is None for name in ("duckdb", "pyarrow")):
        return None
    history = load_history(dataset)
    before, after = (history.load_state(number, number, with_columns=False) for number in (layer - 1, layer))
    if not _has_facts(after) or facts.DIGEST not in facts.list_columns(after):
        return None
    starts = {split: before.splits[split].stored_records if split in before.splits else 0 for split in after.splits}
    is_new = " OR ".join(f"(split = '{split}' AND row_number_ >= {start})" for split, start in starts.items())
    with open_facts(after) as table:
        old = f"SELECT {facts.DIGEST} FROM numbered WHERE NOT ({is_new})"
        query = f"SELECT count(*) FROM numbered WHERE ({is_new}) AND {facts.DIGEST} IN ({old})"
        count: int = table.connection.execute(query).fetchone()[0]
        return count


def _has_facts(manifest: Manifest) -> bool:
    return all(
        facts.is_of_shard(
            file_io.join(manifest.directory, file_names.facts_name(shard.file)), shard.sha256, shard.records
        )
        for info in manifest.splits.values()
        for shard in info.shards
    )
