"""Tells the images that a GPU's decoder takes from those that are left to the CPU, by their headers."""

from __future__ import annotations

import io
from typing import NamedTuple

from PIL import Image

from tfpipe.images import jpeg
from tfpipe.images.sniff import TITLES, sniff_format


class HardwareHeader(NamedTuple):
    """The facts that decide who decodes an image.

    Attributes:
        refusal: The kind of image, such as "progressive JPEG" or "PNG", if the engine does not take it; else empty.
        jpeg: The header of a JPEG; None for other formats.
    """

    refusal: str
    jpeg: jpeg.JpegHeader | None


def read_hardware_header(data: bytes, max_pixels: int) -> HardwareHeader:
    """Reads the header of an image, and tells whether a decoder in hardware takes it: baseline JPEG, RGB or gray.

    The header of a JPEG takes about 10 us; of other images only the first bytes are looked at.

    Raises:
        BadImage: The format is unknown, or the header of a JPEG is damaged or promises too many pixels.
    """
    kind = sniff_format(data)
    if kind != "jpeg":
        return HardwareHeader(TITLES[kind], None)
    header = jpeg.read_header(data, max_pixels)
    reasons = {"arithmetic JPEG": header.arithmetic, "CMYK JPEG": header.components == 4}
    reasons["progressive JPEG"] = header.progressive
    return HardwareHeader(next((reason for reason, holds in reasons.items() if holds), ""), header)


def make_baseline_jpeg() -> bytes:
    """Makes a tiny JPEG that every decoder in hardware takes, to try one with."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    return buffer.getvalue()
