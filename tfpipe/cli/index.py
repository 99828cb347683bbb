"""`tfpipe index`: a dataset of TFRecords that another tool wrote, which stay as they are."""

from collections.abc import Iterator
from typing import Any

import click

from tfpipe.cli.inspect_summary import describe_files
from tfpipe.cli.shared.command import command, show
from tfpipe.cli.shared.config_option import config_options
from tfpipe.cli.shared.progress import ScanDisplay
from tfpipe.format.json_reader import to_json
from tfpipe.integrity.foreign.index import IndexConfig, IndexReport
from tfpipe.integrity.foreign.index import index as run
from tfpipe.system.units import human_bytes, human_count


@command(example='tfpipe index "/data/train-*"')
@click.argument("target", metavar="FILES")
@config_options(IndexConfig, without=("target",))
def index(target: str, as_json: bool, **options: Any) -> None:
    """Make a dataset of TFRecords that another tool wrote. FILES is a directory, or a pattern such as "/data/train-*".

    All files are read once, on all cores, and none is changed. The manifest gets the counts, the place of each
    record, the features, the classes, the formats and sizes of the images, and checksums. After that, every other
    command and the pipeline read the files as they read a dataset of tfpipe's own. Run it again when the files have
    changed.
    """
    with ScanDisplay("Indexing") as display:
        report = run(IndexConfig(target, **options), display)
    manifest = report.manifest
    summary = {
        "dataset": report.directory,
        "name": manifest.name,
        **to_json(manifest.foreign),
        "random_access": manifest.random_access,
        "splits": {name: describe_files(split) for name, split in manifest.splits.items()},
        "classes": len(manifest.label_names),
        "noticed": dict(manifest.noticed),
        "schema": manifest.schema.to_json(),
        "notes": list(report.notes),
    }
    show(summary, _format(report), as_json)


def _format(report: IndexReport) -> Iterator[str]:
    manifest = report.manifest
    for name, split in manifest.splits.items():
        formats = ", ".join(f"{count:,} {kind}" for kind, count in split.formats.items())
        size = f"{human_count(split.num_shards, 'file')}, {human_bytes(split.bytes)}"
        yield f"{name}: {human_count(split.records, 'record')}, {size}; {formats or 'no image'}"
    image = ", ".join(map(repr, manifest.image_keys))
    image = f"image{'s' if len(manifest.image_keys) > 1 else ''}: {image}" if image else "no image"
    classes, base = len(manifest.label_names), manifest.label_base
    labels = "no labels" if manifest.value_key is None else f"label: {manifest.value_key!r}, a float"
    if manifest.label_key is not None:
        stored = f"stored from {base}" + (", read as 0 and up" if base else "")
        labels = f"label: {manifest.label_key!r}, {human_count(classes, 'class', 'classes')}, {stored}"
    yield f"{image}; {labels}"
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
        yield f"The files are {manifest.compression} compressed: no random access, no exact order and no exact resume."
        yield "`tfpipe reshard --opaque FILES OUTPUT` writes them for these, packed or not."
    yield f"{report.directory} is indexed: {human_count(len(manifest.schema.features), 'feature')}"
