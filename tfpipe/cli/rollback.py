"""`tfpipe rollback`: gives a dataset the state of an older layer."""

from dataclasses import asdict

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.system.units import human_count


@command("Go back to an older layer of a dataset.")
@click.argument("dataset")
@click.option("--to", type=int, required=True, metavar="N", help="The number of the layer, as tfpipe log shows it.")
def rollback(dataset: str, to: int, as_json: bool) -> None:
    """Give DATASET the state that it had at layer N, by a new layer. Nothing is removed.

    Records that were appended later are read no longer, and those that were hidden later are read again.
    """
    from tfpipe.layers.rollback import roll_back

    done = roll_back(dataset, to)
    lines = [f"{human_count(done.gone, 'record')} gone"] if done.gone else []
    if done.back:
        unhidden = f", {done.unhidden:,} of them hidden until now" if done.unhidden else ""
        lines.append(f"{human_count(done.back, 'record')} back{unhidden}")
    lines.append(f"{dataset} is at layer {done.layer}, with the records of layer {to}")
    show({"dataset": dataset, **asdict(done)}, lines, as_json)
