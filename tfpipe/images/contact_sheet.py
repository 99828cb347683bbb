"""Draws a contact sheet: many images in one picture, each in a tile of the same size with its caption below.

A mask lies over its image in half-transparent colors, one for each class; class 0 is left clear, because it is usually
the background. Boxes are drawn as frames.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from tfpipe.errors import ConfigError
from tfpipe.images.errors import BadImage
from tfpipe.images.exif import Box
from tfpipe.images.masks import Classes, resize_nearest

_PAGE = "#f4f5f7"
_CARD = "#ffffff"
_EDGE = "#dfe2e7"
_WELL = "#eceef1"
_INK = "#1d2430"
_FAINT = "#737b88"
_BOX = "#ff3b30"

# Colors that are told apart also by those who confuse red and green; classes beyond their number take them in turns.
_CLASS_COLORS = np.array(
    [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167)],
    np.uint8,
)
_MASK_OPACITY = 0.55

MAX_TILES = 1000
"""The most tiles of a sheet. At 160 px each, the sheet takes about 120 MB of memory."""

_MIN_TILE_PX, _MAX_TILE_PX = 32, 1024
_MAX_COLUMNS = 40
_SHOW_PIXELS_FROM = 3  # an image that fits at least this many times into its tile is shown pixel by pixel

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True, slots=True)
class Tile:
    """One image of a sheet.

    Attributes:
        image: The decoded image, of any mode; None draws an empty tile with the words "no image".
        title: The first line of the caption, such as the image's class.
        note: The left part of the second line, smaller and fainter, such as the record's number.
        size: The right part of the second line: width and height.
        text: A line of text below, such as a caption. If a tile has one, all have room for it.
        classes: The mask of the image, [height, width] of any size; None without one.
        boxes: The boxes on the image, as fractions of its width and height.
    """

    image: Image.Image | None
    title: str
    note: str = ""
    size: str = ""
    text: str = ""
    classes: Classes | None = None
    boxes: Sequence[Box] = ()


def open_thumbnail(data: bytes, kind: str, fit_px: int) -> tuple[Image.Image, tuple[int, int]]:
    """Decodes a stored image at the size of a tile.

    Args:
        data: The bytes in the record: a file, or the pixels of a raw image, which is square.
        kind: The format: "JPEG", "PNG" or "RAW".
        fit_px: The side of the square that the image is reduced to fit. A JPEG is decoded at about that size, so a
            large photograph costs little.

    Returns:
        The image in mode "RGB" or "L", and its width and height in the record.

    Raises:
        BadImage: The image cannot be decoded.
    """
    try:
        with _view_raw(data) if kind == "RAW" else Image.open(io.BytesIO(data), formats=(kind,)) as image:
            size = image.size
            image.draft(None, (2 * fit_px, 2 * fit_px))  # concerns JPEG only; twice the size, for a smooth reduction
            plain = _convert_to_8bit(image)
            plain.thumbnail((fit_px, fit_px))
            return plain, size
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        reason = "it has another format" if isinstance(error, UnidentifiedImageError) else str(error)
        raise BadImage(f"{kind} cannot be decoded: {reason}") from error


def make_raw_image(data: bytes) -> Image.Image:
    """Returns a raw image, which is square and RGB.

    Raises:
        BadImage: The bytes do not make a square.
    """
    try:
        return _view_raw(data)
    except ValueError as error:
        raise BadImage(str(error)) from None


def draw_contact_sheet(tiles: Sequence[Tile | None], columns: int | None = None, tile_px: int = 160) -> Image.Image:
    """Draws images in tiles of one size, row by row.

    Args:
        tiles: The images with their captions; None leaves a place empty.
        columns: The number of tiles in a row. None: chosen so that the sheet is a little wider than high, with a full
            last row if possible.
        tile_px: The side of the square that each image is fitted into. At 160, eight tiles fit a laptop's screen.

    Returns:
        The sheet, in mode "RGB".

    Raises:
        ConfigError: There is no tile, or a number is out of range.
    """
    if not 1 <= len(tiles) <= MAX_TILES:
        raise ConfigError(f"A contact sheet must have from 1 to {MAX_TILES} images, got {len(tiles)}.")
    if not _MIN_TILE_PX <= tile_px <= _MAX_TILE_PX:
        raise ConfigError(f"`tile_px` must be from {_MIN_TILE_PX} to {_MAX_TILE_PX}, got {tile_px}.")
    if columns is not None and not 1 <= columns <= _MAX_COLUMNS:
        raise ConfigError(f"`columns` must be from 1 to {_MAX_COLUMNS}, got {columns}.")
    has_text = any(tile is not None and tile.text for tile in tiles)
    grid = _Grid(min(columns or _choose_columns(len(tiles)), len(tiles)), tile_px, has_text)
    sheet = Image.new("RGB", grid.get_size(len(tiles)), _PAGE)
    draw = ImageDraw.Draw(sheet)
    for number, tile in enumerate(tiles):
        if tile is not None:
            _draw_tile(sheet, draw, tile, grid, grid.get_corner(number))
    return sheet


def encode_png(image: Image.Image) -> bytes:
    """Returns an image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class _Grid:
    """The layout of a sheet, in pixels. Every distance follows from the side of a tile."""

    columns: int
    tile_px: int
    has_text: bool = False

    @property
    def pad(self) -> int:
        """The padding around the image and the caption in a card."""
        return max(4, self.tile_px // 20)

    @property
    def gap(self) -> int:
        """The distance between cards."""
        return max(6, self.tile_px // 12)

    @property
    def title_px(self) -> int:
        return max(9, self.tile_px // 12)

    @property
    def note_px(self) -> int:
        return max(8, self.tile_px // 14)

    @property
    def card(self) -> tuple[int, int]:
        caption = round(1.5 * self.title_px) + (2 if self.has_text else 1) * round(1.5 * self.note_px)
        return self.tile_px + 2 * self.pad, self.tile_px + 3 * self.pad + caption

    def get_corner(self, number: int) -> tuple[int, int]:
        """Returns the upper left corner of a card."""
        row, column = divmod(number, self.columns)
        width, height = self.card
        margin = 2 * self.gap
        return margin + column * (width + self.gap), margin + row * (height + self.gap)

    def get_size(self, count: int) -> tuple[int, int]:
        x, y = self.get_corner(self.columns - 1)[0], self.get_corner(count - 1)[1]
        return x + self.card[0] + 2 * self.gap, y + self.card[1] + 2 * self.gap


def _choose_columns(count: int) -> int:
    """Returns the columns of the sheet, between square and twice as wide, that has the fewest empty places."""
    best = math.sqrt(1.5 * count)
    choices = range(math.ceil(math.sqrt(count)), min(math.ceil(2 * math.sqrt(count)), _MAX_COLUMNS) + 1)
    return min(choices, key=lambda columns: (-count % columns, abs(columns - best)))


def _draw_tile(sheet: Image.Image, draw: ImageDraw.ImageDraw, tile: Tile, grid: _Grid, corner: tuple[int, int]) -> None:
    x, y = corner
    width, height = grid.card
    radius = grid.pad
    draw.rounded_rectangle((x, y, x + width - 1, y + height - 1), radius, fill=_CARD, outline=_EDGE)
    left, top, side = x + grid.pad, y + grid.pad, grid.tile_px
    draw.rectangle((left, top, left + side - 1, top + side - 1), fill=_WELL)
    if tile.image is None:
        font = _load_font(grid.note_px)
        draw.text((left + side // 2, top + side // 2), "no image", fill=_FAINT, font=font, anchor="mm")
    else:
        image = _draw_boxes(_lay_over(fit(tile.image, side), tile.classes), tile.boxes)
        sheet.paste(image, (left + (side - image.width) // 2, top + (side - image.height) // 2))
    below = top + side + grid.pad
    font = _load_font(grid.title_px)
    draw.text((left, below), _shorten(tile.title, font, side), fill=_INK, font=font)
    below += round(1.5 * grid.title_px)
    font = _load_font(grid.note_px)
    size = _shorten(tile.size, font, side)
    draw.text((left + side - font.getlength(size), below), size, fill=_FAINT, font=font)
    room = side - math.ceil(font.getlength(size)) - grid.pad
    draw.text((left, below), _shorten(tile.note, font, room), fill=_FAINT, font=font)
    if tile.text:
        below += round(1.5 * grid.note_px)
        draw.text((left, below), _shorten(tile.text, font, side), fill=_INK, font=font)


def _lay_over(image: Image.Image, classes: NDArray[np.integer] | None) -> Image.Image:
    """Lays a mask over an image of mode "RGB"."""
    if classes is None:
        return image
    shown = resize_nearest(classes, (image.height, image.width)).astype(np.int64)
    pixels = np.asarray(image, np.float32)
    blended = pixels + _MASK_OPACITY * (_CLASS_COLORS[(shown - 1) % len(_CLASS_COLORS)] - pixels)
    return Image.fromarray(np.where(shown[..., None] > 0, blended, pixels).astype(np.uint8))


def color_mask(classes: Classes, size: tuple[int, int]) -> Image.Image:
    """Returns a mask, resized to a width and a height, with a palette whose color 0 is the background's."""
    shown = resize_nearest(classes, size[::-1]).astype(np.int64)
    places = np.where(shown > 0, (shown - 1) % len(_CLASS_COLORS) + 1, 0)
    image = Image.fromarray(places.astype(np.uint8))
    image.putpalette([0, 0, 0, *_CLASS_COLORS.reshape(-1).tolist()])
    return image


def _draw_boxes(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    draw = ImageDraw.Draw(image)
    for left, top, right, bottom in boxes:
        if 0 <= left <= right <= 1 and 0 <= top <= bottom <= 1:  # a record may claim any number
            width, height = image.width - 1, image.height - 1
            draw.rectangle((left * width, top * height, right * width, bottom * height), outline=_BOX, width=2)
    return image


def fit(image: Image.Image, side: int) -> Image.Image:
    """Scales an image to fit a square, as RGB. A very small image grows by a whole factor, so its pixels show.

    Args:
        image: The image, of any mode.
        side: The side of the square, in pixels.
    """
    steps = side // max(image.size)
    if steps >= _SHOW_PIXELS_FROM:
        size = image.width * steps, image.height * steps
        return _convert_to_8bit(image).convert("RGB").resize(size, Image.Resampling.NEAREST)
    return ImageOps.contain(_convert_to_8bit(image).convert("RGB"), (side, side), Image.Resampling.LANCZOS)


def _convert_to_8bit(image: Image.Image) -> Image.Image:
    """Converts an image to mode "RGB" or "L". Transparent pixels become white, and 16 bits become 8."""
    if image.mode.startswith("I;16"):
        return image.convert("I").point(lambda value: value / 257).convert("L")
    if image.mode in ("RGB", "L"):
        image.load()
        return image
    if "A" in image.getbands() or "transparency" in image.info:
        upper = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", upper.size, "white"), upper).convert("RGB")
    return image.convert("RGB")


def _view_raw(data: bytes) -> Image.Image:
    side = math.isqrt(len(data) // 3)
    if not side or side * side * 3 != len(data):
        raise ValueError(f"{len(data)} bytes are not a square of RGB pixels")
    return Image.frombytes("RGB", (side, side), data)


@lru_cache(maxsize=8)
def _load_font(px: int) -> _Font:
    return ImageFont.load_default(px)


def _shorten(text: str, font: _Font, width: int) -> str:
    """Cuts a text to one line of a width in pixels, with an ellipsis at its end."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    if font.getlength(text) <= width:
        return text
    # Lengths grow with the text, so the cut is found by halving; no glyph is narrower than 1 px.
    low, high = 0, max(0, min(len(text), width))
    while low < high:
        middle = (low + high + 1) // 2
        if font.getlength(text[:middle].rstrip() + "…") <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "…" if low else ""
