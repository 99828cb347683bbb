"""`tfpipe shard --advise`: measures a sample of the images in every form, and says how to store them."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.advise_run import AdviseArgs, measure
from tfpipe.cli.shared.config_option import config_option
from tfpipe.cli.shared.inputs import hide_gpus
from tfpipe.cli.shared.params import all_options
from tfpipe.cli.shared.requirements import require_tensorflow
from tfpipe.cli.shared.runner_options import RunArgs
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.tuning.advise_config import AdviseConfig

# The fields of `ImageForm` that make the forms which are compared.
_COMPARED = ("encoding", "resize_short", "square", "seekable")

advise_options = all_options(
    click.option(
        "--advise",
        is_flag=True,
        help="Write no OUTPUT. Measure a sample of the images in every form, and say how to store them.",
    ),
    click.option(
        "--images-per-second",
        type=float,
        metavar="R",
        help="For --advise: images that the training consumes per second.",
    ),
    click.option(
        "--image-size",
        type=int,
        metavar="PX",
        help=f"For --advise: side of the square images that the model gets.  [default: {PipelineConfig.image_size}]",
    ),
    config_option(
        AdviseConfig,
        "crop",
        "For --advise: where the random crops of training are taken, in the input pipeline or in the training step.",
    ),
    config_option(
        AdviseConfig,
        "advise_images",
        "For --advise: number of images to measure.",
        metavar="N",
        default="1000, or as many as take 1 GiB",
    ),
)
"""Adds the options of --advise to a command."""


def run_advise(config: ShardConfig, args: AdviseArgs, run_args: RunArgs) -> None:
    """Measures the forms and prints the advice. Writes nothing but a temporary folder, which it removes.

    Args:
        config: The options of the job, with the form for images that stay as they are.
        args: The options of --advise.
        run_args: The options for the run of the job.

    Raises:
        ConfigError: Options do not go together.
        DataError: The input cannot be used, or the temporary folder cannot be written.
    """
    _check(config, run_args)
    pipeline = PipelineConfig(batch_size=1, image_size=args.image_size)
    require_tensorflow("shard --advise")
    hide_gpus()  # in the processes that are started from here
    try:
        with restore_interrupts(), _end_on_sigterm():
            measured = measure(config, args.config, pipeline, run_args)
    except KeyboardInterrupt:
        click.echo("Interrupted. Nothing was written.", err=True)
        raise
    from tfpipe.cli.advise_output import print_advice, print_json

    if run_args.as_json:
        print_json(measured, config, args, run_args.beam_args)
    else:
        print_advice(measured, config, args, run_args.beam_args)


def _check(config: ShardConfig, run_args: RunArgs) -> None:
    for name, value in (("--dry-run", run_args.dry_run), ("--print-command", run_args.print_command)):
        if value:
            raise ConfigError(f"--advise and {name} exclude each other. Leave one of them out.")
    for name in _COMPARED:
        if getattr(config.form, name) != getattr(ImageForm(), name):
            raise ConfigError(f"`{name}` makes one of the forms that --advise compares. Leave it out.")


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the block, so that its temporary folder is removed."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
