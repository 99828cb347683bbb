"""Seekable JPEGs: restart markers at an interval that divides a row, so that a decoder can begin at each of them.

An MCU is the unit in which a JPEG is coded, 8 x 8 up to 32 x 32 pixels.
"""

from tfpipe.images.errors import BadImage
from tfpipe.native import jpeg

# A marker costs about two bytes, and a crop decodes half an interval in vain on each side.
_MOST_PIXELS, _LEAST_PIXELS = 96, 24


def choose_interval(width: int, mcu_width: int) -> int:
    """Returns the MCUs between two restart markers: the largest divisor of a row with 24 to 96 pixels, else the row."""
    mcus_per_row = -(-width // mcu_width)
    longest, shortest = _MOST_PIXELS // mcu_width, -(-_LEAST_PIXELS // mcu_width)
    return next((mcus for mcus in range(longest, shortest - 1, -1) if mcus_per_row % mcus == 0), mcus_per_row)


def is_seekable(data: bytes) -> bool:
    """Returns whether a JPEG has one sequential scan, with a marker after each interval. Nothing is decoded."""
    return jpeg.find_intervals(data) > 0


def has_chosen_interval(data: bytes) -> bool:
    """Returns whether a JPEG is seekable and has the very interval that `choose_interval` gives it."""
    return jpeg.find_intervals(data) == 2


def make_seekable(data: bytes, max_pixels: int) -> bytes | None:
    """Rewrites a JPEG as a seekable one with the same pixels; returns None for a rare kind without such a form."""
    try:
        return jpeg.make_seekable(data, max_pixels)
    except jpeg.UnsupportedJpeg:
        return None
    except jpeg.BadJpeg as error:
        raise BadImage(f"damaged JPEG: {error}") from error
