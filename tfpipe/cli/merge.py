"""`tfpipe merge`: several finished datasets become one."""

from itertools import takewhile
from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import drop_missing
from tfpipe.cli.shared.runner_options import RunArgs
from tfpipe.cli.shared.shard_command import (
    drop_duplicates_option,
    drop_features_option,
    layout_options,
    max_bad_option,
    refuse_nan_option,
    run_job,
    run_options,
)
from tfpipe.errors import ConfigError


@command("Join datasets into one.", epilog="Options after -- go to Beam.")
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, metavar="DATASET DATASET... OUTPUT [-- BEAM OPTIONS]")
@layout_options("keep the datasets one after the other")
@max_bad_option
@drop_features_option
@refuse_nan_option
@drop_duplicates_option
@run_options
def merge(**options: Any) -> None:
    """Write the records of two or more finished datasets into the directory OUTPUT.

    Splits and labels of the same name are joined. The labels of the first dataset keep their numbers. All datasets
    must have the same features, and images in the same form. The bytes of the images stay the same. Images that occur
    twice are reported. A dataset may be TFRecords that another tool wrote and `tfpipe index` described.

    Run the same command again after an interruption: finished shards are kept.
    """
    arguments: tuple[str, ...] = options.pop("paths")
    paths = tuple(takewhile(lambda argument: not argument.startswith("-"), arguments))
    run_args = RunArgs.take(options, arguments[len(paths) :])
    *datasets, output = paths or ("",)
    if len(datasets) < 2:
        raise ConfigError(f"`tfpipe merge` needs at least two datasets and OUTPUT, got {len(paths)} of these paths.")
    config = ShardConfig(
        input=", ".join(datasets),
        output=output,
        datasets=tuple(datasets),
        **drop_missing(options),
    )
    run_job(config, run_args)
