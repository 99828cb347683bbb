"""`tfpipe log`: the layers of a dataset, as a table."""

import json
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import debug_option, json_option
from tfpipe.system.units import human_bytes

if TYPE_CHECKING:
    from tfpipe.layers.log import LogRow

_SIGNS = {"append": "+", "delete": "-"}


@click.command(cls=GroupedCommand, short_help="List the layers of a dataset.")
@click.argument("dataset")
@json_option
@debug_option
def log(dataset: str, as_json: bool) -> None:
    """List the layers of DATASET: what was appended, hidden or taken back, and what each layer has.

    DATASET@N is the dataset as it was at layer N.
    """
    from tfpipe.dataset.history import load_history
    from tfpipe.layers.log import list_rows

    rows = list_rows(load_history(dataset.rstrip("/")))
    if as_json:
        click.echo(json.dumps({"dataset": dataset, "layers": [row.to_json() for row in rows]}))
        return
    table = [("layer", "when", "what", "records", "bytes"), *map(_format_row, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        click.echo(clean_line("  ".join(map(str.ljust, cells, widths)).rstrip()))


def _format_row(row: "LogRow") -> tuple[str, ...]:
    sign = _SIGNS.get(row.what, "")
    change = ", ".join(f"{sign}{count:,} {split}" for split, count in row.change.items() if sign and count)
    what = f"{row.what} to {row.to}" if row.to else f"{row.what} {change}".rstrip()
    records = ", ".join(f"{count:,} {split}" for split, count in row.records.items())
    return str(row.layer), row.when or "", what, records, human_bytes(row.bytes)
