"""`tfpipe compact`: writes a dataset as one layer, without the bytes of hidden records."""

import json
from dataclasses import asdict

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import debug_option, json_option
from tfpipe.system.units import human_count


@click.command(cls=GroupedCommand, short_help="Remove the bytes of hidden records, and older layers.")
@click.argument("dataset")
@json_option
@debug_option
def compact(dataset: str, as_json: bool) -> None:
    """Write DATASET as one layer, without the bytes of records that are hidden. Older layers are gone then.

    Shards without a hidden record keep their bytes and take no new space. The new dataset takes the place of the old
    one at one moment; run the same command again after an interruption. A training that began before cannot go on.
    """
    from tfpipe.layers.compact import compact as run

    done = run(dataset)
    if as_json:
        click.echo(json.dumps({"dataset": dataset, "compacted": done is not None, **(asdict(done) if done else {})}))
        return
    if done is None:
        click.echo(clean_line(f"{dataset} has one layer, so there is nothing to do"))
        return
    for split, count in done.records.items():
        click.echo(clean_line(f"{split}: {human_count(count, 'record')}"))
    shards = f"{human_count(done.kept_shards, 'shard')} kept, {done.written_shards:,} written anew"
    click.echo(f"{human_count(done.removed, 'hidden record')} removed; {shards}")
    if done.dropped_views:
        click.echo(clean_line(f"views without a record that is left: {', '.join(done.dropped_views)}, removed"))
    click.echo(clean_line(f"{dataset} is complete"))
