"""`tfpipe append`: more images for a finished dataset, as a layer of its own."""

from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.input_options import input_options
from tfpipe.cli.shared.inputs import refuse_records
from tfpipe.cli.shared.runner_options import RunArgs, refuse_path
from tfpipe.cli.shared.shard_command import (
    drop_duplicates_option,
    job_options,
    layout_options,
    max_bad_option,
    refuse_nan_option,
    run_job,
)


@command("Add more images to a finished dataset.", epilog="Options after -- go to Beam.")
@click.argument("dataset")
@click.argument("input")
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
@input_options
@layout_options("keep them in the order of their paths")
@max_bad_option
@config_option(ShardConfig, "keep_quarantined", "Keep copies of the quarantined images.")
@drop_duplicates_option
@refuse_nan_option
@job_options
def append(dataset: str, **options: Any) -> None:
    """Write the images in INPUT as a new layer of DATASET. No shard is changed, and its records keep their numbers.

    INPUT is what tfpipe shard takes. The images get the form of those in DATASET, and must have the same features.
    Classes keep their numbers, and new ones follow. A run that is training goes on with the layer that it began with.

    Run the same command again after an interruption: finished shards are kept.
    """
    beam_args = options.pop("beam_args")
    run_args = RunArgs.take(options, beam_args)
    refuse_path(beam_args, "DATASET and INPUT must be two paths, got a third")
    refuse_records("append", options["input"])
    from beam_jobs.append_job import open_append

    with open_append(dataset, ShardConfig(output=dataset, **drop_missing(options))) as job:
        run_job(job.config, run_args, job)
