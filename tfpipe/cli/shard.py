"""`tfpipe shard`, `append`, `reshard` and `merge`: the jobs that write shards."""

from itertools import takewhile
from typing import Any

import click

from beam_jobs.config import ShardConfig
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import Shares, all_options, config_option, drop_missing, take
from tfpipe.cli.shared.inputs import refuse_records
from tfpipe.cli.shared.shard_command import (
    RunArgs,
    drop_duplicates_option,
    drop_features_option,
    job_options,
    layout_options,
    max_bad_option,
    refuse_nan_option,
    refuse_path,
    run_job,
    run_options,
    seekable_option,
)
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm

_BEAM = "Options after -- go to Beam."
_beam_argument = click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")
_size_options = all_options(
    config_option(
        ImageForm, "resize_short", "Shrink larger images until their short side has this length.", metavar="PX"
    ),
    config_option(
        ImageForm, "square", "Resize every image to PX by PX pixels, whatever its aspect ratio.", metavar="PX"
    ),
)
_progressive_option = config_option(
    ImageForm,
    "reencode_progressive",
    "Convert progressive JPEGs to baseline JPEGs, which are larger and faster to decode.",
)

_input_options = all_options(
    config_option(
        ShardConfig,
        "input_format",
        "What folders and archives mean. tree: folders are classes. pairs: tars hold images beside KEY.txt, KEY.json "
        "and KEY.cls, as WebDataset and img2dataset write them. parquet: Parquet files hold the images, as Hugging "
        "Face's do. coco, voc: boxes in `annotations/instances_*.json`, or in `Annotations/*.xml`. auto: look at the "
        "folder.",
    ),
    config_option(
        ShardConfig,
        "annotations",
        "Boxes or captions of the images in the folder INPUT, in COCO's form. Repeat it for several files. Without it "
        "`annotations/instances_*.json` and `captions_*.json` in INPUT count, if there are such.",
        metavar="FILE",
    ),
    config_option(ShardConfig, "image_column", metavar="COLUMN", default="image"),
    config_option(ShardConfig, "label_column", metavar="COLUMN", default="label"),
    config_option(ShardConfig, "split_column", metavar="COLUMN", default="split"),
    config_option(ShardConfig, "caption_column", metavar="COLUMN", default="caption"),
    config_option(ShardConfig, "label_separator", metavar="TEXT"),
    config_option(ShardConfig, "target_column", metavar="COLUMN"),
    config_option(ShardConfig, "mask_column", metavar="COLUMN", default="mask, or what looks like one"),
    config_option(ShardConfig, "box_label_column", metavar="COLUMN", default="box_label"),
    config_option(
        ShardConfig,
        "tensors",
        "Type of a column of Parquet files without images, as latents=float16[4,64,64] or tokens=int32[?]. Without it "
        "the type is that of the column. Repeat it for several.",
        flag="--tensor",
        metavar="COLUMN=DTYPE[SHAPE]",
    ),
    config_option(
        ShardConfig,
        "segmentation_masks",
        "Draw the segmentations in COCO's annotations as the masks of the images. Class 0 is the background.",
    ),
    config_option(
        ShardConfig, "split", "The name of the split, if there is only one.", metavar="NAME", default="train"
    ),
    config_option(
        ShardConfig,
        "splits",
        "Splits and their shares, as train=0.9,validation=0.1. A hash of an image's path chooses its split.",
        kind=Shares(),
    ),
    config_option(
        ShardConfig, "group_by", "With --splits: images with one value in this column stay together.", metavar="COLUMN"
    ),
    config_option(ShardConfig, "labels", metavar="FILE", default="sorted names"),
    config_option(ShardConfig, "allow_missing", "Go on if a table or annotations name files that do not exist."),
)
"""Adds the options to a command."""


@command(
    "Write images as TFRecord shards.",
    epilog="Options after -- go to Beam: tfpipe shard IN OUT -- --direct_running_mode=multi_threading",
)
@click.argument("input")
@click.argument("output")
@_beam_argument
@_input_options
@layout_options("keep them in the order of their paths")
@config_option(
    ImageForm,
    "encoding",
    "keep: leave JPEG and PNG files as they are where every decoder reads them correctly, and convert the others. "
    "jpeg: make all JPEG. raw: uint8 pixels; needs --square.",
)
@_size_options
@config_option(ImageForm, "quality", metavar="N")
@_progressive_option
@config_option(ImageForm, "max_pixels", metavar="N")
@seekable_option
@max_bad_option
@config_option(ShardConfig, "keep_quarantined", "Keep copies of the quarantined images.")
@drop_duplicates_option
@refuse_nan_option
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


@command("Add more images to a finished dataset.", epilog=_BEAM)
@click.argument("dataset")
@click.argument("input")
@_beam_argument
@_input_options
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
    from beam_jobs import process_pool

    process_pool.start_early()  # before the next line imports the job
    from beam_jobs.append_job import open_append

    with open_append(dataset, ShardConfig(output=dataset, **drop_missing(options))) as job:
        run_job(job.config, run_args, job)


@command("Rewrite a dataset with other shards or another form of images.", epilog=_BEAM)
@click.argument("dataset")
@click.argument("output")
@_beam_argument
@layout_options("keep their order")
@config_option(
    ImageForm,
    "encoding",
    "keep: leave JPEG and PNG as they are. jpeg: make all JPEG. raw: uint8 pixels; needs --square.",
    default="that of DATASET",
)
@_size_options
@config_option(ImageForm, "quality", metavar="N", default="that of DATASET")
@_progressive_option
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


@command("Join datasets into one.", epilog=_BEAM)
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
