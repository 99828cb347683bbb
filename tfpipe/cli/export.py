"""`tfpipe export`: a dataset in the format of another tool."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import config_option
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.export.config import ExportConfig, Format
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from tfpipe.export.run import ExportReport


@command(
    example="tfpipe export flowers flowers-wds --to webdataset",
)
@click.argument("dataset")
@click.argument("output")
@config_option(ExportConfig, "to", required=True)
@click.option(
    *("--split", "splits"),
    multiple=True,
    metavar="NAME",
    help="Write this split only. Repeat it for several.  [default: all]",
)
@config_option(ExportConfig, "workers")
def export(dataset: str, output: str, to: Format, splits: tuple[str, ...], workers: int | None, as_json: bool) -> None:
    """Write the records of DATASET into the new directory OUTPUT, in the format of another tool.

    The bytes of images stay the same; raw pixels become PNG. Classes, boxes and all other features go along. DATASET
    may also be TFRecords that `tfpipe index` described. It is only read. OUTPUT appears when it is complete; run the
    same command again after an interruption.
    """
    from tfpipe.export.run import export as run

    with ScanDisplay("Exporting", counts_damage=False) as display:
        report = run(ExportConfig(dataset, output, to, splits, workers), display)
    show(_report_json(dataset, output, report), _format(output, report), as_json)


def _report_json(dataset: str, output: str, report: "ExportReport") -> dict[str, Any]:
    splits = {name: asdict(sums) for name, sums in report.splits.items()}
    for sums in splits.values():
        del sums["split"]
    return {"dataset": dataset, "output": output, "to": report.to, "splits": splits, "notes": list(report.notes)}


def _format(output: str, report: "ExportReport") -> Iterator[str]:
    for name, sums in report.splits.items():
        files = f"{human_count(sums.files, 'file')}, {human_bytes(sums.bytes)}"
        yield f"{name}: {human_count(sums.records, 'record')}, {files}"
    yield from report.notes
    yield f"{output} is complete"
