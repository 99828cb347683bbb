"""For `tfpipe inspect --show`: the images of many records on one sheet."""

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tfpipe.cli.shared.console import clean_line
from tfpipe.cli.shared.outputs import write_file
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Manifest
from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import read_image_header
from tfpipe.readers.data_source import Record, data_source

if TYPE_CHECKING:
    from tfpipe.images.contact_sheet import Tile

_TILE_PX = 160
_MAX_IMAGES_SHOWN = 8  # of one record


def draw_sheet(manifest: Manifest, splits: list[str], count: int, path: str) -> int:
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
    rows: list[list[Tile]] = [tiles for _, tiles in read_tiles(manifest, splits, count, _TILE_PX)]
    tiles = [tile for row in rows for tile in ([*row, *[None] * columns][:columns] if columns else row)]
    write_file(path, encode_png(draw_contact_sheet(tiles, columns=columns or None, tile_px=_TILE_PX)))
    return len(rows)


def read_tiles(
    manifest: Manifest, splits: list[str], count: int, tile_px: int
) -> Iterator[tuple[Record, list["Tile"]]]:
    """Yields up to `count` records, spread evenly over the splits, each with the tile of its image, or of several.

    Raises:
        DataError: There is no record.
        FormatError: A record has no image, is missing or damaged.
    """
    places = [(name, i) for name, chosen in spread_evenly(manifest, splits, count).items() for i in chosen]
    if not places:
        raise DataError(f"{manifest.address} has no record to show.")
    if manifest.image_key is None:
        raise FormatError(f"{manifest.address} must have an image to be drawn, and this dataset has none.")
    with contextlib.ExitStack() as stack:
        sources = {name: stack.enter_context(data_source(manifest, name)) for name in splits}
        for split, index in places:
            record = sources[split][index]
            yield record, make_tiles(manifest, record, tile_px)


def make_tiles(manifest: Manifest, record: Record, tile_px: int) -> list["Tile"]:
    """Makes the tile of a record's image, or one for each of several, up to 8."""
    from tfpipe.images.contact_sheet import Tile, open_thumbnail

    place, title, tiles = f"{record.split}:{record.index}", record.label_name or record.name, list["Tile"]()
    texts = (record.features.get(spec.name) for spec in manifest.full_schema.features if spec.kind == "text")
    caption = next(
        (values[0].decode("utf-8", "replace") for values in texts if isinstance(values, list) and values), ""
    )
    for number, data in enumerate(record.encoded_images[:_MAX_IMAGES_SHOWN]):
        note = f"{place} image {number}" if manifest.has_several_images else place
        try:
            image, (width, height) = open_thumbnail(data, get_kind(manifest, record.features, data), tile_px)
            classes, boxes = _read_mask(manifest, record.features, width * height), _list_boxes(record.features)
            tiles.append(Tile(image, title, note, f"{width} x {height}", clean_line(caption), classes, boxes))
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


def encode_png(image: Any) -> bytes:
    """Returns an image of Pillow as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
