"""`tfpipe compact`: writes a dataset as one layer, without the bytes of hidden records."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.layers.compact import Compacted


@command("Remove the bytes of hidden records, and older layers.")
@click.argument("dataset")
def compact(dataset: str, as_json: bool) -> None:
    """Write DATASET as one layer, without the bytes of records that are hidden. Older layers are gone then.

    Shards without a hidden record keep their bytes and take no new space. The new dataset takes the place of the old
    one at one moment; run the same command again after an interruption. A training that began before cannot go on.
    """
    from tfpipe.layers.compact import compact as run

    done = run(dataset)
    facts = {"dataset": dataset, "compacted": done is not None, **(asdict(done) if done else {})}
    show(facts, _format(dataset, done), as_json)


def _format(dataset: str, done: "Compacted | None") -> Iterator[str]:
    if done is None:
        yield f"{dataset} has one layer, so there is nothing to do"
        return
    for split, count in done.records.items():
        yield f"{split}: {human_count(count, 'record')}"
    shards = f"{human_count(done.kept_shards, 'shard')} kept, {done.written_shards:,} written anew"
    yield f"{human_count(done.removed, 'hidden record')} removed; {shards}"
    if done.dropped_views:
        yield f"views without a record that is left: {', '.join(done.dropped_views)}, removed"
    yield f"{dataset} is complete"
