"""`tfpipe tune`: search for faster options within a time budget."""

import json
import os
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.console import new_console
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.inputs import open_job, read_config
from tfpipe.cli.shared.outputs import check_target
from tfpipe.cli.shared.params import (
    batch_option,
    budget_option,
    debug_option,
    json_option,
    size_option,
    split_option,
    stages_option,
)
from tfpipe.cli.shared.status import status_line
from tfpipe.errors import ConfigError
from tfpipe.system.interrupts import restore_interrupts

if TYPE_CHECKING:
    from rich.table import Table

    from tfpipe.tuning.search import Tuned
    from tfpipe.tuning.trials import Trial


@click.command(cls=GroupedCommand, short_help="Search for faster options, and write them to a file.")
@click.argument("dataset")
@split_option
@click.option(
    "--seconds", type=float, metavar="S", default=120.0, show_default=True, help="Seconds to search, at least 45."
)
@click.option(
    "--config",
    metavar="FILE",
    help="File with the options to start from, .toml or .json.  [default: that of an earlier run, else the defaults]",
)
@batch_option
@size_option
@budget_option
@stages_option
@click.option(
    "--images-per-second",
    type=float,
    metavar="RATE",
    help="Images that the accelerator consumes per second. The search ends when the pipeline delivers them.  "
    "[default: search for the highest rate]",
)
@click.option(
    "--input-may-change",
    is_flag=True,
    help="Also try options that change what the training step receives: uint8 instead of floats, augmentation on the "
    "device, images decoded once.",
)
@click.option(
    "--output",
    metavar="FILE",
    help="File for the best options, .toml or .json.  [default: DATASET-KEY.toml in the current directory]",
)
@json_option
@debug_option
def tune(
    dataset: str,
    split: str | None,
    seconds: float,
    config: str | None,
    batch_size: int | None,
    image_size: int | None,
    cpu_budget: float | None,
    stages: str | None,
    images_per_second: float | None,
    input_may_change: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Search for faster options of DATASET's pipeline on this machine.

    Each change runs in turns with the best options so far, and is kept if it helps. At the end, the best options run
    once more in turns with the first ones, which are kept if nothing was faster. The best options are written to a file
    that `PipelineConfig.from_file` reads, with the host and the data that they were tried on. The next run starts from
    that file and replaces it. Ctrl-C writes nothing.
    """
    for name, value in (("--seconds", seconds), ("--images-per-second", images_per_second)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} must be above 0, got {value:g}.")
    given = {"image_size": image_size, "cpu_budget": cpu_budget}
    options = read_config(config, batch_size, given=given)
    job = open_job("tune", dataset, split, options, stages, images_per_second)
    from tfpipe.engine.source import get_source
    from tfpipe.tuning import search, tuned_file

    place = tuned_file.get_place(job.data, job.split)
    path = output or tuned_file.get_default_path(place)
    check_target(path)
    tuned_file.check_path(path, place)
    if config is None and os.path.exists(path):
        options = read_config(path, batch_size, given=given)
        click.echo(f"Starting from the options in {path}.", err=True)
    try:
        with restore_interrupts(), status_line("Starting", seconds) as status:
            tuned = search.tune(job, options, seconds, input_may_change, status)
    except KeyboardInterrupt:
        click.echo("Interrupted. Nothing was written.", err=True)
        raise
    tuned_file.write(path, tuned.config, place, search.summarize(tuned))
    if as_json:
        click.echo(json.dumps({**search.to_json(tuned, options), "path": path}, allow_nan=False))
    else:
        _print(tuned, path, images_per_second, get_source(job.data, job.split).unit)


def _print(tuned: "Tuned", path: str, images_per_second: float | None, unit: str) -> None:
    console = new_console()
    if tuned.trials:
        console.print(_build_table(tuned.trials, unit))
        console.print()
    console.print(_format_result(tuned, images_per_second, unit))
    if not tuned.finished:
        console.print("There is more to try: give more --seconds, or run it again.")
    console.print(f'Written to {path}. Load it with PipelineConfig.from_file("{path}").', soft_wrap=True)


def _build_table(trials: "tuple[Trial, ...]", unit: str) -> "Table":
    """Builds a table of all that was tried, in order."""
    from rich.table import Table
    from rich.text import Text

    from tfpipe.tuning.candidates import describe_changes

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column(f"{unit}/s", justify="right", no_wrap=True)
    table.add_column("gain (97 %)", no_wrap=True)
    table.add_column("change", overflow="fold")
    for trial in trials:
        change = describe_changes(trial.changes)
        if trial.gain is None:
            table.add_row(Text("not tried", "dim"), "", "", Text(f"{change}\n{trial.note}", "dim"))
            continue
        gain = trial.gain
        table.add_row(
            Text("kept", "green") if trial.kept else Text("no gain", "dim"),
            f"{trial.images_per_second or 0:,.0f}",
            f"x {gain.ratio:.2f} ({gain.low:.2f} to {gain.high:.2f})",
            Text(change),
        )
    return table


def _format_result(tuned: "Tuned", images_per_second: float | None, unit: str) -> str:
    from tfpipe.tuning.trials import BUSY_SHARE

    rate, gain = tuned.after_images_per_second, tuned.gain
    if gain.ratio != 1:
        return (
            f"{tuned.before_images_per_second:,.0f} -> {rate:,.0f} {unit}/s, x {gain.ratio:.2f} ({gain.low:.2f} to "
            f"{gain.high:.2f}), in {tuned.seconds:.0f} s."
        )
    if images_per_second and rate >= BUSY_SHARE * images_per_second:
        return f"The pipeline already delivers the {images_per_second:,.0f} {unit}/s that the accelerator consumes."
    return f"No change was faster than the first options: {rate:,.0f} {unit}/s."
