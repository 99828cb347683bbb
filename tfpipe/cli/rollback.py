"""`tfpipe rollback`: gives a dataset the state of an older layer."""

import json
from dataclasses import asdict

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import debug_option, json_option
from tfpipe.system.units import human_count


@click.command(cls=GroupedCommand, short_help="Go back to an older layer of a dataset.")
@click.argument("dataset")
@click.option("--to", type=int, required=True, metavar="N", help="The number of the layer, as tfpipe log shows it.")
@json_option
@debug_option
def rollback(dataset: str, to: int, as_json: bool) -> None:
    """Give DATASET the state that it had at layer N, by a new layer. Nothing is removed.

    Records that were appended later are read no longer, and those that were hidden later are read again.
    """
    from tfpipe.layers.rollback import roll_back

    done = roll_back(dataset, to)
    if as_json:
        click.echo(json.dumps({"dataset": dataset, **asdict(done)}))
        return
    if done.gone:
        click.echo(f"{human_count(done.gone, 'record')} gone")
    if done.back:
        unhidden = f", {done.unhidden:,} of them hidden until now" if done.unhidden else ""
        click.echo(f"{human_count(done.back, 'record')} back{unhidden}")
    click.echo(clean_line(f"{dataset} is at layer {done.layer}, with the records of layer {to}"))
