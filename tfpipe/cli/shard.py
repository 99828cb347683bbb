"""`tfpipe shard`: images in, TFRecord shards out."""

from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import config_option, drop_missing, take
from tfpipe.cli.shared.input_options import input_options, kept_form_options
from tfpipe.cli.shared.inputs import refuse_records
from tfpipe.cli.shared.runner_options import RunArgs, refuse_path
from tfpipe.cli.shared.shard_command import (
    drop_duplicates_option,
    layout_options,
    max_bad_option,
    refuse_nan_option,
    run_job,
    run_options,
    seekable_option,
)
from tfpipe.format.image_form import ImageForm


@command(
    "Write images as TFRecord shards.",
    epilog="Options after -- go to Beam: tfpipe shard IN OUT -- --direct_running_mode=multi_threading",
)
@click.argument("input")
@click.argument("output")
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
@input_options
@layout_options("keep them in the order of their paths")
@config_option(
    ImageForm,
    "encoding",
    "keep: leave JPEG and PNG files as they are where every decoder reads them correctly, and convert the others. "
    "jpeg: make all JPEG. raw: uint8 pixels; needs --square.",
)
@config_option(ImageForm, "resize_short", "Shrink larger images until their short side has this length.", metavar="PX")
@config_option(ImageForm, "square", "Resize every image to PX by PX pixels, whatever its aspect ratio.", metavar="PX")
@kept_form_options
@seekable_option
@max_bad_option
@config_option(ShardConfig, "keep_quarantined", "Keep copies of the quarantined images.")
@drop_duplicates_option
@refuse_nan_option
@config_option(
    ShardConfig,
    "plan",
    "Who plans which image goes where: this process, or tasks on the runner, which need no memory here. Both plans are "
    "the same.",
)
@config_option(ShardConfig, "plan_engine_from", "With --plan auto: tasks on the runner plan this many images or more.")
@run_options
def shard(**options: Any) -> None:
    """Write the images in INPUT as TFRecord shards into the directory OUTPUT.

    INPUT is a folder with one folder per class (train/, validation/, test/ may stand above them), a .csv, .tsv,
    .jsonl or .parquet table with the columns image and label, a .tar, .tar.gz or .zip archive, or a folder of
    archives. Tars may hold images beside their captions, as WebDataset's do, and Parquet files the images themselves,
    as Hugging Face's do. Parquet files without images may hold tensors, such as latents. Boxes may lie beside a
    folder, as COCO's and Pascal VOC's do. A table may be many files: a folder such as photos.parquet, or a pattern
    such as 'photos-*.csv'.

    Run the same command again after an interruption: finished shards are kept.
    """
    beam_args = options.pop("beam_args")
    run_args = RunArgs.take(options, beam_args)
    refuse_path(beam_args, "INPUT and OUTPUT must be two paths, got a third")
    refuse_records("shard", options["input"])
    form = ImageForm(**take(ImageForm, options))
    run_job(ShardConfig(form=form, **drop_missing(options)), run_args)
