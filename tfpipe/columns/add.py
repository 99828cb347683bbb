"""Adds a column that a function makes out of the records: `tfpipe.add_column`."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

from tfpipe.columns.config import ColumnConfig, Missing
from tfpipe.columns.write import NewColumn, Value, load_for_column
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import DataError
from tfpipe.fields import Field
from tfpipe.format.manifest import Manifest
from tfpipe.readers.data_source import data_source
from tfpipe.system.arguments import check_at_top, check_count, check_function
from tfpipe.writer.changes import open_change


def add_column(
    dataset: str | os.PathLike[str],
    name: str,
    function: Callable[[Any], Any],
    schema: Field | Mapping[str, Field],
    *,
    batch_size: int | None = None,
    missing: Missing = "error",
    default: Mapping[str, Any] | None = None,
    workers: int = 0,
    replace: bool = False,
) -> Manifest:
    """Adds features to the records of a finished dataset, without a changed byte of its shards.

    They lie in a column: a folder in `columns` of the dataset, with shards, indexes and checksums of its own. Readers
    give them as any other feature. A run that was killed goes on when the same call is made again: shards that are
    finished are kept, so remove the folder whose name ends with .tfpipe-write after a change of the function.

    Args:
        dataset: The directory of a dataset, or its URL in a bucket.
        name: The name of the column.
        function: A function of a record, as `tfpipe.data_source` gives it, that returns its value; None for a record
            without one. With `batch_size` a function of a list of records that returns a list with a value for each.
        schema: The kind of the value, `Tensor`, `Text`, `Values` or `Labels`: the feature is then called as the column.
            Or the kind of each feature by its name, and the function returns mappings from these names.
        batch_size: The number of records that the function gets at once; a shard's last ones may be fewer. None: it
            gets one record.
        missing: The treatment of records without a value: "error"; "default" gives them a value; "view" makes a view
            of the others, with the column's name.
        default: The value of each feature in records without one. None: 0, an empty text, an empty list or zeros.
        workers: The number of worker processes; the function must then stand at the top of a module. 0: this process.
        replace: Whether the column takes the place of one with its name. The function still gets the old features.

    Returns:
        The manifest of the dataset with the column.

    Raises:
        ConfigError: An argument cannot be used, the dataset has such a column or feature, or a value does not fit.
        DataError: The function raised an error, a record has no value, another process changes the dataset, or the
            column cannot be written.
        FormatError: A shard is damaged.
    """
    check_count("workers", workers)
    check_function("function", function)
    config = ColumnConfig(name, missing, dict(default or {}), replace)
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)
    fields = schema if isinstance(schema, Mapping) else {name: schema}
    identity = [getattr(function, "__qualname__", type(function).__qualname__), batch_size]
    if workers:
        check_at_top("With `workers` the function", function)
    with open_change(load_for_column(dataset).directory) as change:
        new = NewColumn(change, config, fields, identity, workers)
        new.check()
        new.write(partial(_make, new.manifest, function, None if isinstance(schema, Mapping) else name, batch_size))
    return load_manifest(dataset)


def _make(
    manifest: Manifest,
    function: Callable[[Any], Any],
    only: str | None,  # the feature whose value the function returns; None if it returns mappings
    batch_size: int | None,  # None: one record, not in a list
    split: str,
    number: int,
) -> Iterator[Value]:
    """Yields the values that a user's function returns for the records of a shard."""
    counts = manifest.splits[split].records_per_shard
    first = sum(counts[:number])
    with data_source(manifest, split) as records:
        rest = iter(records[first : first + counts[number]])
        while batch := list(islice(rest, batch_size or 1)):
            values = [function(batch[0])] if batch_size is None else list(function(batch))
            if len(values) != len(batch):
                raise DataError(f"The function must return {len(batch)} values for as many records, got {len(values)}.")
            for record, value in zip(batch, values, strict=True):
                yield Value(record.label, value if only is None or value is None else {only: value})
