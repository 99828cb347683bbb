"""`tfpipe delete`: hides records of a dataset by their names."""

import json

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import debug_option, json_option
from tfpipe.errors import DataError
from tfpipe.system.units import human_count


@click.command(cls=GroupedCommand, short_help="Hide records of a dataset by their names.")
@click.argument("dataset")
@click.argument("names", metavar="NAMES.txt")
@json_option
@debug_option
def delete(dataset: str, names: str, as_json: bool) -> None:
    """Hide the records of DATASET whose names NAMES.txt has, one in each line.

    No reader, view or command gives them from then on. The shards are not changed: tfpipe compact DATASET removes the
    bytes. A name that no record has is an error, and nothing is hidden. tfpipe rollback takes it back before that.
    """
    from tfpipe.layers.delete import delete_records

    deleted = delete_records(dataset, _read_names(names))
    if as_json:
        click.echo(
            json.dumps(
                {"dataset": dataset, "layer": deleted.layer, "hidden": deleted.records, "before": deleted.before}
            )
        )
        return
    if deleted.before:
        click.echo(f"{human_count(deleted.before, 'record')} with these names were hidden before")
    for split, count in deleted.records.items():
        click.echo(clean_line(f"{split}: {human_count(count, 'record')} hidden"))
    if not deleted.records:
        click.echo(clean_line(f"There is nothing to hide in {dataset}"))
        return
    click.echo(clean_line(f"{dataset} is at layer {deleted.layer}; tfpipe compact {dataset} removes the bytes"))


def _read_names(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not a text in UTF-8" if isinstance(error, ValueError) else error.strerror
        raise DataError(f"{path} cannot be read: {reason}.") from None
