"""`tfpipe inspect`: what is in a dataset, one record of it, or many of its images on one sheet."""

import contextlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from tfpipe.cli.inspect_summary import describe_range, make_document, print_summary, print_values
from tfpipe.cli.shared.command import command
from tfpipe.cli.shared.console import clean_line, echo, new_console
from tfpipe.cli.shared.outputs import write_file
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import Feature
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest, list_images
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.storage.file_io import check_files

_MAX_VALUES_SHOWN = 8
_MAX_TEXT_SHOWN = 300
_TWO: Any = {"nargs": 2, "type": (int, str)}


@command(example="tfpipe inspect flowers --show 12 sheet.png")
@click.argument("dataset")
@click.option("--split", metavar="NAME", help="Only this split.  [default: all]")
@click.option("--show", **_TWO, metavar="N OUT.png", help="Draw the images of N records, spread evenly, on one sheet.")
@click.option("--page", **_TWO, metavar="N OUT.html", help="Write N records, spread evenly, as a page for a browser.")
@click.option("--record", metavar="SPLIT:INDEX", help="Print one record, such as train:0; -1 is the last one.")
@click.option("--output", metavar="FILE", help="With --record: write its image, or the first of several, to this file.")
def inspect(
    dataset: str,
    as_json: bool,
    split: str | None = None,
    record: str | None = None,
    output: str | None = None,
    **drawn: Any,
) -> None:
    """Print what the directory DATASET holds: splits, classes, image sizes, and what was changed or left out.

    Exit code 1 if a shard is missing or has another size than it should have; `tfpipe verify` looks at every record.
    """
    if record is not None and drawn:
        raise ConfigError(f"--record and --{next(iter(drawn))} exclude each other.")
    if record is not None and split is not None:
        raise ConfigError("--record already names the split, as in train:0. Leave out --split.")
    if output is not None and record is None:
        raise ConfigError("--output needs a record. Name it with --record SPLIT:INDEX.")
    manifest = load_manifest(dataset)
    if split is not None:
        manifest.get_split(split)
    if record is not None:
        _show_record(dataset, manifest, record, output, as_json)
    else:
        _inspect_dataset(dataset, manifest, list(manifest.splits) if split is None else [split], drawn, as_json)


def _inspect_dataset(dataset: str, manifest: Manifest, names: list[str], drawn: dict[str, Any], as_json: bool) -> None:
    splits = {name: manifest.splits[name] for name in names}
    written = {}
    if drawn:
        from tfpipe.cli.inspect_images import draw_sheet, write_page  # loads Pillow

        for option, name, write in (("show", "sheet", draw_sheet), ("page", "page", write_page)):
            if option in drawn:
                written[name] = {"file": drawn[option][1], "records": write(manifest, names, *drawn[option])}
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


def _show_record(dataset: str, manifest: Manifest, record: str, output: str | None, as_json: bool) -> None:
    """Prints one record, such as train:0 or, for the last one, train:-1; writes its image to `output` if given."""
    match = re.fullmatch(r"(.+):(-?[0-9]{1,18})", record)
    if not match:
        raise ConfigError(f"--record must be SPLIT:INDEX, such as train:0, got {record!r}.")
    split, index = match[1], int(match[2])
    with RecordReader(manifest.directory, manifest, split) as reader:
        features, location, index = reader[index], reader.locate(index), index % len(reader)
    written = None if output is None else _write_image(manifest, f"{split}:{index}", features, output)
    files = {*manifest.image_keys, *(spec.name for spec in manifest.schema.masks)}
    # Features are shown in the order of the schema, which people know; in the bytes they are in alphabetical order.
    names = dict.fromkeys([*(name for name in manifest.full_schema.names if name in features), *features])
    values = {
        name: _describe_tensor(manifest, name, features) or _describe_feature(features[name], name in files)
        for name in names
    }
    if as_json:
        position = {"split": split, "index": index, "shard": location.shard.file, "offset": location.offset}
        more = {} if written is None else {"written": written}
        click.echo(json.dumps({"dataset": dataset, **position, "features": values, **more}))
        return
    console = new_console()
    console.print(f"{split}:{index}  {location.shard.file}, {location.size:,} bytes from byte {location.offset:,}")
    print_values(console, {name: _format(value) for name, value in values.items()})
    if written is not None:
        echo(f"Wrote {written['file']}: {written['format']}, {written['bytes']:,} bytes.")


def _write_image(manifest: Manifest, position: str, features: dict[str, Feature], path: str) -> dict[str, Any]:
    """Writes a record's image, or the first of several, as it is stored; raw pixels as PNG."""
    from tfpipe.images.contact_sheet import encode_png  # these load Pillow
    from tfpipe.images.decode import decode_pixels, make_image, read_image_header
    from tfpipe.images.errors import BadImage

    images = list_images(features, manifest.image_keys)
    if not images:
        raise FormatError(f"Record {position} has no image.")
    data = images[0]
    try:
        if manifest.foreign is None and manifest.image.get("encoding") == "raw":
            data = encode_png(make_image(decode_pixels(data, ImageForm.recorded(manifest.image))))
        kind = read_image_header(data).format
    except BadImage as error:
        raise FormatError(f"Record {position}: {error.reason}.") from None
    write_file(path, data)
    return {"file": path, "format": kind, "bytes": len(data)}


def _describe_tensor(manifest: Manifest, name: str, features: dict[str, Feature]) -> dict[str, Any] | None:
    """Returns the type and the range of a feature that is a tensor; None for other features and damaged tensors."""
    spec = next((spec for spec in manifest.full_schema.tensors if spec.name == name), None)
    if spec is None or spec.tensor is None:
        return None
    with contextlib.suppress(FormatError):
        bits, stats = spec.check_stored(features), TensorStats()
        stats.add(spec.tensor, bits)
        numbers = {key: getattr(stats, key) for key in ("low", "high", "nan", "infinite")}
        return {"dtype": spec.tensor.dtype, "shape": list(bits.shape), **numbers}
    return None


def _describe_feature(feature: Feature, is_file: bool) -> Any:
    """Returns a feature's only value, or the list of its values, for JSON; files and other binary values as lengths."""
    if feature is None:
        return None
    if isinstance(feature, list):
        values = [_describe_bytes(value, is_file) for value in feature]
    elif feature.dtype == np.int64:
        values = feature.tolist()
    else:  # `str` gives the fewest digits that identify a float32; JSON has no infinity
        values = [float(str(value)) if math.isfinite(value) else str(value) for value in feature]
    return values[0] if len(values) == 1 else values


def _describe_bytes(value: bytes, is_file: bool) -> Any:
    if not is_file:
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return {"bytes": len(value)}


def _format(value: Any) -> str:
    """Returns a value of `_describe_tensor` or `_describe_feature` as text for the console."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        more = len(value) - _MAX_VALUES_SHOWN
        return ", ".join(map(_format, value[:_MAX_VALUES_SHOWN])) + (f" and {more:,} more" if more > 0 else "")
    if isinstance(value, Mapping):
        if "bytes" in value:
            return f"{value['bytes']:,} bytes"
        nan = f", {value['nan']:,} NaN" if value["nan"] else ""
        return f"{value['dtype']} {value['shape']}, {describe_range(value)}{nan}"
    text = clean_line(str(value))
    return text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}…"
