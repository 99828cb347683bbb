"""Decodes to 8-bit pixels, gray or RGB, resizes them, and encodes them.

A 16-bit sample v becomes v * 255 / 65535; alpha is composited on white.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from tfpipe.format.image_form import MAX_SIDE, ImageForm
from tfpipe.images import jpeg, other_formats, png, seekable
from tfpipe.images.errors import BadImage
from tfpipe.images.exif import swaps_sides
from tfpipe.native import antialias
from tfpipe.native import jpeg as native_jpeg

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    ReadRows = Callable[[int, int], NDArray[np.uint64]]
    """Takes the first row and the row after the last; returns [rows, width, channels], 0 to 65535, alpha last."""

_ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
_GRAY_MODES = ("1", "L", "LA", "La")
_TIFF_BITS, _TIFF_PLANAR = 258, 284

# Pillow's raw modes read one byte of a 16-bit sample; this byte order reads the other. "N" is this machine's order.
_OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}

# Rows are converted in strips of about this many pixels, so that 64-bit sums take 30 MB instead of gigabytes.
_STRIP_PIXELS = 1 << 20

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
    """Decodes a file to 8-bit gray or RGB, not turned by EXIF yet (except TIFF).

    A JPEG may be reduced while decoding, but not below what an upright image of `size` needs. Returns the pixels; the
    width and height that the image takes of them, with fractions, or None for all; and the kinds of change.
    """
    if isinstance(header, jpeg.JpegHeader):
        stored = header.width, header.height
        width, height = stored if size is None else size[::-1] if swaps_sides(header.orientation) else size
        at_least = None if (width, height) == stored else (_DRAFT_MARGIN * width, _DRAFT_MARGIN * height)
        image, scale = jpeg.decode_jpeg(header, at_least)
        image, changed = flatten_alpha(image)
        return image, (header.width / scale, header.height / scale), changed
    if isinstance(header, png.PngHeader):
        image, changed = _load_png(header)
        return image, None, ("first_frame", *changed) if header.animated else changed
    image, changed = _load_other(data, kind, header)
    return image, None, changed


def resize_jpeg(header: jpeg.JpegHeader, size: tuple[int, int]) -> Image.Image | None:
    """Decodes, checks and resizes a JPEG with the native library, bit for bit as Pillow; `size` is not turned by EXIF.

    Returns None for a JPEG that Pillow must decode, or that may be damaged.
    """
    if header.components != 3 or not header.is_plain:
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
        raise BadImage("a PNG of 16-bit gray with alpha, which is not read; save it with 8 bits a sample")
    image = png.open_png(header.decodable)
    if get_16bit_raw_mode(image):
        low = png.open_png(header.decodable)
        load_low_bytes(low)
        image.load()
        return reduce_color(image, low)
    image.load()
    if is_gray_16bit(image):
        return reduce_gray(image)
    if header.depth < 8 and image.mode in ("1", "L") and "transparency" in image.info:
        # Pillow scales the samples to 8 bits, but not the value that marks transparent pixels.
        image.info["transparency"] = image.info["transparency"] * 255 // ((1 << header.depth) - 1)
    return flatten_alpha(image)


def _load_other(data: bytes, kind: str, source: other_formats.OpenedImage) -> tuple[Image.Image, tuple[str, ...]]:
    image = source.image
    tags: Any = getattr(image, "tag_v2", {})
    if tags.get(_TIFF_PLANAR, 1) == 2 and max(tags.get(_TIFF_BITS, (1,))) > 8:  # which Pillow reads wrongly
        sentence = "a TIFF of 16-bit samples in separate planes, which is not read; save it with interleaved samples"
        raise BadImage(sentence)
    raw_mode = get_16bit_raw_mode(image)
    if raw_mode.startswith("RGBa"):
        raise BadImage("16-bit samples multiplied by alpha, which cannot be read")
    low = None
    if raw_mode and not raw_mode.startswith("CMYK"):
        low = other_formats.open_plugin(data, kind)
        load_low_bytes(low)
    size = image.size
    image.load()
    if kind == "heic" and image.size != size:
        raise BadImage("damaged HEIC: its pixels have another size than its header")
    if low is not None:
        return reduce_color(image, low)
    if is_gray_16bit(image):
        return reduce_gray(image, source.inverted)
    if image.mode in ("I", "F"):
        raise BadImage("samples of 32 bits, whose white nobody knows; save them with 8 or 16 bits")
    flat, changed = flatten_alpha(image)
    return flat, (*(("depth_16_to_8",) if raw_mode else ()), *changed)


def flatten_alpha(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts a loaded image of 8 bits or fewer to gray ("L") or "RGB", and returns the kinds of change too."""
    mode = image.mode
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return image, ()
    if mode == "1":
        image = image.convert("L")
    rgba_palette = mode == "P" and image.palette is not None and image.palette.mode == "RGBA"
    if mode in _ALPHA_MODES or rgba_palette or "transparency" in image.info:
        kind, with_alpha = ("L", "LA") if mode in _GRAY_MODES else ("RGB", "RGBA")
        white = Image.new(kind, image.size, "white")
        step = max(1, _STRIP_PIXELS // image.width)
        for top in range(0, image.height, step):  # three more copies of a large image would take a gigabyte
            strip = image.crop((0, top, image.width, min(top + step, image.height))).convert(with_alpha)
            white.paste(strip.convert(kind), (0, top), strip.getchannel("A"))
        return white, ("alpha_composited",)
    if mode == "CMYK":
        return image.convert("RGB"), ("cmyk_to_rgb",)
    return (image if image.mode == "L" else image.convert("RGB")), ()


def is_gray_16bit(image: Image.Image) -> bool:
    """Returns whether the samples are 16-bit gray. Pillow holds those of a PGM in mode "I", scaled to 65535."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")


def get_16bit_raw_mode(image: Image.Image) -> str:
    """Returns Pillow's raw mode of an opened, not yet loaded image of 16-bit color samples; else ""."""
    if not image.mode.startswith(("RGB", "CMYK")):
        return ""
    tiles: Any = getattr(image, "tile", None)
    if not tiles:
        return ""
    arguments = tiles[0][3]
    raw_mode = arguments if isinstance(arguments, str) else str(arguments[0]) if arguments else ""
    return raw_mode if raw_mode[-4:-1] == ";16" else ""  # "RGB;16B", but not "BGR;16", whose pixels have 16 bits


def load_low_bytes(image: Image.Image) -> None:
    """Loads an opened image of 16-bit color samples with their low bytes instead of the high ones."""
    opened: Any = image
    opened.tile = [tile._replace(args=_swap_byte(tile.args)) for tile in opened.tile]
    opened.load()


def reduce_gray(image: Image.Image, inverted: bool = False) -> tuple[Image.Image, tuple[str, ...]]:
    """Reduces a loaded image of 16-bit gray to mode "L"; in an inverted one 0 is white."""
    import numpy as np  # only such images need it, and its import takes as long as Pillow's

    samples = np.asarray(image)
    samples = 65535 - samples if inverted else samples
    return _reduce(image, lambda top, bottom: samples[top:bottom, :, None].astype(np.uint64), "L")


def reduce_color(high: Image.Image, low: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Reduces 16-bit RGB or RGBA, given as two loaded images of high and low bytes, to mode "RGB"."""
    import numpy as np

    if high.mode not in ("RGB", "RGBA"):
        raise BadImage(f"16-bit {high.mode} samples, which cannot be read")

    def read(top: int, bottom: int) -> NDArray[np.uint64]:
        box = (0, top, high.width, bottom)
        rows = np.asarray(high.crop(box)).astype(np.uint64) * 256
        rows += np.asarray(low.crop(box))
        return rows

    return _reduce(high, read, high.mode)


def _reduce(image: Image.Image, read: ReadRows, bands: str) -> tuple[Image.Image, tuple[str, ...]]:
    """Composites on white and scales to 8 bits, strip by strip."""
    import numpy as np

    key = image.info.get("transparency")
    has_alpha = bands[-1] == "A"
    colors = len(bands) - has_alpha
    result = Image.new("L" if colors == 1 else "RGB", image.size)
    step = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, step):
        rows = read(top, min(top + step, image.height))
        values = rows[:, :, :colors]
        if has_alpha or key is not None:
            opaque = ~(values == np.asarray(key)).all(axis=-1, keepdims=True)
            alpha = rows[:, :, colors:] if has_alpha else opaque * np.uint64(65535)
            values = (values * alpha + np.uint64(65535) * (65535 - alpha) + np.uint64(32767)) // 65535
        small = ((values + 128) // 257).astype(np.uint8)
        result.paste(Image.fromarray(small[:, :, 0] if colors == 1 else small), (0, top))
    changed = ("depth_16_to_8",)
    return result, (*changed, "alpha_composited") if has_alpha or key is not None else changed


def _swap_byte(arguments: Any) -> Any:
    """Exchanges the byte order at the end of the raw mode in a tile's arguments."""
    if isinstance(arguments, str):
        return arguments[:-1] + _OTHER_BYTE[arguments[-1]]
    return (_swap_byte(arguments[0]), *arguments[1:])


def resize(image: Image.Image, size: tuple[int, int], extent: tuple[float, float] | None = None) -> Image.Image:
    """Resizes an image, or the upper left part of it, to a width and height with antialiasing.

    The filter is bicubic. It is sharper than bilinear, and rings less at edges than Lanczos, which a network would see
    and JPEG would have to encode. Colors of a photograph of 500 x 375 take the native library 0.7 ms and Pillow 2.2 ms.
    """
    width, height = image.size if extent is None else extent
    if image.mode == "RGB":
        return Image.frombytes("RGB", size, antialias.resize(image.tobytes(), image.size, size, (width, height)))
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
