"""Reads the EXIF orientation tag without trusting the file, and applies it to pixels and boxes."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from PIL import Image

Box = tuple[float, float, float, float]
"""A box: xmin, ymin, xmax, ymax as fractions of width and height."""

_ORIENTATION = 0x0112
# The integer types of a TIFF directory by number: BYTE, SHORT, LONG. Cameras write SHORT.
_FORMATS = {1: "B", 3: "H", 4: "I"}

# The operation that makes an image upright, by orientation. Pillow rotates counterclockwise.
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_orientation(exif: bytes) -> int:
    """Reads the orientation in an EXIF block, with or without its leading "Exif" header.

    Only the first directory is read, because it describes the image itself. Any damage counts as orientation 1.

    Returns:
        1 (upright) to 8.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _ = struct.unpack_from(order + "HHI", tiff, entry)
            if tag == _ORIENTATION:
                if kind not in _FORMATS:
                    return 1
                (value,) = struct.unpack_from(order + _FORMATS[kind], tiff, entry + 8)
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:  # the directory points outside the block
        return 1
    return 1


def swaps_sides(orientation: int) -> bool:
    """Returns whether the upright image is as wide as the stored one is high."""
    return orientation >= 5


def turn_image(image: Image.Image, orientation: int) -> Image.Image:
    """Turns stored pixels upright."""
    method = _TRANSPOSE.get(orientation)
    return image if method is None else image.transpose(method)


def turn_boxes(boxes: Iterable[Box], orientation: int) -> tuple[Box, ...]:
    """Turns boxes given for the stored pixels into boxes for the upright ones."""
    if orientation == 1:
        return tuple(boxes)
    return tuple(_turn_box(box, orientation) for box in boxes)


def _turn_box(box: Box, orientation: int) -> Box:
    xmin, ymin, xmax, ymax = box
    # Orientations 5 to 8 first swap the axes; then 2, 3, 6, 7 mirror x and 3, 4, 7, 8 mirror y.
    if swaps_sides(orientation):
        xmin, ymin, xmax, ymax = ymin, xmin, ymax, xmax
    if orientation in (2, 3, 6, 7):
        xmin, xmax = 1.0 - xmax, 1.0 - xmin
    if orientation in (3, 4, 7, 8):
        ymin, ymax = 1.0 - ymax, 1.0 - ymin
    return xmin, ymin, xmax, ymax
