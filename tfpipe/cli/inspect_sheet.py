"""For `tfpipe inspect --show`: the images of many records on one sheet."""

import contextlib
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.outputs import write_file
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import read_image_header

if TYPE_CHECKING:
    from tfpipe.images.contact_sheet import Tile

_TILE_PX = 160
_MAX_IMAGES_SHOWN = 8  # of one record


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
    places = [(name, i) for name, chosen in spread_evenly(manifest, splits, count).items() for i in chosen]
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
    for number, data in enumerate(get_images(manifest, place, features)[:_MAX_IMAGES_SHOWN]):
        note = f"{place} image {number}" if manifest.has_several_images else place
        try:
            image, (width, height) = open_thumbnail(data, get_kind(manifest, features, data), _TILE_PX)
            marks = {"classes": _read_mask(manifest, features, width * height), "boxes": _list_boxes(features)}
            captions = (_first_text(features, spec.name) for spec in manifest.schema.features if spec.kind == "text")
            text = clean_line(next(captions, ""))
            tiles.append(Tile(image, title, note, f"{width} x {height}", text, **marks))
        except BadImage:
            tiles.append(Tile(None, title, note))
    return tiles


def spread_evenly(manifest: Manifest, splits: list[str], count: int) -> dict[str, list[int]]:
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


def get_images(manifest: Manifest, place: str, features: dict[str, Feature]) -> list[bytes]:
    """Returns the bytes of a record's image, or of several."""
    data = features.get(manifest.image_key or "")
    if not (isinstance(data, list) and data):
        reason = ", and this dataset has none" if manifest.image_key is None else ""
        raise FormatError(f"Record {place} must have an image to be drawn{reason}.")
    return data if manifest.has_several_images else data[:1]


def get_kind(manifest: Manifest, features: dict[str, Feature], image: bytes) -> str:
    """Returns the format of an image: JPEG, PNG or RAW.

    Raises:
        BadImage: It has none.
    """
    kinds = features.get(keys.IMAGE_FORMAT)
    is_raw = manifest.foreign is None and isinstance(kinds, list) and b"RAW" in kinds
    return "RAW" if is_raw else read_image_header(image).format


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


def encode_png(image: Any) -> bytes:
    """Returns an image of Pillow as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
