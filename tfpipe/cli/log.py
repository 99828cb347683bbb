"""`tfpipe log`: the layers of a dataset, as a table."""

from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.system.units import human_bytes

if TYPE_CHECKING:
    from tfpipe.layers.log import LogRow

_SIGNS = {"append": "+", "delete": "-"}


@command("List the layers of a dataset.")
@click.argument("dataset")
def log(dataset: str, as_json: bool) -> None:
    """List the layers of DATASET: what was appended, hidden or taken back, and what each layer has.

    DATASET@N is the dataset as it was at layer N.
    """
    from tfpipe.dataset.history import load_history
    from tfpipe.layers.log import list_rows

    rows = list_rows(load_history(dataset.rstrip("/")))
    table = [("layer", "when", "what", "records", "bytes"), *map(_format_row, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table)
    show({"dataset": dataset, "layers": [row.to_json() for row in rows]}, lines, as_json)


def _format_row(row: "LogRow") -> tuple[str, ...]:
    sign = _SIGNS.get(row.what, "")
    change = ", ".join(f"{sign}{count:,} {split}" for split, count in row.change.items() if sign and count)
    what = f"{row.what} to {row.to}" if row.to else f"{row.what} {change}".rstrip()
    records = ", ".join(f"{count:,} {split}" for split, count in row.records.items())
    return str(row.layer), row.when or "", what, records, human_bytes(row.bytes)
