"""`tfpipe inspect`: what is in a dataset, one record of it, or many of its images on one sheet."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.help_groups import GroupedCommand
from tfpipe.cli.shared.params import debug_option, json_option
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest, SplitInfo


@click.command(cls=GroupedCommand, short_help="Show what a dataset holds.")
@click.argument("dataset")
@click.option("--split", metavar="NAME", help="Only this split.  [default: all]")
@click.option(
    "--show",
    nargs=2,
    type=(int, str),
    metavar="N OUT.png",
    help="Draw the images of N records, spread evenly, on one sheet. Several images of a record are one row.",
)
@click.option("--record", metavar="SPLIT:INDEX", help="Print one record, such as train:0; -1 is the last one.")
@click.option(
    "--output",
    metavar="FILE",
    help="With --record: write its image, or the first of several, to this file as it is stored; raw pixels become "
    "a PNG.",
)
@json_option
@debug_option
def inspect(
    dataset: str,
    split: str | None,
    show: tuple[int, str] | None,
    record: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Print what the directory DATASET holds: splits, classes, image sizes, and what was changed or left out."""
    _check_options(split, show, record, output)
    from tfpipe.open_dataset import load_manifest

    manifest = load_manifest(dataset)
    splits = _choose(manifest, split)
    if record is not None:
        _inspect_record(dataset, manifest, record, output, as_json)
    else:
        _inspect_dataset(dataset, manifest, splits, show, as_json)


def _inspect_dataset(
    dataset: str,
    manifest: "Manifest",
    splits: Mapping[str, "SplitInfo"],
    show: tuple[int, str] | None,
    as_json: bool,
) -> None:
    from tfpipe.cli.inspect_records import draw_sheet
    from tfpipe.cli.inspect_summary import print_summary

    drawn = draw_sheet(dataset, manifest, list(splits), *show) if show is not None else 0
    if as_json:
        sheet = {} if show is None else {"sheet": {"file": show[1], "records": drawn}}
        _echo_json({**_summary_json(dataset, manifest, splits), **sheet})
        return
    print_summary(dataset, manifest, splits)
    if show is not None:
        total = sum(info.records for info in splits.values())
        click.echo(f"Wrote {show[1]}: {drawn:,} of {total:,} records.")


def _check_options(split: str | None, show: tuple[int, str] | None, record: str | None, output: str | None) -> None:
    if record is not None and show is not None:
        raise ConfigError("--record and --show exclude each other.")
    if record is not None and split is not None:
        raise ConfigError("--record already names the split, as in train:0. Leave out --split.")
    if output is not None and record is None:
        raise ConfigError("--output needs a record. Name it with --record SPLIT:INDEX.")


def _choose(manifest: "Manifest", split: str | None) -> Mapping[str, "SplitInfo"]:
    if split is None:
        return manifest.splits
    if split not in manifest.splits:
        raise ConfigError(f"The dataset has no split {split!r}; it has {', '.join(manifest.splits)}.")
    return {split: manifest.splits[split]}


def _inspect_record(dataset: str, manifest: "Manifest", record: str, output: str | None, as_json: bool) -> None:
    from tfpipe.cli import inspect_records as records

    match = re.fullmatch(r"(.+):(-?[0-9]{1,18})", record)
    if not match:
        raise ConfigError(f"--record must be SPLIT:INDEX, such as train:0, got {record!r}.")
    one = records.read_one(dataset, manifest, match[1], int(match[2]))
    written = records.write_image(one, output) if output is not None else None
    if as_json:
        written_json = {} if written is None else {"written": written._asdict()}
        _echo_json({"dataset": dataset, **records.record_json(one), **written_json})
        return
    records.print_record(one)
    if written is not None:
        click.echo(f"Wrote {written.file}: {written.format}, {written.bytes:,} bytes.")


def _summary_json(dataset: str, manifest: "Manifest", splits: Mapping[str, "SplitInfo"]) -> dict[str, Any]:
    from tfpipe.format.manifest import FORMAT_VERSION

    foreign = {} if manifest.foreign is None else {"foreign": asdict(manifest.foreign)}
    return {
        "dataset": dataset,
        "name": manifest.name,
        "format_version": FORMAT_VERSION,
        "tool_version": manifest.tool_version,
        **foreign,
        "splits": {name: _split_json(manifest, split) for name, split in splits.items()},
        "labels": list(manifest.label_names),
        "changed": dict(manifest.changed),
        "noticed": dict(manifest.noticed),
        "skipped": dict(manifest.skipped),
        "quarantined": manifest.quarantined,
        "duplicates": asdict(manifest.duplicates),
        "image": dict(manifest.image),
        "seed": manifest.seed,
        "schema": manifest.schema.to_json(),
    }


def _split_json(manifest: "Manifest", split: "SplitInfo") -> dict[str, Any]:
    from tfpipe.cli.inspect_summary import mixing
    from tfpipe.format.manifest_json import images_to_json, label_counts_to_json

    mixed = mixing(manifest, split)
    return {
        "records": split.records,
        "shards": split.num_shards,
        "bytes": split.bytes,
        "formats": dict(split.formats),
        "seekable": split.seekable,
        "seekable_jpegs": split.seekable_jpegs,
        "sizes": asdict(split.sizes),
        **({"tensors": {name: stats.to_json() for name, stats in split.tensors.items()}} if split.tensors else {}),
        **({"masks": {name: stats.to_json() for name, stats in split.masks.items()}} if split.masks else {}),
        **({} if split.images_per_record is None else {"images_per_record": images_to_json(split.images_per_record)}),
        **label_counts_to_json(split.label_counts),
        "class_counts": list(split.class_counts),
        "mixing": None if mixed is None else mixed._asdict(),
    }


def _echo_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, allow_nan=False))
