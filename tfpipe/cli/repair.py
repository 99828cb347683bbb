"""`tfpipe repair`: writes the undamaged records of a dataset as a clean one."""

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import debug_option
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.cli.verify import JSON_VERSION, print_damages
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.integrity.repair import RepairResult


@click.command(cls=GroupedCommand, short_help="Write the undamaged records as a clean dataset.")
@click.argument("dataset")
@click.argument("output")
@click.option(
    "--quick", is_flag=True, help="Do not decode images: keep each record that fits its checksums and the schema."
)
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Number of worker processes.  [default: one per core]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with all lost records.")
@debug_option
def repair(dataset: str, output: str, quick: bool, workers: int | None, as_json: bool) -> None:
    """Write every undamaged record of DATASET into the new directory OUTPUT, and list what was lost.

    DATASET is only read. OUTPUT appears when it is complete. Its file repair.json lists the lost records. Run the same
    command again after an interruption.
    """
    from tfpipe.integrity.repair import repair as run

    with ScanDisplay("Repairing") as display:
        result = run(dataset, output, quick=quick, workers=workers, observer=display)
    if as_json:
        click.echo(json.dumps(_result_json(dataset, output, result)))
    else:
        _print(output, result)


def _result_json(dataset: str, output: str, result: "RepairResult") -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
        "dataset": dataset,
        "output": output,
        "records": result.records,
        "shards": result.shards,
        "manifest_inferred": result.inferred,
        "lost": [damage.to_json() for damage in result.lost],
    }


def _print(output: str, result: "RepairResult") -> None:
    print_damages(result.lost)
    written = f"{human_count(result.records, 'record')}, {human_count(result.shards, 'shard')}"
    if result.inferred:
        click.echo("The manifest could not be used: schema and class names were taken from the records.")
    if result.lost:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(damage.kind for damage in result.lost).items())
        click.echo(clean_line(f"lost: {kinds}, listed in repair.json"))
    click.echo(clean_line(f"{output} is complete: {written}"))
