"""`tfpipe view`: a part of a dataset under a name, without a copy of a record."""

import json
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.config_option import config_option, drop_missing
from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import debug_option, json_option
from tfpipe.system.units import human_count
from tfpipe.views.config import ViewConfig

if TYPE_CHECKING:
    from tfpipe.format.view import ViewSplit


@click.command(cls=GroupedCommand, short_help="Name a part of a dataset, or weigh its records.")
@click.argument("dataset")
@click.argument("where", required=False, default="")
@config_option(ViewConfig, "name", "The view's name: other commands take DATASET@NAME.", metavar="NAME", required=True)
@click.option("--sample", metavar="SHARE", help="Take this share of the records, such as 10% or 0.1.  [default: all]")
@config_option(ViewConfig, "seed", "The seed of the sample.")
@click.option(
    "--without", type=click.File(), metavar="FILE", help="Leave out the records whose names FILE has, one in each line."
)
@config_option(
    ViewConfig,
    "weights",
    "How often an epoch of training reads each record: class_balanced, or a column of numbers.",
    metavar="COLUMN",
    default="once",
)
@click.option("--overwrite", is_flag=True, help="Replace a view of this name.")
@json_option
@debug_option
def view(
    dataset: str, where: str, name: str, sample: str | None, overwrite: bool, as_json: bool, **options: Any
) -> None:
    """Give the records of DATASET that fulfill WHERE a name. No record is copied.

    WHERE is a condition as in SQL, such as "label in ('cat', 'dog') and width >= 300 and not duplicate". Without it the
    view has all records. What reads a dataset takes DATASET@NAME: train, profile, inspect, export, reshard, and the
    readers in TensorFlow, PyTorch and JAX.
    """
    from tfpipe.dataset.load import load_manifest
    from tfpipe.views.choose import make_view, write_view

    without = options.pop("without")
    names = tuple(line.rstrip("\n") for line in without if line.strip()) if without is not None else ()
    share = None if sample is None else _read_share(sample)
    config = ViewConfig(name, where, without=names, **drop_missing({**options, "sample": share}))
    manifest = load_manifest(dataset)
    made = make_view(manifest, config)
    path = write_view(manifest, made, overwrite)
    if as_json:
        splits = {name: _split_json(split) for name, split in made.splits.items()}
        click.echo(json.dumps({"dataset": dataset, "view": f"{dataset}@{name}", "file": path, "splits": splits}))
        return
    for split, chosen in made.splits.items():
        text = f"{split}: {human_count(chosen.records, 'record')} of {chosen.stored_records:,}"
        if chosen.weights is not None:
            text += f", {chosen.epoch_records:,} read in an epoch"
        click.echo(clean_line(text))
    click.echo(clean_line(f"{dataset}@{name} is complete"))


def _read_share(text: str) -> float:
    number = text.removesuffix("%")
    try:
        return float(number) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise click.BadParameter(
            f"It must be a share such as 10% or 0.1, got {text!r}.", param_hint="--sample"
        ) from None


def _split_json(split: "ViewSplit") -> dict[str, Any]:
    return {
        "records": split.records,
        "stored_records": split.stored_records,
        "epoch_records": split.epoch_records,
        "bytes": split.bytes,
        "class_counts": list(split.class_counts),
    }
