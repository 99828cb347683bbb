"""Decodes to 8-bit pixels, resizes them, and encodes them."""

from __future__ import annotations

import io
from typing import TypeAlias

from PIL import Image

from tfpipe.format.image_form import MAX_SIDE, ImageForm
from tfpipe.images import jpeg, other_formats, png, seekable, to_8bit
from tfpipe.images.errors import BadImage
from tfpipe.images.exif import swaps_sides
from tfpipe.native import antialias
from tfpipe.native import jpeg as native_jpeg

Header: TypeAlias = jpeg.JpegHeader | png.PngHeader | other_formats.OpenedImage

# Measured with 256 px photographs and zlib-ng: level 6 takes three times as long as level 1 and saves 3 %.
_PNG_LEVEL = 1

# The JPEG decoder's own reduction leaves at least this many times the requested pixels on each side. The better filter
# that follows then decides how the result looks.
_DRAFT_MARGIN = 2


def fit_size(width: int, height: int, form: ImageForm) -> tuple[int, int]:
    """Returns the width and height that `form` gives to an upright image of this size."""
    if form.square is not None:
        return form.square, form.square
    short, long = min(width, height), max(width, height)
    if form.resize_short is None or short <= form.resize_short:
        return width, height
    # Rounded with whole numbers, so that the result is the same on every machine.
    reduced = (2 * long * form.resize_short + short) // (2 * short)
    return (form.resize_short, reduced) if width <= height else (reduced, form.resize_short)


def read_header(data: bytes, kind: str, max_pixels: int) -> Header:
    """Reads the header of a file of any format, and checks its size, without decoding."""
    if kind == "jpeg":
        return jpeg.read_header(data, max_pixels)
    return png.read_header(data, max_pixels) if kind == "png" else other_formats.open_image(data, kind, max_pixels)


def load(
    data: bytes, kind: str, header: Header, size: tuple[int, int] | None = None
) -> tuple[Image.Image, tuple[float, float] | None, tuple[str, ...]]:
    """Decodes a file to gray or RGB of 8 bits, not turned yet (except TIFF).

    A JPEG gets at least as many pixels on a side as an upright image of `size` needs. Returns the pixels, the kinds of
    change and, between them, the width and height of the image within the pixels, with fractions; None for all.
    """
    if isinstance(header, jpeg.JpegHeader):
        return _load_jpeg(header, size)
    if isinstance(header, png.PngHeader):
        image, changed = _load_png(header)
        return image, None, ("first_frame", *changed) if header.animated else changed
    image, changed = _load_other(data, kind, header)
    return image, None, changed


def _load_jpeg(
    header: jpeg.JpegHeader, size: tuple[int, int] | None
) -> tuple[Image.Image, tuple[float, float], tuple[str, ...]]:
    stored = header.width, header.height
    width, height = stored if size is None else size[::-1] if swaps_sides(header.orientation) else size
    at_least = None if (width, height) == stored else (_DRAFT_MARGIN * width, _DRAFT_MARGIN * height)
    image, scale = jpeg.decode_jpeg(header, at_least)
    flat, changed = to_8bit.flatten_alpha(image)
    return flat, (header.width / scale, header.height / scale), changed


def resize_jpeg(header: jpeg.JpegHeader, size: tuple[int, int]) -> Image.Image | None:
    """Decodes, checks and resizes a JPEG to a stored width and height by the native library, as Pillow to the bit.

    It returns None for one that Pillow must decode, or that may be damaged.
    """
    if header.components != 3 or header.arithmetic or not header.is_plain:
        return None
    most = min(header.width // (_DRAFT_MARGIN * size[0]), header.height // (_DRAFT_MARGIN * size[1]))
    ratio = max(ratio for ratio in native_jpeg.RATIOS if ratio <= max(most, 1))
    try:
        jpeg.check_end(header)
        pixels = native_jpeg.decode_resized(header.decodable, size, ratio, header.width * header.height)
    except (native_jpeg.BadJpeg, OSError):
        return None
    return Image.frombytes("RGB", size, pixels)


def _load_png(header: png.PngHeader) -> tuple[Image.Image, tuple[str, ...]]:
    png.verify_png(header)
    if header.depth == 16 and header.color_type == 4:
        relabelled = png.open_png(png.as_rgba_bytes(header.decodable))
        relabelled.load()
        return to_8bit.reduce_gray_alpha(relabelled)
    image = png.open_png(header.decodable)
    if to_8bit.get_16bit_raw_mode(image):
        low = png.open_png(header.decodable)
        to_8bit.select_low_bytes(low)
        low.load()
        image.load()
        return to_8bit.reduce_color(image, low)
    image.load()
    if to_8bit.is_gray_16bit(image):
        return to_8bit.reduce_gray(image)
    if header.depth < 8 and image.mode in ("1", "L") and "transparency" in image.info:
        # Pillow scales the samples to 8 bits, but not the value that marks transparent pixels.
        image.info["transparency"] = image.info["transparency"] * 255 // ((1 << header.depth) - 1)
    return to_8bit.flatten_alpha(image)


def _load_other(data: bytes, kind: str, source: other_formats.OpenedImage) -> tuple[Image.Image, tuple[str, ...]]:
    image = source.image
    if planes := other_formats.open_planes(data, image):
        import numpy as np  # only 16-bit images need it, and its import takes as long as Pillow's

        return to_8bit.reduce_samples(np.stack([np.asarray(plane) for plane in planes], axis=-1), 65535)
    raw_mode = to_8bit.get_16bit_raw_mode(image)
    if raw_mode.startswith("RGBa"):
        raise BadImage("16-bit samples multiplied by alpha, which cannot be read")
    low = None
    if raw_mode and not raw_mode.startswith("CMYK"):
        low = other_formats.open_plugin(data, kind)
        to_8bit.select_low_bytes(low)
        low.load()
    size = image.size
    image.load()
    if kind == "heic" and image.size != size:
        raise BadImage("damaged HEIC: its pixels have another size than its header")
    if low is not None:
        return to_8bit.reduce_color(image, low)
    if to_8bit.is_gray_16bit(image):
        return to_8bit.reduce_gray(image, source.inverted)
    if image.mode in ("I", "F"):
        return to_8bit.reduce_32bit(image, source.inverted)
    flat, changed = to_8bit.flatten_alpha(image)
    return flat, (*(("depth_16_to_8",) if raw_mode else ()), *changed)


def resize(image: Image.Image, size: tuple[int, int], part: tuple[float, float] | None = None) -> Image.Image:
    """Resizes an image, or the upper left part of it, to a width and height with antialiasing.

    The filter is bicubic. It is sharper than bilinear, and rings less at edges than Lanczos, which a network would see
    and JPEG would have to encode. Colors of a photograph of 500 x 375 take the native library 0.7 ms and Pillow 2.2 ms.
    """
    width, height = image.size if part is None else part
    if image.mode == "RGB":
        pixels = antialias.resize(image.tobytes(), image.size, size, (width, height))
        return Image.frombytes("RGB", size, pixels)
    return image.resize(size, Image.Resampling.BICUBIC, box=(0.0, 0.0, width, height))


def encode(image: Image.Image, kind: str, form: ImageForm) -> bytes:
    """Encodes "L" or "RGB" pixels as "jpeg", "png" or "raw", without any metadata.

    EXIF is dropped because the pixels are upright now. The color profile is dropped because it may belong to another
    color space, and no training reader applies it. JPEG uses 4:2:0, as is usual for photographs (4:4:4 is a quarter
    larger and 40 % slower), and standard Huffman tables (optimized ones save 10 % and take 2.5 times as long).
    """
    if kind == "raw":
        return image.convert("RGB").tobytes()
    image.info = {}
    buffer = io.BytesIO()
    if kind == "png":
        image.save(buffer, "PNG", compress_level=_PNG_LEVEL)
    else:
        if max(image.size) > MAX_SIDE:
            raise BadImage(f"{image.width} x {image.height} pixels; a side of a JPEG must not exceed {MAX_SIDE}")
        mcu_width = 8 if image.mode == "L" else 16  # gray is not subsampled
        interval = seekable.choose_interval(image.width, mcu_width) if form.seekable else 0
        image.save(buffer, "JPEG", quality=form.quality, restart_marker_blocks=interval)
    return buffer.getvalue()
