"""Reads the EXIF orientation tag without trusting the file, and applies it to pixels, boxes and masks."""

import struct
from collections.abc import Iterable, Sequence

from PIL import Image

from tfpipe.images.errors import BadImage

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
    """Reads the orientation, 1 (upright) to 8, in the first directory of an EXIF block; 1 for any damage."""
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
        pass
    return 1


def swaps_sides(orientation: int) -> bool:
    """Returns whether the upright image is as wide as the stored one is high."""
    return orientation >= 5


def apply_orientation(image: Image.Image, orientation: int) -> Image.Image:
    """Turns stored pixels upright."""
    method = _TRANSPOSE.get(orientation)
    return image if method is None else image.transpose(method)


def get_upright_size(stored: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Returns the upright width and height of an image that is stored with the given ones."""
    return stored[::-1] if swaps_sides(orientation) else stored


def match_orientation(
    given: Sequence[float], stored: tuple[int, int], orientation: int, *, is_upright: bool = True
) -> int | None:
    """Returns the orientation by which a mask or boxes made for an image of the size `given` must be turned.

    Sizes are widths and heights. The given image may be a larger or smaller copy, whose sides are rounded to whole
    pixels. The result is 1 if it is a copy of the upright image, `orientation` if of the stored pixels, and None if of
    neither; where the sizes fit both, `is_upright` decides.
    """

    def measure_error(size: tuple[int, int]) -> float:
        error = abs(given[0] * size[1] - given[1] * size[0])
        return error if error <= max(*given, *size) else float("inf")

    as_upright, as_stored = measure_error(get_upright_size(stored, orientation)), measure_error(stored)
    if as_upright == as_stored:
        return None if as_stored == float("inf") else 1 if is_upright else orientation
    return 1 if as_upright < as_stored else orientation


def convert_boxes(
    boxes: Iterable[Box], frame: Sequence[float], stored: tuple[int, int], orientation: int
) -> tuple[Box, ...]:
    """Turns boxes into those of the upright image; `frame` is their image's size (zeros: pixels; empty: as stored)."""
    if not frame:
        return orient_boxes(boxes, orientation)
    width, height = get_upright_size(stored, orientation)
    if not any(frame):
        return tuple(_scale_box(box, width, height) for box in boxes)
    applied = match_orientation(frame, stored, orientation)
    if applied is None:
        raise BadImage(f"its annotation is for {frame[0]:g} x {frame[1]:g} pixels, but it has {width} x {height}")
    return orient_boxes(boxes, applied)


def _scale_box(box: Box, width: int, height: int) -> Box:
    """Returns a box in pixels as fractions, cut at the borders of its image."""
    sides = zip(box, (width, height, width, height), strict=True)
    left, top, right, bottom = (min(max(side / length, 0.0), 1.0) for side, length in sides)
    if not (left < right and top < bottom):
        raise BadImage(
            f"its box {', '.join(f'{side:g}' for side in box)} lies outside of its {width} x {height} pixels"
        )
    return left, top, right, bottom


def orient_boxes(boxes: Iterable[Box], orientation: int) -> tuple[Box, ...]:
    """Turns boxes given for the stored pixels into boxes for the upright ones."""
    oriented = []
    for xmin, ymin, xmax, ymax in boxes:
        # Orientations 5 to 8 first swap the axes; then 2, 3, 6, 7 mirror x and 3, 4, 7, 8 mirror y.
        if swaps_sides(orientation):
            xmin, ymin, xmax, ymax = ymin, xmin, ymax, xmax
        if orientation in (2, 3, 6, 7):
            xmin, xmax = 1.0 - xmax, 1.0 - xmin
        if orientation in (3, 4, 7, 8):
            ymin, ymax = 1.0 - ymax, 1.0 - ymin
        oriented.append((xmin, ymin, xmax, ymax))
    return tuple(oriented)
