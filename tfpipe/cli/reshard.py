"""`tfpipe reshard`: the records of a dataset in other shards, its images in another form, or without some features."""

from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import config_option, drop_missing, take
from tfpipe.cli.shared.runner_options import RunArgs, refuse_path
from tfpipe.cli.shared.shard_command import (
    drop_features_option,
    layout_options,
    max_bad_option,
    refuse_nan_option,
    run_job,
    run_options,
    seekable_option,
)
from tfpipe.format.image_form import ImageForm


@command("Rewrite a dataset with other shards or another form of images.", epilog="Options after -- go to Beam.")
@click.argument("dataset")
@click.argument("output")
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
@layout_options("keep their order")
@config_option(
    ImageForm,
    "encoding",
    "keep: leave JPEG and PNG as they are. jpeg: make all JPEG. raw: uint8 pixels; needs --square.",
    default="that of DATASET",
)
@config_option(ImageForm, "resize_short", "Shrink larger images until their short side has this length.", metavar="PX")
@config_option(ImageForm, "square", "Resize every image to PX by PX pixels, whatever its aspect ratio.", metavar="PX")
@config_option(ImageForm, "quality", metavar="N", default="that of DATASET")
@config_option(
    ImageForm,
    "reencode_progressive",
    "Convert progressive JPEGs to baseline JPEGs, which are larger and faster to decode.",
)
@seekable_option
@drop_features_option
@refuse_nan_option
@max_bad_option
@run_options
def reshard(**options: Any) -> None:
    """Rewrite the records of the finished DATASET into the directory OUTPUT, in more, fewer, larger or smaller shards.

    Splits, labels, boxes, other columns, file names and digests stay the same. So do the bytes of the images, unless
    --encoding, --resize-short, --square, --reencode-progressive or --seekable changes them.

    DATASET may also be TFRecords that another tool wrote, once `tfpipe index` has described them. Their images, classes
    and other features become a dataset of tfpipe, compressed or not.

    Run the same command again after an interruption: finished shards are kept.
    """
    beam_args = options.pop("beam_args")
    run_args = RunArgs.take(options, beam_args)
    refuse_path(
        beam_args, "DATASET and OUTPUT must be two paths, got a third", "To join several datasets, use `tfpipe merge`."
    )
    form, dataset = take(ImageForm, options), options.pop("dataset")
    run_job(ShardConfig(input=dataset, datasets=(dataset,), form_changes=form, **drop_missing(options)), run_args)
