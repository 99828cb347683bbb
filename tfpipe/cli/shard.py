"""`tfpipe shard`, `append`, `reshard` and `merge`: the jobs that write shards."""

from itertools import takewhile
from typing import Any

import click

from beam_jobs.config import ShardConfig, TableColumns
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.config_option import build, config_options, take
from tfpipe.cli.shared.inputs import refuse_records
from tfpipe.cli.shared.shard_command import OpaqueOptions, RunArgs, job_options, run_job, run_opaque, run_options
from tfpipe.errors import ConfigError
from tfpipe.format.image_form import ImageForm

_BEAM = "Options after -- go to Beam."
_beam_argument = click.argument("beam_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM OPTIONS]")


@command(
    example="tfpipe shard photos flowers --splits train=0.9,validation=0.1",
    epilog="Options after -- go to Beam: tfpipe shard IN OUT -- --direct_running_mode=multi_threading",
)
@click.argument("input")
@click.argument("output")
@_beam_argument
@config_options(TableColumns)
@config_options(ShardConfig, "Input", "Splits")
@config_options(ImageForm)
@config_options(ShardConfig, "Records", "Output", without=("drop_features",))
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
    run_args = RunArgs.take(options, "INPUT and OUTPUT")
    refuse_records("shard", options["input"])
    form, columns = build(ImageForm, options), build(TableColumns, options)
    run_job(ShardConfig(form=form, columns=columns, **options), run_args)


@command(example="tfpipe append flowers more-photos", epilog=_BEAM)
@click.argument("dataset")
@click.argument("input")
@_beam_argument
@config_options(TableColumns)
@config_options(ShardConfig, "Input", "Splits", "Records", "Output", without=("drop_features", "overwrite"))
@job_options
def append(dataset: str, **options: Any) -> None:
    """Write the images in INPUT as a new layer of DATASET. No shard is changed, and its records keep their numbers.

    INPUT is what tfpipe shard takes. The images get the form of those in DATASET, and must have the same features.
    Classes keep their numbers, and new ones follow. A run that is training goes on with the layer that it began with.

    Run the same command again after an interruption: finished shards are kept.
    """
    run_args = RunArgs.take(options, "DATASET and INPUT")
    refuse_records("append", options["input"])
    from beam_jobs import process_pool

    if options.get("workers") or not process_pool.holds_little(options["input"]):
        process_pool.start_early()  # before the next line imports the job
    from beam_jobs.append_job import open_append

    columns = build(TableColumns, options)
    with open_append(dataset, ShardConfig(output=dataset, columns=columns, **options)) as job:
        run_job(job.config, run_args, job)


@command(example="tfpipe reshard flowers small-flowers --resize-short 256", epilog=_BEAM)
@click.argument("dataset")
@click.argument("output")
@_beam_argument
@config_options(ImageForm, without=("max_pixels",), default="that of DATASET")
@config_options(ShardConfig, "Records", "Output", without=("keep_quarantined", "drop_duplicates"))
@config_options(OpaqueOptions)
@run_options
def reshard(**options: Any) -> None:
    """Rewrite the records of the finished DATASET into the directory OUTPUT, in more, fewer, larger or smaller shards.

    Splits, labels, boxes, other columns, file names and digests stay the same. So do the bytes of the images, unless
    --encoding, --resize-short, --square, --reencode-progressive or --seekable changes them.

    DATASET may also be TFRecords that another tool wrote, once `tfpipe index` has described them. Their images, classes
    and other features become a dataset of tfpipe, compressed or not.

    With --opaque no record is decoded: any TFRecords, of any content, are shuffled into shards with equal bytes.

    Run the same command again after an interruption: finished shards are kept.
    """
    opaque = build(OpaqueOptions, options)
    if opaque.opaque:
        run_opaque(options, opaque)
        return
    run_args = RunArgs.take(options, "DATASET and OUTPUT", "To join several datasets, use `tfpipe merge`.")
    form, dataset = take(ImageForm, options), options.pop("dataset")
    run_job(ShardConfig(input=dataset, datasets=(dataset,), form_changes=form, **options), run_args)


@command(example="tfpipe merge flowers more-flowers all-flowers", epilog=_BEAM)
@click.argument("paths", nargs=-1, type=click.UNPROCESSED, metavar="DATASET DATASET... OUTPUT [-- BEAM OPTIONS]")
@config_options(ShardConfig, "Records", "Output", without=("keep_quarantined",))
@run_options
def merge(**options: Any) -> None:
    """Write the records of two or more finished datasets into the directory OUTPUT.

    Splits and labels of the same name are joined. The labels of the first dataset keep their numbers. All datasets
    must have the same features, and images in the same form. The bytes of the images stay the same. Images that occur
    twice are reported. A dataset may be TFRecords that another tool wrote and `tfpipe index` described.

    Run the same command again after an interruption: finished shards are kept.
    """
    arguments: tuple[str, ...] = options.pop("paths", ())
    paths = tuple(takewhile(lambda argument: not argument.startswith("-"), arguments))
    options["beam_args"] = arguments[len(paths) :]
    run_args = RunArgs.take(options)
    *datasets, output = paths or ("",)
    if len(datasets) < 2:
        raise ConfigError(f"`tfpipe merge` needs at least two datasets and OUTPUT, got {len(paths)} of these paths.")
    config = ShardConfig(input=", ".join(datasets), output=output, datasets=tuple(datasets), **options)
    run_job(config, run_args)
