"""`tfpipe delete`: records of a dataset, hidden by their names."""

from collections.abc import Iterator

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.inputs import read_names
from tfpipe.layers.delete import Deleted, delete_records
from tfpipe.system.units import human_count


@command(example="tfpipe delete flowers names.txt")
@click.argument("dataset")
@click.argument("names", metavar="NAMES.txt")
def delete(dataset: str, names: str, as_json: bool) -> None:
    """Hide the records of DATASET whose names NAMES.txt has, one in each line.

    No reader, view or command gives them from then on. The shards are not changed: tfpipe reshard DATASET OUTPUT
    writes a dataset without the bytes. A name that no record has is an error, and nothing is hidden.
    """
    deleted = delete_records(dataset, read_names(names))
    summary = {"dataset": dataset, "layer": deleted.layer, "hidden": deleted.records, "before": deleted.before}
    show(summary, _format(dataset, deleted), as_json)


def _format(dataset: str, deleted: Deleted) -> Iterator[str]:
    if deleted.before:
        was = "was" if deleted.before == 1 else "were"
        yield f"{human_count(deleted.before, 'record')} with these names {was} hidden before"
    for split, count in deleted.records.items():
        yield f"{split}: {human_count(count, 'record')} hidden"
    if deleted.records:
        yield f"{dataset} is at layer {deleted.layer}; tfpipe reshard {dataset} OUTPUT writes it without the bytes"
    else:
        yield f"There is nothing to hide in {dataset}"
