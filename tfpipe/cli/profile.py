"""`tfpipe profile`: why the accelerator waits, and what to change."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tfpipe.cli.opening import PER_REPLICA_BATCH_SIZE, need_tensorflow, open_data, pipeline_config, quiet_start
from tfpipe.cli.values import CountOrShare, debug_option, one_line
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from tfpipe.pipeline.config import PipelineConfig
    from tfpipe.profiler.accelerator import Accelerator
    from tfpipe.profiler.model import Profile


@click.command(short_help="Say why the accelerator waits, and what to change.")
@click.argument("dataset")
@click.option("--split", metavar="NAME", help="Which split.  [default: train, or the only one]")
@click.option("--step-ms", type=float, metavar="MS", help="How long the accelerator computes on a batch.")
@click.option("--images-per-second", type=float, metavar="RATE", help="Or: what the accelerator consumes.")
@click.option(
    "--global-batch-size", type=int, metavar="N", help=f"Images in a batch.  [default: {PER_REPLICA_BATCH_SIZE}]"
)
@click.option("--config", metavar="FILE", help="Options of the pipeline, .toml or .json.")
@click.option("--seconds", type=float, metavar="S", default=5.0, show_default=True, help="How long to measure.")
@click.option("--price-per-hour", type=float, metavar="P", help="Of the accelerator: what its idle time costs a day.")
@click.option("--max-idle", type=CountOrShare(), metavar="SHARE", help="Exit code 1 if it is idle for more, as 5%.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@debug_option
def profile(
    dataset: str,
    split: str | None,
    step_ms: float | None,
    images_per_second: float | None,
    global_batch_size: int | None,
    config: str | None,
    seconds: float,
    price_per_hour: float | None,
    max_idle: float | None,
    as_json: bool,
) -> None:
    """Run the pipeline of DATASET against a simulated accelerator of this speed, and say what limits it.

    DATASET is the directory or URL of a finished dataset, or a pattern such as "/data/train-*" of TFRecords that
    something else wrote. Nothing but this machine's processor and storage is used.
    """
    _check(step_ms, images_per_second, seconds, max_idle)
    options = pipeline_config(config, global_batch_size, None)
    from tfpipe.profiler import analysis
    from tfpipe.profiler.accelerator import Accelerator
    from tfpipe.profiler.report import make_report, to_json, to_text

    batch = options.global_batch_size or options.per_replica_batch_size or PER_REPLICA_BATCH_SIZE
    step_s = step_ms / 1e3 if step_ms is not None else batch / (images_per_second or 1.0)
    report = make_report(_measure(dataset, split, options, Accelerator(step_s, batch), seconds), price_per_hour)
    if as_json:
        click.echo(json.dumps(to_json(report), allow_nan=False))
    else:
        click.echo(to_text(report), nl=False)
    idle = analysis.idle_fraction(report.profile.step)
    if max_idle is not None and idle > max_idle:
        click.echo(f"The accelerator is idle for {idle:.1%}, more than {max_idle:.1%}.", err=True)
        raise SystemExit(1)


def _check(step_ms: float | None, images_per_second: float | None, seconds: float, max_idle: float | None) -> None:
    if (step_ms is None) == (images_per_second is None):
        raise ConfigError("Say how fast the accelerator is: either --step-ms or --images-per-second.")
    for name, value in (("--step-ms", step_ms), ("--images-per-second", images_per_second), ("--seconds", seconds)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} must be above 0, got {value:g}.")
    if max_idle is not None and not 0 <= max_idle <= 1:
        raise ConfigError(f"--max-idle must be a share from 0% to 100%, got {max_idle:g}.")


def _measure(
    dataset: str, split: str | None, config: "PipelineConfig", accelerator: "Accelerator", seconds: float
) -> "Profile":
    need_tensorflow("profile")
    data, split = open_data(dataset, split)
    with quiet_start():
        from tfpipe.profiler.measure import profile_pipeline
    with _progress(seconds) as watch:
        return profile_pipeline(data, split, config, accelerator, seconds, watch=watch)


@contextmanager
def _progress(seconds: float) -> "Iterator[Callable[[str, float], None] | None]":
    """A line on a terminal; nothing in a log, where it would be over before anybody looked."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("Building the pipeline") as status:

        def watch(phase: str, passed: float) -> None:
            what = "Warming up" if phase == "warm-up" else f"Measuring for {seconds:g} s"
            status.update(one_line(f"{what}: {passed:.0f} s"))

        yield watch
