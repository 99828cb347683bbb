"""For `tfpipe inspect`: one record in words or as JSON, its image as a file, and many images on one sheet."""

import contextlib
import io
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tfpipe.cli.inspect_summary import describe_range
from tfpipe.cli.shared.console import clean_line, new_console
from tfpipe.cli.shared.outputs import write_file
from tfpipe.engine.record_reader import RecordPlace, RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import FeatureSpec
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import read_image_header

if TYPE_CHECKING:
    from tfpipe.images.contact_sheet import Tile

_TILE_PX = 160
_MAX_VALUES_SHOWN = 8
_MAX_TEXT_SHOWN = 300
_HEAD_BYTES = 8
_MAX_IMAGES_SHOWN = 8  # of one record


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


class Written(NamedTuple):
    """A file that was written."""

    file: str
    format: str
    bytes: int


def read_one(directory: str, manifest: Manifest, split: str, index: int) -> Record:
    """Reads one record; `index` below 0 counts from the end.

    Raises:
        ConfigError: There is no such split or record.
        FormatError: The record is missing or damaged.
    """
    with RecordReader(directory, manifest, split) as reader:
        features = reader[index]
        # People know the order of the schema; the bytes have keys in alphabetical order.
        in_schema_order = {spec.name: features[spec.name] for spec in manifest.schema.features if spec.name in features}
        return Record(split, index % len(reader), manifest, reader.locate(index), {**in_schema_order, **features})


def record_json(record: Record) -> dict[str, Any]:
    """Returns the record as JSON values: bytes are text if they are UTF-8, else their length, as images and masks."""
    return {
        "split": record.split,
        "index": record.index,
        "shard": record.place.shard.file,
        "offset": record.place.offset,
        "features": {
            name: _tensor_json(record, name) or _feature_json(feature, _holds_a_file(record.manifest, name))
            for name, feature in record.features.items()
        },
    }


def print_record(record: Record) -> None:
    """Prints the record, one feature a line."""
    from rich.table import Table
    from rich.text import Text

    console = new_console()
    place = record.place
    console.print(
        Text.assemble(
            (f"{record.split}:{record.index}", "bold"),
            (f"  {place.shard.file}, {place.size:,} bytes from byte {place.offset:,}", "dim"),
        )
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, feature in record.features.items():
        text = _tensor_text(record, name) or _feature_text(feature, _holds_a_file(record.manifest, name))
        table.add_row(Text(clean_line(name)), Text(text))
    console.print(table)


def write_image(record: Record, path: str) -> Written:
    """Writes the record's image, or the first of several, as it is stored; raw pixels as PNG.

    Raises:
        ConfigError: `path` is something else than a file.
        DataError: It cannot be written.
        FormatError: The record has no image, or raw pixels of another number than those of a square.
    """
    from tfpipe.images.contact_sheet import make_raw_image

    try:
        data, kind = _get_images(record.manifest, f"{record.split}:{record.index}", record.features)[0]
        if kind == "RAW":
            data, kind = encode_png(make_raw_image(data)), "PNG"
    except BadImage as error:
        raise FormatError(f"Record {record.split}:{record.index}: {error.reason}.") from None
    write_file(path, data)
    return Written(path, kind, len(data))


def draw_sheet(directory: str, manifest: Manifest, splits: list[str], count: int, path: str) -> int:
    """Draws the images of up to `count` records, spread evenly over the splits, on a contact sheet.

    Several images of a record make a row, up to 8.

    Returns:
        How many records there are on it.

    Raises:
        ConfigError: `count` or `path` cannot be used.
        DataError: There is no record, or `path` cannot be written.
        FormatError: A record is missing or damaged.
    """
    from tfpipe.images.contact_sheet import MAX_TILES, draw_contact_sheet

    if not 1 <= count <= MAX_TILES:
        raise ConfigError(f"--show must be from 1 to {MAX_TILES} images, got {count}.")
    several = [info.images_per_record for name, info in manifest.splits.items() if name in splits]
    columns = min(max((counts.largest for counts in several if counts is not None), default=0), _MAX_IMAGES_SHOWN)
    if columns and count * columns > MAX_TILES:
        most = MAX_TILES // columns
        raise ConfigError(f"--show must be from 1 to {most} records of up to {columns} images, got {count}.")
    if not path.lower().endswith(".png"):
        raise ConfigError(f"--show writes a PNG: the file's name must end in .png, got {path!r}.")
    places = [(name, i) for name, chosen in _spread(manifest, splits, count).items() for i in chosen]
    if not places:
        raise DataError(f"{directory} has no record to show.")
    rows = []
    readers = {name: RecordReader(directory, manifest, name) for name in splits}
    with contextlib.ExitStack() as stack:
        for reader in readers.values():
            stack.enter_context(reader)
        for split, index in places:
            features = readers[split][index]
            rows.append(_make_tiles(manifest, f"{split}:{index}", features))
    tiles = [tile for row in rows for tile in ([*row, *[None] * columns][:columns] if columns else row)]
    write_file(path, encode_png(draw_contact_sheet(tiles, columns=columns or None, tile_px=_TILE_PX)))
    return len(rows)


def _make_tiles(manifest: Manifest, place: str, features: dict[str, Feature]) -> list["Tile | None"]:
    """Makes the tile of a record's image, or one for each of several."""
    from tfpipe.images.contact_sheet import Tile, open_thumbnail

    title, tiles = _title(manifest, features), list["Tile | None"]()
    for number, (data, kind) in enumerate(_get_images(manifest, place, features, limit=_MAX_IMAGES_SHOWN)):
        note = f"{place} image {number}" if manifest.has_several_images else place
        try:
            image, (width, height) = open_thumbnail(data, kind, _TILE_PX)
            marks = {"classes": _read_mask(manifest, features, width * height), "boxes": _list_boxes(features)}
            text = _find_caption(manifest, features)
            tiles.append(Tile(image, title, note, f"{width} x {height}", text, **marks))
        except BadImage:
            tiles.append(Tile(None, title, note))
    return tiles


def _spread(manifest: Manifest, splits: list[str], count: int) -> dict[str, list[int]]:
    """Returns record numbers by split: the middles of `count` equal parts of all records laid end to end."""
    total = sum(manifest.splits[name].records for name in splits)
    count = min(count, total)
    middles = [(2 * k + 1) * total // (2 * count) for k in range(count)]
    chosen: dict[str, list[int]] = {}
    begin = 0
    for name in splits:
        end = begin + manifest.splits[name].records
        chosen[name] = [number - begin for number in middles if begin <= number < end]
        begin = end
    return chosen


def _get_images(
    manifest: Manifest, place: str, features: dict[str, Feature], limit: int | None = None
) -> list[tuple[bytes, str]]:
    """Returns the bytes and the format of a record's image, or of the first of several."""
    data, kinds = features.get(keys.IMAGE_ENCODED), features.get(keys.IMAGE_FORMAT)
    if not manifest.has_several_images:
        return [_get_image(manifest, place, features)]
    if not (isinstance(data, list) and isinstance(kinds, list) and 0 < len(data) == len(kinds)):
        raise FormatError(f"Record {place} must have as many {keys.IMAGE_ENCODED} as {keys.IMAGE_FORMAT}.")
    pairs = itertools.islice(zip(data, kinds, strict=True), limit)
    rows: list[dict[str, Feature]] = [{keys.IMAGE_ENCODED: [one], keys.IMAGE_FORMAT: [kind]} for one, kind in pairs]
    return [_get_image(manifest, place, row) for row in rows]


def _get_image(manifest: Manifest, place: str, features: dict[str, Feature]) -> tuple[bytes, str]:
    """Returns the bytes of the image and their format; raises `BadImage` if a foreign record holds something else."""
    if manifest.image_key is None:
        raise FormatError(f"Record {place} must have an image to be drawn, and this dataset has none.")
    data, kind = features.get(manifest.image_key), features.get(keys.IMAGE_FORMAT)
    if manifest.foreign is not None:
        if not (isinstance(data, list) and len(data) == 1):
            raise FormatError(f"Record {place} must have one {manifest.image_key}.")
        return data[0], read_image_header(data[0]).format
    if not (isinstance(data, list) and len(data) == 1 and isinstance(kind, list) and len(kind) == 1):
        raise FormatError(f"Record {place} must have one {keys.IMAGE_ENCODED} and one {keys.IMAGE_FORMAT}.")
    name = kind[0].decode("ascii", "replace")
    if name not in ("JPEG", "PNG", "RAW"):
        raise FormatError(f"Record {place}: {keys.IMAGE_FORMAT} must be JPEG, PNG or RAW, got {name[:40]!r}.")
    return data[0], name


def _read_mask(manifest: Manifest, features: dict[str, Feature], max_pixels: int) -> Any:
    """Returns the classes of the record's first mask; None without one. Raises `BadImage` if it is damaged."""
    from tfpipe.images.masks import read_mask

    for spec in manifest.schema.masks:
        value = features.get(spec.name)
        if isinstance(value, list) and len(value) == 1:
            return read_mask(value[0], max_pixels)
    return None


def _list_boxes(features: dict[str, Feature]) -> list[tuple[float, float, float, float]]:
    """Returns the boxes of a record, as far as all four sides of each are there."""
    sides = [features.get(key) for key in (keys.BBOX_XMIN, keys.BBOX_YMIN, keys.BBOX_XMAX, keys.BBOX_YMAX)]
    lists = [side.tolist() for side in sides if isinstance(side, np.ndarray)]
    return list(zip(*lists, strict=False)) if len(lists) == len(sides) else []


def _find_caption(manifest: Manifest, features: dict[str, Feature]) -> str:
    """Returns the first text of the record that is not tfpipe's own; empty without one."""
    for spec in manifest.schema.features:
        if spec.kind == "text":
            return clean_line(_first_text(features, spec.name))
    return ""


def _title(manifest: Manifest, features: dict[str, Feature]) -> str:
    """Returns the name of the class, or of the image's file."""
    label = features.get(manifest.label_key or "")
    if manifest.foreign is not None and isinstance(label, np.ndarray) and label.size == 1:
        number = int(label[0]) - manifest.label_base
        return manifest.label_names[number] if 0 <= number < len(manifest.label_names) else str(label[0])
    return _first_text(features, keys.CLASS_TEXT) or _first_text(features, keys.IMAGE_FILENAME)


def _first_text(features: dict[str, Feature], name: str) -> str:
    values = features.get(name)
    return values[0].decode("utf-8", "replace") if isinstance(values, list) and values else ""


def _describe_tensor(record: Record, name: str) -> tuple[FeatureSpec, tuple[int, ...], TensorStats] | None:
    """Returns the feature, the shape and the range of a tensor; None for anything else, and for damaged bytes."""
    schema = record.manifest.schema
    spec = next((spec for spec in schema.features if spec.name == name), None)
    if spec is None or spec.tensor is None:
        return None
    with contextlib.suppress(FormatError):
        bits, stats = spec.check_stored(record.features), TensorStats()
        stats.add(spec.tensor, bits)
        return spec, bits.shape, stats
    return None


def _tensor_text(record: Record, name: str) -> str:
    tensor = _describe_tensor(record, name)
    if tensor is None:
        return ""
    spec, shape, stats = tensor
    assert spec.tensor is not None
    nan = f", {stats.nan:,} NaN" if stats.nan else ""
    return f"{spec.tensor.dtype} {list(shape)}, {describe_range(stats)}{nan}"


def _tensor_json(record: Record, name: str) -> dict[str, Any]:
    tensor = _describe_tensor(record, name)
    if tensor is None:
        return {}
    spec, shape, stats = tensor
    assert spec.tensor is not None
    numbers = {key: getattr(stats, key) for key in ("low", "high", "nan", "infinite")}
    return {"dtype": spec.tensor.dtype, "shape": list(shape), **numbers}


def _holds_a_file(manifest: Manifest, name: str) -> bool:
    """Returns whether a feature is the image or a mask."""
    return name == manifest.image_key or any(spec.name == name for spec in manifest.schema.masks)


def _feature_text(feature: Feature, is_image: bool) -> str:
    if feature is None or len(feature) == 0:
        return "none"
    if isinstance(feature, list):
        if is_image:
            shown = [f"{len(value):,} bytes: {value[:_HEAD_BYTES].hex(' ')} …" for value in feature]
        else:
            shown = [_cut(clean_line(value.decode("utf-8", "replace"))) for value in feature[:_MAX_VALUES_SHOWN]]
    else:
        shown = [str(value) for value in feature[:_MAX_VALUES_SHOWN]]
    more = len(feature) - _MAX_VALUES_SHOWN
    return ", ".join(shown[:_MAX_VALUES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _feature_json(feature: Feature, is_image: bool) -> Any:
    """Returns the only value, or a list of all values."""
    if feature is None:
        return None
    if isinstance(feature, list):
        values = [_bytes_json(value, is_image) for value in feature]
    elif feature.dtype == np.int64:
        values = feature.tolist()
    else:  # through text, which is as short as float32 allows; JSON has no infinity
        values = [float(str(value)) if math.isfinite(value) else str(value) for value in feature]
    return values[0] if len(values) == 1 else values


def _bytes_json(value: bytes, is_image: bool) -> Any:
    if not is_image:
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return {"bytes": len(value)}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}…"


def encode_png(image: Any) -> bytes:
    """Returns the bytes of a PNG of Pillow's image."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
