"""Decodes all pixels or a crop of a stored image to an array, or reads its header alone."""

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfpipe.format.image_form import ImageForm
from tfpipe.images import jpeg, other_formats, transcode
from tfpipe.images.errors import BadImage
from tfpipe.images.sniff import sniff_format
from tfpipe.native import jpeg as native_jpeg

_MAX_HEADER_PIXELS = 2**31


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The properties in the header of an image file."""

    format: str  # a key of `sniff.TITLES` in capitals
    width: int  # as stored, not turned by EXIF
    height: int  # as stored
    noticed: tuple[str, ...] = ()  # what a plain decoder handles wrongly or slowly: "turned", "cmyk", ...


def read_image_header(data: bytes) -> ImageHeader:
    """Reads the header of an image file of any format: of a JPEG in 10 us, of a PNG with a check of its chunks."""
    kind = sniff_format(data)
    with other_formats.refuse_unreadable(kind, "whose header cannot be read"):
        header = transcode.read_header(data, kind, _MAX_HEADER_PIXELS)
        return ImageHeader(kind.upper(), header.width, header.height, header.noticed)


def decode_pixels(data: bytes, form: ImageForm) -> NDArray[np.uint8]:
    """Decodes one stored image to uint8 [height, width, 3], in new memory.

    The pixels are those of the file, not turned by EXIF, as in the input pipeline: images that tfpipe wrote are
    upright, and boxes that another program wrote are for the pixels as stored. Gray becomes three equal channels, 16
    bits become 8, CMYK becomes RGB, and alpha is composited on white.
    """
    if form.encoding == "raw":
        side = form.square or 0
        pixels: NDArray[np.uint8] = view_raw_pixels(np.frombuffer(data, np.uint8), (side, side)).copy()
        return pixels
    kind = sniff_format(data)
    with other_formats.refuse_unreadable(kind):
        return np.array(_decode(data, kind, form.max_pixels), np.uint8)


def decode_crop(data: bytes, form: ImageForm, crop_box: tuple[int, int, int, int], ratio: int = 1) -> NDArray[np.uint8]:
    """Decodes a crop (y, x, height, width) of a stored file to uint8 [height, width, 3]; a JPEG is reduced by `ratio`.

    The native library decodes JPEGs, and Pillow the files that the library refuses. `ratio` is 1, 2, 4 or 8; the box is
    then rounded to pixels of the reduced image.
    """
    y, x, height, width = crop_box
    box = x, y, x + width, y + height
    kind = sniff_format(data)
    if kind == "jpeg" and height * width <= form.max_pixels:
        pixels = np.empty((*native_jpeg.reduce_box(crop_box, ratio), 3), np.uint8)
        with contextlib.suppress(native_jpeg.BadJpeg):  # Pillow takes it, or says what is wrong
            native_jpeg.decode(data, crop_box, pixels, ratio=ratio, max_pixels=form.max_pixels)
            return pixels
    with other_formats.refuse_unreadable(kind):
        if kind != "jpeg":
            return np.asarray(_decode(data, kind, form.max_pixels).crop(box))
        header = jpeg.read_header(data, form.max_pixels)
        # Rounded down, because Pillow never falls below the requested size: rounded up, it would reduce less.
        reduced_size = None if ratio == 1 else (max(header.width // ratio, 1), max(header.height // ratio, 1))
        image, scale = jpeg.decode_jpeg(header, reduced_size)
        near_x, near_y, far_x, far_y = (int((side + scale // 2) // scale) for side in box)
        image = image.crop((near_x, near_y, max(far_x, near_x + 1), max(far_y, near_y + 1)))
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))  # it would copy an RGB image


def make_image(pixels: NDArray[np.uint8]) -> Image.Image:
    """Converts an array [height, width, 3] to Pillow's image, "RGB"."""
    return Image.fromarray(pixels)


def view_raw_pixels(data: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Returns raw pixels as [height, width, 3], without a copy."""
    height, width = size
    if len(data) != height * width * 3:
        raise BadImage(f"{len(data):,} bytes of raw pixels, not {height} x {width} x 3")
    return data.reshape(height, width, 3)


def _decode(data: bytes, kind: str, max_pixels: int) -> Image.Image:
    return transcode.load(data, kind, transcode.read_header(data, kind, max_pixels))[0].convert("RGB")
