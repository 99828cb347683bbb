"""`tfpipe advise`: measures a sample of the images in every form, and says how to store them."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from beam_jobs.config import ShardConfig
from beam_jobs.prices import PriceConfig
from tfpipe.cli.advise_run import measure
from tfpipe.cli.shared.config_option import config_option, drop_missing, take
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.input_options import input_options, kept_form_options
from tfpipe.cli.shared.inputs import hide_gpus, refuse_records
from tfpipe.cli.shared.params import debug_option, json_option
from tfpipe.cli.shared.requirements import require_beam, require_tensorflow
from tfpipe.cli.shared.runner_options import price_options, refuse_path
from tfpipe.cli.shared.shard_command import max_bad_option
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.format.image_form import ImageForm
from tfpipe.system.interrupts import restore_interrupts
from tfpipe.tuning.advise_config import AdviseConfig


@click.command(
    cls=GroupedCommand,
    short_help="Measure in which form to store images, before they are sharded.",
    epilog="Options after -- go to Beam.",
)
@click.argument("input")
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
@config_option(AdviseConfig, "images_per_second", metavar="RATE", required=True)
@config_option(
    PipelineConfig, "image_size", "The side of the square images that the model gets.", kind=click.INT, metavar="PX"
)
@config_option(AdviseConfig, "crop", "Where random crops are taken: in the input pipeline or in the training step.")
@config_option(
    AdviseConfig, "num_images", "Number of images to measure.", metavar="N", default="1000, or as many as take 1 GiB"
)
@input_options
@kept_form_options
@max_bad_option
@config_option(ShardConfig, "workers", metavar="N", default="one per core")
@price_options
@json_option
@debug_option
def advise(**options: Any) -> None:
    """Measure in which form to store the images in INPUT, which may be anything that `tfpipe shard` takes.

    A sample is stored in every form in a temporary folder: original, with restart markers, smaller, squeezed, raw, and
    cached. Each is read in turns on this host. The table says how many cores each would take for the training, and
    the last lines are the commands for the best ones.
    """
    beam_args = options.pop("beam_args")
    refuse_path(beam_args, "INPUT must be one path, got another")
    if beam_args:
        require_beam("Options after --")
    refuse_records("advise", options["input"])
    require_tensorflow("advise")
    prices, demand = PriceConfig(**take(PriceConfig, options)), AdviseConfig(**take(AdviseConfig, options))
    as_json, size = options.pop("as_json"), options.pop("image_size")
    pipeline = PipelineConfig(batch_size=1, **drop_missing({"image_size": size}))
    form = ImageForm(**take(ImageForm, options))
    config = ShardConfig(output="OUTPUT", form=form, **drop_missing(options))
    hide_gpus()  # in the processes that are started from here
    try:
        with restore_interrupts(), _end_on_sigterm():
            measured = measure(config, demand, pipeline, beam_args, prices)
    except KeyboardInterrupt:
        click.echo("Interrupted. Nothing was written.", err=True)
        raise
    from tfpipe.cli.advise_output import print_advice, print_json

    show = print_json if as_json else print_advice
    show(measured, config, beam_args)


@contextmanager
def _end_on_sigterm() -> Iterator[None]:
    """Lets SIGTERM unwind the block, so that its temporary folder is removed."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
