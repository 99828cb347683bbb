"""Hides records of a dataset by their names. Their bytes stay until `tfpipe reshard` writes a dataset without them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfpipe.dataset.dataset_files import check_local
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError
from tfpipe.format.view import HIDDEN
from tfpipe.system.extras import importing
from tfpipe.views.choose import InfoTable, open_info
from tfpipe.writer import record_info
from tfpipe.writer.changes import open_layers
from tfpipe.writer.working_folder import hash_values


@dataclass(frozen=True)
class Deleted:
    """The result of a deletion."""

    layer: int  # the number of the newest layer
    records: dict[str, int]  # newly hidden ones by split
    before: int  # records with one of the names that were hidden before


def delete_records(dataset: str | os.PathLike[str], names: Sequence[str]) -> Deleted:
    """Hides every record that has one of the names: no reader and no view gives it from then on.

    Args:
        dataset: The directory of a dataset on this machine.
        names: The names, which are those of the files that the images came from.

    Raises:
        ConfigError: No record has one of the names, the records have no names, or the dataset lies elsewhere.
        DataError: There is no dataset, or another process changes it.
        FormatError: A shard or the catalog is damaged.
        MissingDependencyError: DuckDB or PyArrow is not installed.
    """
    dataset = os.fspath(dataset)
    check_local(dataset)
    if isinstance(names, str) or not names:
        raise ConfigError(f"`names` must be a list of one name or more, got {names!r:.80}.")
    with importing("Deletion by name", "DuckDB and PyArrow", "tfpipe[views]"), open_layers(dataset) as change:
        history = change.history
        manifest = history.load_state(history.newest, history.newest, with_columns=False)
        with open_info(manifest) as table:
            if record_info.NAME not in table.columns:
                raise ConfigError(f"Records are deleted by their names, and those of {manifest.directory} have none.")
            if unknown := table.list_unknown(tuple(names), "stored"):
                raise ConfigError(
                    f"Each name must belong to a record of {manifest.directory}, got {len(unknown):,} of "
                    f"{len(names):,} that do not, such as {unknown[0]!r}. Nothing is deleted."
                )
            rows = {split: _find(table, split, names) for split in manifest.splits}
            query = f"SELECT count(*) FROM stored WHERE {record_info.NAME} IN (SELECT unnest(?))"
            stored: int = table.connection.execute(query, [list(names)]).fetchone()[0]
        hidden = {}
        for split, (numbers, labels) in rows.items():
            if len(numbers):
                with RecordReader(manifest.directory, manifest.choose(split, None), split) as reader:
                    hidden[split] = np.rec.fromarrays([numbers, labels, reader.list_sizes(numbers)], HIDDEN)
        records = {split: len(found) for split, found in hidden.items()}
        before = stored - sum(records.values())
        if not records:
            return Deleted(history.newest, {}, before)
        job = hash_values("delete", history.newest, *names)
        layer = change.make_layer("delete", job, records=records, hidden=hidden)
        change.commit([layer])
        return Deleted(layer.number, records, before)


def _find(table: InfoTable, split: str, names: Sequence[str]) -> tuple[Any, Any]:
    """Returns the numbers of the records with one of the names, ascending, and their classes."""
    label = f"coalesce({record_info.LABEL_ID}, -1)" if record_info.LABEL_ID in table.columns else "-1"
    rows = table.connection.execute(
        f"SELECT row_number_, {label} AS label_ FROM numbered "
        f"WHERE split = ? AND {record_info.NAME} IN (SELECT unnest(?)) ORDER BY row_number_",
        [split, list(names)],
    ).fetchnumpy()
    return np.ma.getdata(rows["row_number_"]).astype(np.int64), np.ma.getdata(rows["label_"]).astype(np.int32)
