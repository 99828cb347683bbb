"""`tfpipe add`: adds the columns of a table to the records of a finished dataset."""

import json
from pathlib import PurePath
from typing import Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import config_option, config_options
from tfpipe.columns.config import TableConfig
from tfpipe.system.units import human_bytes, human_count


@command(example="tfpipe add flowers captions.parquet")
@click.argument("dataset")
@click.argument("table")
@config_option(TableConfig, "name", default="the table's name")
@config_options(TableConfig, without=("name",))
@click.option(
    "--default",
    multiple=True,
    metavar="FEATURE=VALUE",
    help="With --missing default: the value, as JSON or text; again for more.  [default: 0, empty text, list or zeros]",
)
def add(dataset: str, table: str, as_json: bool, default: tuple[str, ...] = (), **options: Any) -> None:
    """Add the columns of TABLE, a Parquet file, to the records of DATASET as features. No shard is changed.

    A row belongs to the record that has its name, its number or its digest. The features lie in DATASET/columns,
    with shards, indexes and checksums of their own; every reader gives them as it gives others. To take them away,
    remove that folder. A run that was killed goes on when the same command runs again.
    """
    from tfpipe.columns.join_table import join_table

    config = TableConfig(**{"name": PurePath(table).stem, **options}, default=dict(map(_read_default, default)))
    joined = join_table(dataset, table, config)
    column = next(column for column in joined.manifest.columns if column.name == config.name)
    num_bytes = sum(split.bytes for split in column.splits.values())
    counts = {"records": joined.records, "without": joined.without, "unused_rows": joined.unused, "bytes": num_bytes}
    belong = "belongs" if joined.unused == 1 else "belong"
    text = f"{human_count(joined.records, 'record')} got a value, {joined.without:,} did not"
    lines = [
        *(
            f"{spec.name}: {spec.tensor or (spec.dtype if spec.kind == 'values' else spec.kind)}"
            for spec in column.schema.features
        ),
        f"{text}; {human_count(joined.unused, 'row')} of the table {belong} to no record",
        f"The column {config.name!r} of {dataset} is complete: {human_bytes(num_bytes)}",
    ]
    summary = {"dataset": dataset, "column": config.name, "features": list(column.schema.names), **counts}
    show(summary, lines, as_json)


def _read_default(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"It must be FEATURE=VALUE, got {text!r}.", param_hint="--default")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
