"""Pixels of an image as it is stored: all of them as an array, or those that a window shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from PIL import Image

from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg, other_formats, png, transcode
from tfpipe.images.errors import BadImage
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
        pixels: NDArray[np.uint8] = _raw_pixels(data, form).copy()
        return pixels
    kind = sniff_format(data)
    with _failing_as(kind):
        return np.array(_decode(data, kind, form.max_pixels).convert("RGB"), np.uint8)


def decode_window(data: bytes, form: ImageForm, window: tuple[int, int, int, int], ratio: int = 1) -> Image.Image:
    """Decodes what a window shows, as `decode_pixels` would.

    Pillow decodes a JPEG as a whole, so only `ratio` saves time: 1.3 ms for a photograph of 500 x 375.

    Args:
        data: What a record holds.
        form: As the manifest says.
        window: y, x, height and width in pixels of the stored image, inside it and not empty.
        ratio: Let libjpeg reduce a JPEG to 1/1, 1/2, 1/4 or 1/8 of each side. The window's sides are then rounded to
            pixels of the reduced image.

    Returns:
        "RGB", of the window's size; of a JPEG a 2nd, 4th or 8th where `ratio` says so.

    Raises:
        BadImage: As `decode_pixels`.
    """
    y, x, height, width = window
    box = x, y, x + width, y + height
    if form.encoding == "raw":
        return Image.fromarray(_raw_pixels(data, form)[y : y + height, x : x + width])
    kind = sniff_format(data)
    with _failing_as(kind):
        if kind != "jpeg":
            return _decode(data, kind, form.max_pixels).convert("RGB").crop(box)
        header = jpeg.read_header(data, form.max_pixels)
        # Rounded down, lest Pillow take the next finer reduction: it never falls short of what is asked for.
        wanted = None if ratio == 1 else (max(header.width // ratio, 1), max(header.height // ratio, 1))
        image, scale = jpeg.decode_jpeg(header, wanted)
        near_x, near_y, far_x, far_y = (int((side + scale // 2) // scale) for side in box)
        image = image.crop((near_x, near_y, max(far_x, near_x + 1), max(far_y, near_y + 1)))
        return image if image.mode == "RGB" else image.convert("RGB")  # which copies what is RGB already


def mirror(image: Image.Image) -> Image.Image:
    """Left to right. Before a bilinear resize it costs a fifth of reversing an array of three channels afterwards."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def image_of(pixels: NDArray[np.uint8]) -> Image.Image:
    """An array of shape [height, width, 3] as Pillow's image, "RGB"."""
    return Image.fromarray(pixels)


def resize_window(image: Image.Image, size: tuple[int, int], antialias: bool) -> NDArray[np.uint8]:
    """Resizes bilinearly, with half-pixel centres.

    Args:
        image: "RGB".
        size: Height and width in pixels.
        antialias: Average over what an output pixel covers where the image shrinks. Without, Pillow takes half as
            long again: it has no fast way to do less.

    Returns:
        uint8 of shape [*size, 3]; read-only.
    """
    import numpy as np

    height, width = size
    if image.size != (width, height):
        if antialias:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        else:
            whole = (0, 0, *image.size)
            image = image.transform((width, height), Image.Transform.EXTENT, whole, Image.Resampling.BILINEAR)
    return np.asarray(image)


def _raw_pixels(data: bytes, form: ImageForm) -> NDArray[np.uint8]:
    import numpy as np

    side = form.square or 0
    if len(data) != side * side * 3:
        raise BadImage(f"{len(data):,} bytes of raw pixels, not {side} x {side} x 3")
    return np.frombuffer(data, np.uint8).reshape(side, side, 3)


@contextmanager
def _failing_as(kind: str) -> Iterator[None]:
    """Whatever a decoder raises becomes a `BadImage`."""
    with nullcontext() if kind in ("jpeg", "png") else other_formats.quiet_pillow():
        try:
            yield
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
    return transcode.foreign_pixels(data, kind, other_formats.open_foreign(data, kind, max_pixels))[0]
