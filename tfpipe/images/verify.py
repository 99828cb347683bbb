"""Whether an image that is stored can be read: what the writer has seen to, seen to again."""

from __future__ import annotations

from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg, png
from tfpipe.images.errors import BadImage
from tfpipe.images.normalize import prepare_image
from tfpipe.images.sniff import TITLES, sniff_format

_MOST_PIXELS = 2**31


def check_stored(data: bytes, kind: str, form: ImageForm) -> tuple[int, int, int]:
    """Decodes one stored image.

    Args:
        data: What the record holds.
        kind: "JPEG", "PNG" or "RAW", as the record says.
        form: As the manifest says.

    Returns:
        Width, height and channels of what is stored.

    Raises:
        BadImage: It is of another kind, is damaged, or has too many pixels.
    """
    if kind == "RAW":
        side = form.square or 0
        if len(data) != side * side * 3:
            raise BadImage(f"{len(data):,} bytes of raw pixels, not {side} x {side} x 3")
        return side, side, 3
    found = sniff_format(data)
    if found.upper() != kind:
        raise BadImage(f"it is a {TITLES[found]}, not a {kind}")
    return check_encoded(data, form.max_pixels)


def check_encoded(data: bytes, max_pixels: int = _MOST_PIXELS) -> tuple[int, int, int]:
    """Decodes an image file of any format; arguments, result and errors as with `check_stored`."""
    kind = sniff_format(data)
    try:
        if kind == "jpeg":
            header = jpeg.read_header(data, max_pixels)
            jpeg.verify_jpeg(header)
            return header.width, header.height, 1 if header.components == 1 else 3
        if kind == "png":
            chunks = png.read_header(data, max_pixels)
            png.verify_png(chunks)
            return chunks.width, chunks.height, chunks.channels
        prepared = prepare_image(data, ImageForm(max_pixels=max_pixels))
        return prepared.width, prepared.height, prepared.channels
    except BadImage:
        raise
    except Exception as error:  # Pillow raises a dozen kinds for hostile files, MemoryError among them.
        lines = str(error).splitlines()
        raise BadImage(
            f"{TITLES[kind]} that cannot be decoded: {lines[0] if lines else type(error).__name__}"
        ) from error
