"""For `tfpipe inspect --show` and `--page`: the images of many records on one sheet, or as one page for a browser."""

from __future__ import annotations

import base64
import io
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from tfpipe.cli.shared.outputs import check_target, write_file
from tfpipe.errors import ConfigError
from tfpipe.images.contact_sheet import MAX_TILES, color_mask, draw_contact_sheet, encode_png, fit
from tfpipe.readers.data_source import data_source
from tfpipe.readers.thumbnails import MAX_IMAGES_SHOWN, read_tiles
from tfpipe.system.units import human_text

if TYPE_CHECKING:
    from tfpipe.format.manifest import Manifest
    from tfpipe.images.contact_sheet import Tile
    from tfpipe.readers.data_source import Record

MAX_RECORDS = 5_000
"""The most records of a page. Each takes about 8 KB of it."""

_TILE_PX, _THUMBNAIL_PX = 160, 224
_QUALITY = 80


def draw_sheet(manifest: Manifest, splits: list[str], count: int, path: str) -> int:
    """Draws the images of up to `count` records on a contact sheet, and returns how many records are on it.

    The records are spread evenly over the splits. The images of a record with several, up to 8, make a row.
    """
    if not 1 <= count <= MAX_TILES:
        raise ConfigError(f"--show must be from 1 to {MAX_TILES} images, got {count}.")
    several = [info.images_per_record for name, info in manifest.splits.items() if name in splits]
    columns = min(max((counts.max for counts in several if counts is not None), default=0), MAX_IMAGES_SHOWN)
    if columns and count * columns > MAX_TILES:
        most = MAX_TILES // columns
        raise ConfigError(f"--show must be from 1 to {most} records of up to {columns} images, got {count}.")
    if not path.lower().endswith(".png"):
        raise ConfigError(f"--show writes a PNG: the file's name must end in .png, got {path!r}.")
    sources = [data_source(manifest, name) for name in splits]
    rows: list[list[Tile | None]] = [[*tiles] for _, tiles in read_tiles(sources, count, _TILE_PX)]
    tiles = [tile for row in rows for tile in ([*row, *[None] * columns][:columns] if columns else row)]
    write_file(path, encode_png(draw_contact_sheet(tiles, columns=columns or None, tile_px=_TILE_PX)))
    return len(rows)


def write_page(manifest: Manifest, splits: list[str], count: int, path: str) -> int:
    """Writes up to `count` records, spread evenly over the splits, as a page, and returns their number."""
    if not 1 <= count <= MAX_RECORDS:
        raise ConfigError(f"--page must be from 1 to {MAX_RECORDS:,} records, got {count}.")
    if not path.lower().endswith((".html", ".htm")):
        raise ConfigError(f"--page writes HTML: the file's name must end in .html, got {path!r}.")
    check_target(path)
    items, num_records = list[dict[str, Any]](), 0
    for record, tiles in read_tiles([data_source(manifest, name) for name in splits], count, _THUMBNAIL_PX):
        num_records += 1
        items += [_describe(record, tile, number, len(tiles)) for number, tile in enumerate(tiles)]
    page = {
        "title": manifest.address,
        "splits": {name: manifest.splits[name].records for name in splits},
        "records": num_records,
        "items": items,
    }
    # In a script element only `<` could end the data.
    data = json.dumps(page, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("tfpipe.cli").joinpath("inspect_page.html").read_text("utf-8")
    write_file(path, template.replace("{{data}}", data).encode())
    return num_records


def _describe(record: Record, tile: Tile, number: int, count: int) -> dict[str, Any]:
    """Returns what the page shows about one image of a record, as JSON values."""
    item: dict[str, Any] = {
        "position": f"{record.split}:{record.index}" + (f" image {number}" if count > 1 else ""),
        "split": record.split,
        "name": human_text(record.name),
        "label": human_text(record.label_name or ("" if record.label is None else str(record.label))),
        "caption": tile.text,
        "bytes": len(record.encoded_images[number]),
    }
    if tile.image is None:
        return item
    image = fit(tile.image, _THUMBNAIL_PX)
    item |= dict(zip(("width", "height"), tile.size or (), strict=True))
    item["image"] = _encode(image, "JPEG", quality=_QUALITY)
    if tile.boxes:
        item["boxes"] = [list(box) for box in tile.boxes if all(0 <= side <= 1 for side in box)]
    if tile.classes is not None:
        item["mask"] = _encode(color_mask(tile.classes, image.size), "PNG", transparency=0)
    return item


def _encode(image: Any, kind: str, **options: Any) -> str:
    """Encodes a Pillow image as a data URL."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
