"""Reads the facts in an image file's header, without decoding a pixel."""

from __future__ import annotations

from dataclasses import dataclass

from tfpipe.images import jpeg, other_formats, png
from tfpipe.images.sniff import sniff_format

_MAX_PIXELS = 2**31


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The facts in the header of an image file."""

    format: str  # a key of `sniff.TITLES` in capitals
    width: int  # as stored, not turned by EXIF
    height: int  # as stored
    noticed: tuple[str, ...] = ()  # what a plain decoder handles wrongly or slowly: "turned", "cmyk", ...


def read_image_header(data: bytes) -> ImageHeader:
    """Reads the header of an image file of any format, a JPEG in 10 us; of a PNG the checksums of all chunks."""
    kind = sniff_format(data)
    with other_formats.refuse_unreadable(kind, "whose header cannot be read"):
        return _read(data, kind)


def _read(data: bytes, kind: str) -> ImageHeader:
    if kind == "jpeg":
        head = jpeg.read_header(data, _MAX_PIXELS)
        properties = {"turned": head.orientation != 1, "cmyk": head.components == 4, "progressive": head.progressive}
        return ImageHeader("JPEG", head.width, head.height, _list_noticed(properties))
    if kind == "png":
        chunks = png.read_header(data, _MAX_PIXELS)
        noticed = (*chunks.odd, *_list_noticed({"animated": chunks.animated}))
        return ImageHeader("PNG", chunks.width, chunks.height, noticed)
    opened = other_formats.open_image(data, kind, _MAX_PIXELS)
    properties = {"turned": opened.orientation != 1, "animated": opened.animated}
    return ImageHeader(kind.upper(), opened.width, opened.height, _list_noticed(properties))


def _list_noticed(properties: dict[str, bool]) -> tuple[str, ...]:
    return tuple(name for name, holds in properties.items() if holds)
