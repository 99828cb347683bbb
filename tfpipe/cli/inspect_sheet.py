"""For `tfpipe inspect --show`: the images of many records on one sheet."""

from tfpipe.cli.shared.outputs import write_file
from tfpipe.errors import ConfigError
from tfpipe.format.manifest import Manifest
from tfpipe.images.contact_sheet import MAX_TILES, Tile, draw_contact_sheet, encode_png
from tfpipe.readers.data_source import data_source
from tfpipe.readers.thumbnails import MAX_IMAGES_SHOWN, read_tiles

_TILE_PX = 160


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
    if not 1 <= count <= MAX_TILES:
        raise ConfigError(f"--show must be from 1 to {MAX_TILES} images, got {count}.")
    several = [info.images_per_record for name, info in manifest.splits.items() if name in splits]
    columns = min(max((counts.largest for counts in several if counts is not None), default=0), MAX_IMAGES_SHOWN)
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
