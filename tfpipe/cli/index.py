"""`tfpipe index`: a dataset of TFRecords that another tool wrote, which stay as they are."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.system.units import human_bytes, human_count

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest
    from tfpipe.integrity.foreign.index import IndexReport


@command(example='tfpipe index "/data/train-*"')
@click.argument("target", metavar="FILES")
@click.option("--output", metavar="DIR", help="Folder for manifest.json and index/.  [default: beside the files]")
@click.option("--split", metavar="NAME", help="Put all files into this split.  [default: taken from the file names]")
@click.option(
    "--image-key",
    metavar="KEY",
    multiple=True,
    help="The feature that holds the image. May be given several times: a batch then holds all images of a record.  "
    "[default: found by name and content]",
)
@click.option(
    "--label-key",
    metavar="KEY",
    help="The feature that holds the class, or a float as a value of each batch.  [default: found by name]",
)
@click.option(
    "--tensor",
    "tensors",
    metavar="NAME=DTYPE[SHAPE]",
    multiple=True,
    help="A feature that is a tensor: raw bytes, or a list of float32, int64 or bytes, as elevation=float32[64,64]. "
    "The shape may be the name of the feature that holds it, as image/encoded=uint8[image/shape], the first size ?, "
    "and any size a name in --sizes. May be given several times.",
)
@click.option(
    "--sizes",
    metavar="FILE",
    help="JSON file with the sizes that --tensor names.  [default: statistics.json beside the files]",
)
@click.option(
    "--label-base",
    type=click.Choice(["auto", "0", "1"]),
    default="auto",
    show_default=True,
    help="The number that the files store for the first class; auto: the smallest. The pipeline always counts from 0.",
)
@click.option(
    "--export",
    type=click.Choice(["dali", "vahidk"]),
    multiple=True,
    help="Also write index files for NVIDIA DALI or for vahidk's tfrecord package, into dali/ or vahidk/.",
)
def index(target: str, as_json: bool, **options: Any) -> None:
    """Make a dataset of TFRecords that another tool wrote. FILES is a directory, or a pattern such as "/data/train-*".

    All files are read once, on all cores, and none is changed. The manifest gets the counts, the place of each
    record, the features, the classes, the formats and sizes of the images, and checksums. After that, every other
    command and the pipeline read the files as they read a dataset of tfpipe's own. Run it again when the files have
    changed.
    """
    from tfpipe.integrity.foreign.index import IndexConfig
    from tfpipe.integrity.foreign.index import index as run

    with ScanDisplay("Indexing") as display:
        report = run(IndexConfig(target, **options), display)
    show(_report_json(report), _format(report), as_json)


def _report_json(report: "IndexReport") -> dict[str, Any]:
    from tfpipe.format.manifest_json import foreign_to_json

    manifest = report.manifest
    assert manifest.foreign is not None
    return {
        "dataset": report.directory,
        "name": manifest.name,
        **foreign_to_json(manifest.foreign),
        "random_access": manifest.random_access,
        "splits": {
            name: {
                "records": split.records,
                "shards": split.num_shards,
                "bytes": split.bytes,
                "formats": dict(split.formats),
                "sizes": asdict(split.sizes),
            }
            for name, split in manifest.splits.items()
        },
        "classes": len(manifest.label_names),
        "noticed": dict(manifest.noticed),
        "schema": manifest.schema.to_json(),
        "notes": list(report.notes),
    }


def _format(report: "IndexReport") -> Iterator[str]:
    manifest = report.manifest
    for name, split in manifest.splits.items():
        formats = ", ".join(f"{count:,} {kind}" for kind, count in split.formats.items())
        size = f"{human_count(split.num_shards, 'file')}, {human_bytes(split.bytes)}"
        yield f"{name}: {human_count(split.records, 'record')}, {size}; {formats or 'no image'}"
    image = ", ".join(map(repr, manifest.image_keys))
    image = f"image{'s' if len(manifest.image_keys) > 1 else ''}: {image}" if image else "no image"
    yield f"{image}; {_labels(manifest)}"
    for spec in manifest.schema.features:
        if spec.tensor is not None:
            yield f"tensor: {spec.name!r}, {spec.tensor}"
        elif spec.shape != () and spec.name not in manifest.image_keys:
            values = spec.doc or f"{' x '.join(map(str, spec.shape or ()))} values"
            yield f"list: {spec.name!r}, {values}"
    for kind, count in manifest.noticed.items():
        yield f"noticed: {count:,} {kind}"
    yield from report.notes
    if not manifest.random_access:
        yield (
            f"The files are {manifest.compression} compressed: no random access, no exact order and no exact resume. "
            "`tfpipe reshard --opaque FILES OUTPUT` writes them for these, packed or not."
        )
    yield f"{report.directory} is indexed: {human_count(len(manifest.schema.features), 'feature')}"


def _labels(manifest: "Manifest") -> str:
    if manifest.label_key is None:
        return "no labels" if manifest.value_key is None else f"label: {manifest.value_key!r}, a float"
    classes, base = len(manifest.label_names), manifest.label_base
    stored = f"stored from {base}" + (", read as 0 and up" if base else "")
    return f"label: {manifest.label_key!r}, {classes:,} {'class' if classes == 1 else 'classes'}, {stored}"
