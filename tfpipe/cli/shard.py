"""`tfpipe shard`: images in, TFRecord shards out."""

from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.advise import advise_options, run_advise
from tfpipe.cli.advise_run import AdviseArgs
from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import Shares, all_options
from tfpipe.cli.shared.requirements import require_beam
from tfpipe.cli.shared.runner_options import RunArgs
from tfpipe.cli.shared.shard_command import (
    drop_duplicates_option,
    layout_options,
    max_bad_option,
    refuse_nan_option,
    run_job,
    run_options,
    seekable_option,
)
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm


@click.command(
    cls=GroupedCommand,
    short_help="Write images as TFRecord shards.",
    epilog="Arguments after -- go to Beam: tfpipe shard IN OUT -- --direct_running_mode=multi_threading",
)
@click.argument("input")
@click.argument("output", required=False)
@click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
@config_option(
    ShardConfig,
    "input_format",
    "What folders and archives mean. tree: folders are classes. pairs: tars hold images beside KEY.txt, KEY.json and "
    "KEY.cls, as WebDataset and img2dataset write them. parquet: Parquet files hold the images, as Hugging Face's do. "
    "coco, voc: boxes in `annotations/instances_*.json`, or in `Annotations/*.xml`. auto: look at the folder.",
)
@click.option(
    "--annotations",
    multiple=True,
    metavar="FILE",
    help="Boxes or captions of the images in the folder INPUT, in COCO's form. Repeat it for several files. "
    "Without it `annotations/instances_*.json` and `captions_*.json` in INPUT count, if there are such.",
)
@all_options(
    *(
        click.option(f"--{name}-column", metavar="COLUMN", help=f"{text}  [default: {default}]")
        for name, text, default in (
            ("image", "Column of the images in a table or in Parquet files with images.", "image"),
            ("label", "Column of the classes.", "label"),
            ("split", "Column of the splits.", "split"),
            ("caption", "Column of the captions.", "caption"),
        )
    )
)
@click.option(
    "--label-separator",
    metavar="TEXT",
    help="Text between the classes of an image with several, such as ';'. They become the list `labels`.",
)
@click.option(
    "--target-column",
    metavar="COLUMN",
    help="Column of the target of a regression, a number. It becomes the feature `target`.",
)
@click.option(
    "--mask-column",
    metavar="COLUMN",
    help="Column of the masks in a table or in Parquet files with images.  [default: mask, or what looks like one]",
)
@click.option(
    "--tensor",
    "tensors",
    multiple=True,
    metavar="COLUMN=DTYPE[SHAPE]",
    help="Type of a column of Parquet files without images, as latents=float16[4,64,64] or tokens=int32[?]. Without it "
    "the type is that of the column. Repeat it for several.",
)
@config_option(
    ShardConfig,
    "segmentation_masks",
    "Draw the segmentations in COCO's annotations as the masks of the images. Class 0 is the background.",
)
@click.option("--split", help="Name of the split, if there is only one.  [default: train]")
@click.option(
    "--splits",
    type=Shares(),
    default={},
    help="Splits and their shares, as train=0.9,validation=0.1. A hash of an image's path chooses its split.",
)
@click.option(
    "--group-by",
    metavar="COLUMN",
    help="With --splits: keep images with the same value in this column in one split.",
)
@click.option(
    "--labels",
    metavar="FILE",
    help="File with the class names, one per line, in the order of their labels.  [default: sorted names]",
)
@layout_options("keep them in the order of their paths")
@config_option(
    ImageForm,
    "encoding",
    "keep: leave JPEG and PNG files as they are where every decoder reads them correctly, and convert the others. "
    "jpeg: make all JPEG. raw: uint8 pixels; needs --square.",
)
@config_option(ImageForm, "resize_short", "Shrink larger images until their short side has this length.", metavar="PX")
@config_option(ImageForm, "square", "Resize every image to PX by PX pixels, whatever its aspect ratio.", metavar="PX")
@config_option(ImageForm, "quality", "JPEG quality of images that have to be re-encoded.")
@config_option(
    ImageForm,
    "reencode_progressive",
    "Convert progressive JPEGs to baseline JPEGs, which are larger and faster to decode.",
)
@seekable_option
@config_option(ImageForm, "max_pixels", "Quarantine images with more pixels than this.")
@max_bad_option
@config_option(ShardConfig, "allow_missing", "Go on if a table names files that do not exist.")
@config_option(ShardConfig, "keep_quarantined", "Keep copies of the quarantined images.")
@config_option(ShardConfig, "requests_per_host", "Images that each worker fetches at once from one host of the web.")
@config_option(
    ShardConfig, "allow_private_hosts", "Fetch images from hosts of private networks too, if the table names them."
)
@drop_duplicates_option
@refuse_nan_option
@config_option(
    ShardConfig,
    "plan",
    "Who plans which image goes where: this process, or tasks on the runner, which need no memory here. Both plans are "
    "the same.",
)
@config_option(ShardConfig, "plan_engine_from", "With --plan auto: tasks on the runner plan this many images or more.")
@advise_options
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

    --advise needs no OUTPUT. It stores a sample of the images in every form in a temporary folder, measures how fast
    each is read on this host, and prints the command for the best one.
    """
    beam_args = options.pop("beam_args")
    advise_args = AdviseArgs.take(options)
    if advise_args is not None and (options["output"] or "").startswith("-"):  # INPUT -- OPTION: there is no OUTPUT
        beam_args = (options["output"], *beam_args)
        options["output"] = None
    run_args = RunArgs.take(options, beam_args, takes_prices=advise_args is not None)
    if beam_args and not beam_args[0].startswith("-"):
        raise ConfigError(
            f"INPUT and OUTPUT must be two paths, got a third, {beam_args[0]!r}. Write options for Beam after --."
        )
    require_beam("shard")
    if options["output"] is None:
        if advise_args is None:
            click.get_current_context().fail(
                "Missing argument 'OUTPUT', the directory to write. Only --advise needs none."
            )
        options["output"] = "OUTPUT"
    form = {name: options.pop(name) for name in ImageForm.__dataclass_fields__}
    config = ShardConfig(form=ImageForm(**drop_missing(form)), **drop_missing(options))
    if advise_args is None:
        run_job(config, run_args)
    else:
        run_advise(config, advise_args, run_args)
