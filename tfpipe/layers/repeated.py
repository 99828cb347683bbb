"""Counts the appended images and names that a dataset had before, by the facts that lie beside the shards."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from tfpipe.dataset.history import load_history
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io
from tfpipe.views.choose import open_facts
from tfpipe.writer import record_facts as facts


class Repeated(NamedTuple):
    """The records of an appended layer that the dataset had before.

    Attributes:
        images: The number of those whose originals it had, byte for byte.
        names: The number of the others whose names it had, each with another image.
    """

    images: int
    names: int


def count_repeated(dataset: str, layer: int) -> Repeated | None:
    """Counts the records of an appended layer that the dataset had before. It reads no shard.

    Args:
        dataset: The directory of the dataset.
        layer: The number of the layer.

    Returns:
        The counts. None: they take DuckDB, PyArrow, and the facts of all shards on this machine.
    """
    if file_io.is_url(dataset) or any(importlib.util.find_spec(name) is None for name in ("duckdb", "pyarrow")):
        return None
    history = load_history(dataset)
    before, after = (history.load_state(number, number, with_columns=False) for number in (layer - 1, layer))
    if not _has_facts(after) or facts.DIGEST not in facts.list_columns(after):
        return None
    starts = {split: before.splits[split].stored_records if split in before.splits else 0 for split in after.splits}
    is_new = " OR ".join(f"(split = '{split}' AND row_number_ >= {start})" for split, start in starts.items())
    known = {facts.DIGEST, facts.NAME} & set(facts.list_columns(after))
    is_old = {name: f"{name} IN (SELECT {name} FROM numbered WHERE NOT ({is_new}))" for name in known}
    named = f"{is_old[facts.NAME]} AND NOT {is_old[facts.DIGEST]}" if facts.NAME in known else "false"
    with open_facts(after) as table:
        counts = f"count(*) FILTER ({is_old[facts.DIGEST]}), count(*) FILTER ({named})"
        query = f"SELECT {counts} FROM numbered WHERE ({is_new})"
        return Repeated(*table.connection.execute(query).fetchone())


def _has_facts(manifest: Manifest) -> bool:
    return all(
        facts.is_of_shard(
            file_io.join(manifest.directory, file_names.facts_name(shard.file)), shard.sha256, shard.records
        )
        for info in manifest.splits.values()
        for shard in info.shards
    )
