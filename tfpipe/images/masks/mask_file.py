"""The PNG file of a mask: its classes, as an array and back.

A mask is stored as a gray PNG of 8 or 16 bits, whose values are the classes. So every decoder gives the classes. What
comes with a palette or with fewer bits is encoded anew, with the same classes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfpipe.format.schema import Schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.images import png
from tfpipe.images.errors import BadImage

Classes: TypeAlias = NDArray[np.integer[Any]]
"""The class of each pixel: uint8 or uint16 [height, width]."""

_GRAY, _PALETTE = 0, 3
_COLORS = {2: "red, green and blue", 4: "gray and alpha", 6: "red, green, blue and alpha"}
_PNG_LEVEL = 6


def read_mask(data: bytes, max_pixels: int) -> Classes:
    """Reads the classes of a mask.

    Args:
        data: The PNG. Of a gray one the values are the classes, of one with a palette the indices.
        max_pixels: The largest number of pixels.

    Returns:
        uint8 [height, width], or uint16 for 16 bits.

    Raises:
        BadImage: The file is not a PNG with one channel, or it is damaged or too large.
    """
    return decode_mask(read_mask_header(data, max_pixels))


def encode_mask(classes: Classes) -> bytes:
    """Encodes classes, uint8 or uint16 [height, width], as the PNG that is stored."""
    buffer = io.BytesIO()
    make_mask_image(classes).save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def count_masks(stats: ShardStats, schema: Schema, features: Mapping[str, Any], max_pixels: int) -> None:
    """Adds the masks of a record that was checked or decoded.

    Raises:
        BadImage: A mask is damaged.
    """
    for spec in schema.masks:
        value = features.get(spec.name)
        data = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(data, bytes):
            stats.add_mask(spec.name, read_mask(data, max_pixels))


def check_mask(data: bytes, max_pixels: int) -> tuple[int, int]:
    """Decodes a stored mask; returns its width and height.

    Raises:
        BadImage: It is not a gray PNG of 8 or 16 bits, or it is damaged.
    """
    header = read_mask_header(data, max_pixels)
    if not is_plain(header):
        raise BadImage("it is not a gray PNG of 8 or 16 bits")
    decode_mask(header)
    return header.width, header.height


def read_mask_header(data: bytes, max_pixels: int) -> png.PngHeader:
    """Reads the header of a mask.

    Raises:
        BadImage: The file is not a PNG with one channel, or it is damaged or too large.
    """
    if not data.startswith(png.SIGNATURE):
        raise BadImage("it is not a PNG")
    header = png.read_header(data, max_pixels)
    if header.color_type not in (_GRAY, _PALETTE):
        raise BadImage(f"a mask must have one channel, and this PNG has {_COLORS[header.color_type]}")
    return header


def is_plain(header: png.PngHeader) -> bool:
    """Returns whether every decoder gives the classes."""
    return header.color_type == _GRAY and header.depth >= 8 and not header.transparent and not header.animated


def decode_mask(header: png.PngHeader) -> Classes:
    """Decodes the mask of a header; the result is that of `read_mask`.

    Raises:
        BadImage: It is damaged.
    """
    png.verify_png(header)
    try:
        image = png.open_png(header.decodable)
        image.load()
        values: Classes = np.asarray(image)
    except (OSError, ValueError, SyntaxError) as error:
        raise BadImage(f"damaged PNG: {error}") from error
    if header.depth == 16:
        return values.astype(np.uint16)
    if header.color_type == _GRAY and header.depth in (2, 4):  # Pillow scales them to 8 bits
        values = values // (255 // (2**header.depth - 1))
    return values.astype(np.uint8)  # one bit comes as bool


def make_mask_image(classes: Classes) -> Image.Image:
    """Converts classes to Pillow's image of 8 or 16 bits."""
    return Image.fromarray(np.ascontiguousarray(classes))
