"""`tfpipe reshard`: the records of a finished dataset in other shards, or its images in another form."""

from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.requirements import require_beam
from tfpipe.cli.shared.runner_options import RunArgs
from tfpipe.cli.shared.shard_command import layout_options, max_bad_option, run_job, run_options
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm


@click.command(
    short_help="Write a dataset anew: other shards, other images.",
    epilog="Arguments after -- go to Beam, as with tfpipe shard.",
)
@click.argument("dataset")
@click.argument("output")
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
@layout_options("keep their order")
@config_option(
    ImageForm,
    "encoding",
    "keep: JPEG and PNG stay. jpeg: all JPEG. raw: uint8, with --square.",
    default="as it is",
)
@config_option(ImageForm, "resize_short", "Reduce larger images to this short side.", metavar="PX")
@config_option(ImageForm, "square", "Squeeze every image to PX by PX.", metavar="PX")
@config_option(ImageForm, "quality", "JPEG quality of images that are encoded again.", default="as it was")
@config_option(ImageForm, "reencode_progressive", "Make progressive JPEGs baseline: larger, faster to read.")
@max_bad_option
@run_options
def reshard(**options: Any) -> None:
    """Write the records of the finished DATASET anew into the directory OUTPUT: more, fewer or smaller shards.

    Splits, labels, boxes, further columns, file names and digests stay. So do the images, byte for byte, unless one of
    --encoding, --resize-short, --square and --reencode-progressive asks for another form.

    Run the same command again after an interruption: finished shards are kept.
    """
    beam_args = options.pop("beam_args")
    run_args = RunArgs.take(options, beam_args)
    if beam_args and not beam_args[0].startswith("-"):
        raise ConfigError(
            f"DATASET and OUTPUT are two paths, got a third, {beam_args[0]!r}; options for Beam follow after --. "
            "Several datasets become one with `tfpipe merge`."
        )
    require_beam("reshard")
    form = {name: options.pop(name) for name in ImageForm.__dataclass_fields__ if name in options}
    dataset = options.pop("dataset")
    config = ShardConfig(
        input=dataset,
        datasets=(dataset,),
        form_changes=drop_missing(form),
        **drop_missing(options),
    )
    run_job(config, run_args)
