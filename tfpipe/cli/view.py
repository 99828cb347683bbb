"""`tfpipe view`: a part of a dataset under a name, without a copy of a record."""

from collections.abc import Iterator
from typing import Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import config_option
from tfpipe.cli.shared.inputs import read_names
from tfpipe.dataset.load import load_manifest
from tfpipe.format.view import View
from tfpipe.system.units import human_count
from tfpipe.views.choose import make_view, write_view
from tfpipe.views.config import ViewConfig

_SPLIT_FIELDS = ("records", "stored_records", "epoch_records", "bytes", "class_counts")


@command(example='tfpipe view flowers "width >= 300 and not duplicate" --name large')
@click.argument("dataset")
@click.argument("where", required=False, default="")
@config_option(ViewConfig, "name", required=True)
@config_option(ViewConfig, "sample")
@config_option(ViewConfig, "seed")
@click.option("--without", metavar="FILE", help="Leave out the records whose names FILE has, one in each line.")
@config_option(ViewConfig, "weights")
@click.option("--overwrite", is_flag=True, help="Replace a view of this name.")
def view(
    dataset: str, name: str, overwrite: bool, as_json: bool, where: str = "", without: str | None = None, **options: Any
) -> None:
    """Give the records of DATASET that fulfill WHERE a name. No record is copied.

    WHERE is a condition as in SQL, such as "label in ('cat', 'dog') and width >= 300 and not duplicate". Without it the
    view has all records. What reads a dataset takes DATASET@NAME: train, profile, inspect, export, reshard, and the
    readers in TensorFlow, PyTorch and JAX.
    """
    names = () if without is None else tuple(read_names(without))
    config = ViewConfig(name, where, without=names, **options)
    manifest = load_manifest(dataset)
    made = make_view(manifest, config)
    path = write_view(manifest, made, overwrite)
    address = f"{dataset}@{name}"
    splits = {name: {field: getattr(split, field) for field in _SPLIT_FIELDS} for name, split in made.splits.items()}
    show({"dataset": dataset, "view": address, "file": path, "splits": splits}, _format(address, made), as_json)


def _format(address: str, made: View) -> Iterator[str]:
    for split, chosen in made.splits.items():
        epoch = "" if chosen.weights is None else f", {chosen.epoch_records:,} read in an epoch"
        yield f"{split}: {human_count(chosen.records, 'record')} of {chosen.stored_records:,}{epoch}"
    yield f"{address} is complete"
