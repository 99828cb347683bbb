"""`tfpipe repair`: writes the undamaged records of a dataset as a clean one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.cli.verify import JSON_VERSION, count_kinds, list_damages
from tfpipe.system.units import human_count

if TYPE_CHECKING:
    from tfpipe.integrity.repair import RepairResult


@command("Write the undamaged records as a clean dataset.", json_help="Print one JSON object, with all lost records.")
@click.argument("dataset")
@click.argument("output")
@click.option(
    "--quick", is_flag=True, help="Do not decode images: keep each record that fits its checksums and the schema."
)
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Number of worker processes.  [default: one per core]"
)
def repair(dataset: str, output: str, quick: bool, workers: int | None, as_json: bool) -> None:
    """Write every undamaged record of DATASET into the new directory OUTPUT, and list what was lost.

    DATASET is only read. OUTPUT appears when it is complete. Its file repair.json lists the lost records. Run the same
    command again after an interruption.
    """
    from tfpipe.integrity.repair import repair as run

    with ScanDisplay("Repairing") as display:
        result = run(dataset, output, quick=quick, workers=workers, observer=display)
    show(_result_json(dataset, output, result), _format(output, result), as_json)


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


def _format(output: str, result: "RepairResult") -> Iterator[str]:
    yield from list_damages(result.lost)
    if result.inferred:
        yield "The manifest could not be used: schema and class names were taken from the records."
    if result.lost:
        yield f"lost: {count_kinds(result.lost)}, listed in repair.json"
    written = f"{human_count(result.records, 'record')}, {human_count(result.shards, 'shard')}"
    yield f"{output} is complete: {written}"
