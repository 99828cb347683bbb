"""`tfpipe export`: a dataset in the format of another tool."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import config_option, config_options
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.export.run import ExportConfig, ExportReport
from tfpipe.export.run import export as run
from tfpipe.system.units import human_bytes, human_count


@command(example="tfpipe export flowers flowers-wds --to webdataset")
@click.argument("dataset")
@click.argument("output")
@config_option(ExportConfig, "to", required=True)
@config_options(ExportConfig, without=("to",))
def export(dataset: str, output: str, as_json: bool, **options: Any) -> None:
    """Write the records of DATASET into the new directory OUTPUT, in the format of another tool.

    The bytes of images stay the same; raw pixels become PNG. Classes, boxes and all other features go along. DATASET
    may also be TFRecords that `tfpipe index` described. It is only read. OUTPUT appears when it is complete; run the
    same command again after an interruption.
    """
    with ScanDisplay("Exporting", counts_damage=False) as display:
        report = run(ExportConfig(dataset, output, **options), display)
    show({"dataset": dataset, "output": output, **asdict(report)}, _format(output, report), as_json)


def _format(output: str, report: ExportReport) -> Iterator[str]:
    for name, sums in report.splits.items():
        files = f"{human_count(sums['files'], 'file')}, {human_bytes(sums['bytes'])}"
        yield f"{name}: {human_count(sums['records'], 'record')}, {files}"
    yield from report.notes
    yield f"{output} is complete"
