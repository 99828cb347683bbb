"""Checks that a stored image can be read. The writer checked it once; `tfpipe verify` checks it again."""

from __future__ import annotations

from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg, other_formats, png
from tfpipe.images.errors import BadImage, Surplus
from tfpipe.images.normalize import drop_padding, judge, prepare_image
from tfpipe.images.sniff import TITLES, sniff_format

_MAX_PIXELS = 2**31


def check_stored(data: bytes, kind: str, form: ImageForm) -> tuple[int, int, int]:
    """Decodes one stored image of a format, "JPEG", "PNG" or "RAW", and returns its width, height and channels."""
    if kind == "RAW":
        side = form.square or 0
        if len(data) != side * side * 3:
            raise BadImage(f"{len(data):,} bytes of raw pixels, not {side} x {side} x 3")
        return side, side, 3
    content = sniff_format(data)
    if content.upper() != kind:
        raise BadImage(f"it is a {TITLES[content]}, not a {kind}")
    return check_encoded(data, form.max_pixels)


def check_encoded(data: bytes, max_pixels: int = _MAX_PIXELS) -> tuple[int, int, int]:
    """Decodes an image file of any format. The result and the errors are those of `check_stored`."""
    kind = sniff_format(data)
    if kind not in ("jpeg", "png"):
        prepared = prepare_image(data, ImageForm(max_pixels=max_pixels))
        return prepared.width, prepared.height, prepared.channels
    with other_formats.refuse_unreadable(kind):
        if kind == "jpeg":
            header = jpeg.read_header(data, max_pixels)
            try:
                judge(header)
            except Surplus:
                drop_padding(data, header)  # all that it cannot mend is damage
            return header.width, header.height, 1 if header.components == 1 else 3
        chunks = png.read_header(data, max_pixels)
        judge(chunks)
        return chunks.width, chunks.height, chunks.channels
