"""For `tfpipe inspect --record`: one record as JSON values, as text, and its image in a file."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfpipe.cli.inspect_summary import describe_range
from tfpipe.cli.shared.console import clean_line, new_console
from tfpipe.cli.shared.outputs import write_file
from tfpipe.engine.record_reader import RecordPlace, RecordReader
from tfpipe.errors import FormatError
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.images.contact_sheet import encode_png, make_raw_image
from tfpipe.images.errors import BadImage
from tfpipe.readers.thumbnails import get_kind

_MAX_VALUES_SHOWN = 8
_MAX_TEXT_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Record:
    """One record and its place.

    Attributes:
        split: The name of its split.
        index: The number of the record in its split, from 0.
        manifest: The manifest of the dataset.
        place: The shard and the byte where it begins.
        features: The features by name.
    """

    split: str
    index: int
    manifest: Manifest
    place: RecordPlace
    features: dict[str, Feature]


def read_one(manifest: Manifest, split: str, index: int) -> Record:
    """Reads one record; `index` below 0 counts from the end.

    Raises:
        ConfigError: There is no such split or record.
        FormatError: The record is missing or damaged.
    """
    with RecordReader(manifest.directory, manifest, split) as reader:
        features = reader[index]
        # People know the order of the schema; the bytes have keys in alphabetical order.
        in_schema_order = {name: features[name] for name in manifest.full_schema.names if name in features}
        return Record(split, index % len(reader), manifest, reader.locate(index), {**in_schema_order, **features})


def make_document(record: Record) -> dict[str, Any]:
    """Returns the record as JSON values: bytes are text if they are UTF-8, else their length, as images and masks."""
    files = {record.manifest.image_key, *(spec.name for spec in record.manifest.schema.masks)}
    return {
        "split": record.split,
        "index": record.index,
        "shard": record.place.shard.file,
        "offset": record.place.offset,
        "features": {
            name: _describe_tensor(record, name) or _describe_feature(feature, name in files)
            for name, feature in record.features.items()
        },
    }


def print_record(document: Mapping[str, Any], size: int) -> None:
    """Prints the record, one feature a line; `size` is that of the whole record in bytes."""
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    place = f"  {document['shard']}, {size:,} bytes from byte {document['offset']:,}"
    console.print(Text.assemble((f"{document['split']}:{document['index']}", "bold"), (place, "dim")))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in document["features"].items():
        table.add_row(Text(clean_line(name)), Text(_format(value)))
    console.print(table)


def write_image(record: Record, path: str) -> dict[str, Any]:
    """Writes the record's image, or the first of several, as it is stored; raw pixels as PNG.

    Returns:
        The `file`, its `format` and its `bytes`.

    Raises:
        ConfigError: `path` is something else than a file.
        DataError: It cannot be written.
        FormatError: The record has no image, or raw pixels of another number than those of a square.
    """
    place, images = f"{record.split}:{record.index}", record.features.get(record.manifest.image_key or "")
    if not (isinstance(images, list) and images):
        raise FormatError(f"Record {place} has no image.")
    data = images[0]
    try:
        kind = get_kind(record.manifest, record.features, data)
        if kind == "RAW":
            data, kind = encode_png(make_raw_image(data)), "PNG"
    except BadImage as error:
        raise FormatError(f"Record {place}: {error.reason}.") from None
    write_file(path, data)
    return {"file": path, "format": kind, "bytes": len(data)}


def _describe_tensor(record: Record, name: str) -> dict[str, Any] | None:
    """Returns the type and the range of a tensor; None for anything else, and for damaged bytes."""
    spec = next((spec for spec in record.manifest.full_schema.tensors if spec.name == name), None)
    if spec is None or spec.tensor is None:
        return None
    with contextlib.suppress(FormatError):
        bits, stats = spec.check_stored(record.features), TensorStats()
        stats.add(spec.tensor, bits)
        numbers = {key: getattr(stats, key) for key in ("low", "high", "nan", "infinite")}
        return {"dtype": spec.tensor.dtype, "shape": list(bits.shape), **numbers}
    return None


def _describe_feature(feature: Feature, is_file: bool) -> Any:
    """Returns the only value, or a list of all values."""
    if feature is None:
        return None
    if isinstance(feature, list):
        values = [_describe_bytes(value, is_file) for value in feature]
    elif feature.dtype == np.int64:
        values = feature.tolist()
    else:  # through text, which is as short as float32 allows; JSON has no infinity
        values = [float(str(value)) if math.isfinite(value) else str(value) for value in feature]
    return values[0] if len(values) == 1 else values


def _describe_bytes(value: bytes, is_file: bool) -> Any:
    if not is_file:
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return {"bytes": len(value)}


def _format(value: Any) -> str:
    """Returns a value of `make_document` as text."""
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        more = len(value) - _MAX_VALUES_SHOWN
        return ", ".join(map(_format, value[:_MAX_VALUES_SHOWN])) + (f" and {more:,} more" if more > 0 else "")
    if isinstance(value, dict):
        if "bytes" in value:
            return f"{value['bytes']:,} bytes"
        nan = f", {value['nan']:,} NaN" if value["nan"] else ""
        return f"{value['dtype']} {value['shape']}, {describe_range(value)}{nan}"
    text = clean_line(str(value))
    return text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}…"
