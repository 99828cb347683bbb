"""Pixels of an image as it is stored, as an array."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from PIL import Image

from tfpipe.format.form import ImageForm
from tfpipe.images import foreign, jpeg, png, transcode
from tfpipe.images.bad import BadImage
from tfpipe.images.exif import swaps_sides
from tfpipe.images.sniff import TITLES, sniff_format

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def decode_pixels(data: bytes, form: ImageForm) -> NDArray[np.uint8]:
    """Decodes one stored image.

    The pixels are those of the file, not turned by EXIF, as in the input pipeline: what tfpipe writes is upright, and
    boxes that others wrote are for the pixels as they are. Grey becomes three equal channels, 16 bits become 8, CMYK
    becomes RGB, and alpha is composited on white.

    Args:
        data: What a record holds: an image file of any known format, or raw pixels where `form` says so.
        form: As the manifest says.

    Returns:
        uint8 of shape [height, width, 3], in memory of its own.

    Raises:
        BadImage: It is damaged, of no known format, or has more pixels than `form` allows.
    """
    import numpy as np

    if form.encoding == "raw":
        side = form.square or 0
        if len(data) != side * side * 3:
            raise BadImage(f"{len(data):,} bytes of raw pixels, not {side} x {side} x 3")
        pixels: NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(side, side, 3).copy()
        return pixels
    kind = sniff_format(data)
    with nullcontext() if kind in ("jpeg", "png") else foreign.quiet_pillow():
        try:
            return np.array(_decode(data, kind, form.max_pixels).convert("RGB"), np.uint8)
        except BadImage:
            raise
        except Exception as error:  # Pillow raises a dozen kinds for hostile files, MemoryError among them.
            lines = str(error).splitlines()
            raise BadImage(
                f"{TITLES[kind]} that cannot be decoded: {lines[0] if lines else type(error).__name__}"
            ) from error


def _decode(data: bytes, kind: str, max_pixels: int) -> Image.Image:
    if kind == "jpeg":
        header = jpeg.read_header(data, max_pixels)
        size = header.width, header.height
        return transcode.jpeg_pixels(header, size[::-1] if swaps_sides(header.orientation) else size)[0]
    if kind == "png":
        return transcode.png_pixels(png.read_header(data, max_pixels))[0]
    return transcode.foreign_pixels(data, kind, foreign.open_foreign(data, kind, max_pixels))[0]
