"""`tfpipe inspect`: what is in a dataset, one record of it, or many of its images on one sheet."""

import json
from typing import TYPE_CHECKING

import click

from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.console import echo
from tfpipe.errors import ConfigError

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest


@command(example="tfpipe inspect flowers --show 12 sheet.png")
@click.argument("dataset")
@click.option("--split", metavar="NAME", help="Only this split.  [default: all]")
@click.option(
    "--show",
    nargs=2,
    type=(int, str),
    metavar="N OUT.png",
    help="Draw the images of N records, spread evenly, on one sheet. Several images of a record are one row.",
)
@click.option(
    "--page",
    nargs=2,
    type=(int, str),
    metavar="N OUT.html",
    help="Write N records, spread evenly, as a page to look through in a browser: by class, name, size and shape.",
)
@click.option("--record", metavar="SPLIT:INDEX", help="Print one record, such as train:0; -1 is the last one.")
@click.option(
    "--output",
    metavar="FILE",
    help="With --record: write its image, or the first of several, to this file as it is stored; raw pixels become "
    "a PNG.",
)
def inspect(
    dataset: str,
    split: str | None,
    show: tuple[int, str] | None,
    page: tuple[int, str] | None,
    record: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Print what the directory DATASET holds: splits, classes, image sizes, and what was changed or left out.

    Exit code 1 if a shard is missing or has another size than it should have; `tfpipe verify` looks at every record.
    """
    for name, given in (("show", show), ("page", page)):
        if record is not None and given is not None:
            raise ConfigError(f"--record and --{name} exclude each other.")
    if record is not None and split is not None:
        raise ConfigError("--record already names the split, as in train:0. Leave out --split.")
    if output is not None and record is None:
        raise ConfigError("--output needs a record. Name it with --record SPLIT:INDEX.")
    from tfpipe.dataset.load import load_manifest

    manifest = load_manifest(dataset)
    if split is not None:
        manifest.get_split(split)
    if record is not None:
        from tfpipe.cli.inspect_records import show_record

        show_record(dataset, manifest, record, output, as_json)
    else:
        _inspect_dataset(dataset, manifest, list(manifest.splits) if split is None else [split], show, page, as_json)


def _inspect_dataset(
    dataset: str,
    manifest: "Manifest",
    names: list[str],
    show: tuple[int, str] | None,
    page: tuple[int, str] | None,
    as_json: bool,
) -> None:
    from tfpipe.cli.inspect_summary import make_document, print_summary
    from tfpipe.engine.source import Source
    from tfpipe.storage.file_io import check_files

    splits = {name: manifest.splits[name] for name in names}
    written = {}
    if show is not None or page is not None:
        from tfpipe.cli.inspect_images import draw_sheet, write_page  # loads Pillow

        for name, target, write in (("sheet", show, draw_sheet), ("page", page, write_page)):
            if target is not None:
                written[name] = {"file": target[1], "records": write(manifest, names, *target)}
    document = make_document(dataset, manifest, splits)
    if as_json:
        click.echo(json.dumps({**document, **written}))
    else:
        print_summary(document, manifest)
        total = sum(info.records for info in splits.values())
        for made in written.values():
            echo(f"Wrote {made['file']}: {made['records']:,} of {total:,} records.")
    for name in names:
        for stored in (manifest, *manifest.columns):
            source = Source.from_manifest(stored, name)
            check_files(source.files, source.file_bytes)
