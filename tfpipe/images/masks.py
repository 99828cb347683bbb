"""Masks of images: gray PNGs of 8 or 16 bits, from which every decoder reads the same classes."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfpipe.format.schema import Schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tensors.tensor_stats import MaskStats
from tfpipe.images import png
from tfpipe.images.errors import BadImage
from tfpipe.images.exif import apply_orientation, get_upright_size, match_orientation, swaps_sides

Classes: TypeAlias = NDArray[np.integer[Any]]
"""The class of each pixel: uint8 or uint16 [height, width]."""

_GRAY, _PALETTE = 0, 3
_COLORS = {2: "red, green and blue", 4: "gray and alpha", 6: "red, green, blue and alpha"}
_PNG_LEVEL = 6


def read_mask(data: bytes, max_pixels: int) -> Classes:
    """Reads the classes of a PNG, gray values or palette indices: uint8 [height, width], or uint16 for 16 bits."""
    return _decode_mask(_read_mask_header(data, max_pixels))


def encode_mask(classes: Classes) -> bytes:
    """Encodes classes, uint8 or uint16 [height, width], as the PNG that is stored."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(classes)).save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def count_masks(stats: ShardStats, schema: Schema, features: Mapping[str, Any], max_pixels: int) -> None:
    """Adds the masks of a record to the statistics of its shard."""
    for spec in schema.masks:
        value = features.get(spec.name)
        data = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(data, bytes):
            classes = read_mask(data, max_pixels)  # before the feature has an entry: a damaged mask adds none
            stats.masks.setdefault(spec.name, MaskStats()).add(classes)


def check_mask(data: bytes, max_pixels: int) -> tuple[int, int]:
    """Decodes a stored mask; returns its width and height."""
    header = _read_mask_header(data, max_pixels)
    if not _is_plain(header):
        raise BadImage("it is not a gray PNG of 8 or 16 bits")
    _decode_mask(header)
    return header.width, header.height


def _read_mask_header(data: bytes, max_pixels: int) -> png.PngHeader:
    """Reads the header of a mask."""
    if not data.startswith(png.SIGNATURE):
        raise BadImage("it is not a PNG")
    header = png.read_header(data, max_pixels)
    if header.color_type not in (_GRAY, _PALETTE):
        raise BadImage(f"a mask must have one channel, and this PNG has {_COLORS[header.color_type]}")
    return header


def _is_plain(header: png.PngHeader) -> bool:
    """Returns whether every decoder reads the classes of the mask."""
    return header.color_type == _GRAY and header.depth >= 8 and not header.transparent and not header.animated


def _decode_mask(header: png.PngHeader) -> Classes:
    """Decodes the mask that a header belongs to, as `read_mask` does."""
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


def prepare_mask(
    data: bytes,
    stored: tuple[int, int],
    orientation: int,
    size: tuple[int, int],
    frame: Sequence[float],
    max_pixels: int,
) -> bytes:
    """Checks a mask, made for stored or upright pixels, and turns and resizes it as its image was.

    Sizes are widths and heights: `stored` of the image in its file, before it was turned by `orientation`; `size` of
    the image in the record; `frame` of the image that the mask was made for, as for boxes.
    """
    try:
        header = _read_mask_header(data, max_pixels)
        classes = _decode_mask(header)
    except BadImage as error:
        raise BadImage(f"its mask: {error.reason}") from error
    given, applied = (header.width, header.height), None
    if given in (stored, get_upright_size(stored, orientation), tuple(frame)):
        applied = match_orientation(given, stored, orientation, is_upright=bool(frame))
    if applied is None:
        note = ", before EXIF turns it" if swaps_sides(orientation) else ""
        raise BadImage(f"its mask has {given[0]} x {given[1]} pixels, the image {stored[0]} x {stored[1]}{note}")
    if size == given and applied == 1 and _is_plain(header):
        return data
    classes = np.asarray(apply_orientation(Image.fromarray(np.ascontiguousarray(classes)), applied))
    return encode_mask(resize_nearest(classes, size[::-1]))


def resize_nearest(classes: Classes, size: tuple[int, int]) -> Classes:
    """Resizes classes to a height and a width: each pixel takes the class under its center."""
    height, width = classes.shape
    return crop_nearest(classes, (0, 0, height, width), size)


def crop_nearest(classes: Classes, crop_box: tuple[int, int, int, int], size: tuple[int, int]) -> Classes:
    """Cuts a box (y, x, height, width) out of classes and resizes it: each pixel takes the class under its center."""
    y, x, height, width = crop_box
    rows = y + (2 * np.arange(size[0]) + 1) * height // (2 * size[0])
    columns = x + (2 * np.arange(size[1]) + 1) * width // (2 * size[1])
    return classes[rows[:, None], columns]
