"""Draws a contact sheet: images in tiles of one size with captions, masks (class 0 is left clear) and boxes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from tfpipe.errors import DataError
from tfpipe.images.exif import Box
from tfpipe.images.masks import Classes, resize_nearest

MAX_TILES = 1000
"""The most tiles of a sheet. At 160 px each, the sheet takes about 100 MB of memory."""

_PAGE, _WELL, _INK, _BOX = "#ffffff", "#eceef1", "#1d2430", "#ff3b30"
# Colors that can be told apart with red-green blindness; further classes use them again in the same order.
_CLASS_COLORS = np.array(
    [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167)],
    np.uint8,
)
_MASK_OPACITY = 0.55
_GAP_PX, _LINE_PX, _FONT_PX = 8, 16, 12
_SHOW_PIXELS_FROM = 3  # an image that fits at least this many times into its tile is shown pixel by pixel


@dataclass(frozen=True, slots=True)
class Tile:
    """One image of a sheet."""

    image: Image.Image | None  # "RGB"; None draws an empty tile
    title: str  # the first line of the caption
    note: str = ""  # the second line
    size: tuple[int, int] | None = None  # width and height, written after the note
    text: str = ""  # the third line; if one tile has it, all have room for it
    classes: Classes | None = None  # the mask, [height, width] of any size
    boxes: Sequence[Box] = ()  # as fractions of width and height

    @property
    def lines(self) -> list[str]:
        """The lines of the caption."""
        size = "" if self.size is None else "  {} x {}".format(*self.size)
        return [self.title, self.note + size, *([self.text] if self.text else [])]


def draw_contact_sheet(tiles: Sequence[Tile | None], columns: int | None = None, tile_px: int = 160) -> Image.Image:
    """Draws tiles of one size, row by row, in "RGB"; None leaves a gap."""
    if not tiles:
        raise DataError("A contact sheet must have at least one image, got none.")
    columns = min(columns or round(math.sqrt(1.5 * len(tiles))), len(tiles))
    num_lines = max((len(tile.lines) for tile in tiles if tile is not None), default=1)
    width, height = tile_px + _GAP_PX, tile_px + num_lines * _LINE_PX + _GAP_PX
    sheet = Image.new("RGB", (columns * width + _GAP_PX, math.ceil(len(tiles) / columns) * height + _GAP_PX), _PAGE)
    for number, tile in enumerate(tiles):
        if tile is not None:
            row, column = divmod(number, columns)
            sheet.paste(_draw_tile(tile, tile_px, num_lines), (_GAP_PX + column * width, _GAP_PX + row * height))
    return sheet


def encode_png(image: Image.Image) -> bytes:
    """Returns an image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _draw_tile(tile: Tile, side: int, num_lines: int) -> Image.Image:
    """Draws an image, its mask and its boxes in the middle of a square, and below its caption, cut off at the edge."""
    drawn = Image.new("RGB", (side, side + num_lines * _LINE_PX), _PAGE)
    draw = ImageDraw.Draw(drawn)
    draw.rectangle((0, 0, side - 1, side - 1), fill=_WELL)
    if tile.image is not None:
        image = fit(tile.image, side)
        if tile.classes is not None:
            colors = color_mask(tile.classes, image.size)
            blended = Image.blend(image, colors.convert("RGB"), _MASK_OPACITY)
            image = Image.composite(blended, image, Image.fromarray(np.asarray(colors) > 0))
        pen, width, height = ImageDraw.Draw(image), image.width - 1, image.height - 1
        for left, top, right, bottom in tile.boxes:
            if 0 <= left <= right <= 1 and 0 <= top <= bottom <= 1:  # a record may claim any number
                pen.rectangle((left * width, top * height, right * width, bottom * height), outline=_BOX, width=2)
        drawn.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    for number, line in enumerate(tile.lines):
        shown = "".join(character if character.isprintable() else "?" for character in line[:side])
        draw.text((0, side + 2 + number * _LINE_PX), shown, fill=_INK, font=ImageFont.load_default(_FONT_PX))
    return drawn


def color_mask(classes: Classes, size: tuple[int, int]) -> Image.Image:
    """Returns a mask, resized to a width and a height, with a palette whose color 0 is that of the background."""
    shown = resize_nearest(classes, size[::-1]).astype(np.int64)
    image = Image.fromarray(np.where(shown > 0, (shown - 1) % len(_CLASS_COLORS) + 1, 0).astype(np.uint8))
    image.putpalette([0, 0, 0, *_CLASS_COLORS.reshape(-1).tolist()])
    return image


def fit(image: Image.Image, side: int) -> Image.Image:
    """Scales an image to fit a square. A very small one grows by a whole factor, so that its pixels show."""
    steps = side // max(image.size)
    if steps >= _SHOW_PIXELS_FROM:
        return image.resize((image.width * steps, image.height * steps), Image.Resampling.NEAREST)
    return ImageOps.contain(image, (side, side), Image.Resampling.LANCZOS)
