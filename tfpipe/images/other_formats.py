"""Reads the formats that are never stored: GIF, BMP, WebP, TIFF, PPM, AVIF and HEIC.

They are read only once, to be converted, so this code aims at right pixels and not at speed.
"""

import importlib.util
import io
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from PIL import Image

from tfpipe.errors import TfpipeError
from tfpipe.images.errors import BadImage, check_size
from tfpipe.images.exif import read_orientation
from tfpipe.images.sniff import TITLES
from tfpipe.system.budget import BLOCKS, STRIPS, OverBudget
from tfpipe.system.extras import name_install
from tfpipe.system.fork_lock import make_fork_lock

# A plugin is imported when the first file of its format comes. Most jobs never need one.
_PLUGINS = {
    "gif": ("PIL.GifImagePlugin", "GifImageFile"),
    "bmp": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "webp": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "tiff": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "ppm": ("PIL.PpmImagePlugin", "PpmImageFile"),
    "avif": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "heic": ("pillow_heif", "HeifImageFile"),
}

_WARNING_LOCK = make_fork_lock()

_TIFF_ORIENTATION, _TIFF_PHOTOMETRIC = 274, 262
_TIFF_OFFSETS_AND_SIZES = (273, 279, 324, 325)  # the strips or tiles of all planes, one plane after the other
_TIFF_VALUE_BYTES = {3: 2, 4: 4, 5: 8, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # of types with more than one
_GIF_BLOCK = re.compile(rb"[!,;]")  # an extension, an image, the end; Pillow skips other bytes
_SEPARATOR = rb"(?:\s|#[^\r\n]*[\r\n])+"
_PPM_HEADER = re.compile(rb"P[14](?:%b\d+){2}|P\d(?:%b\d+){3}" % (_SEPARATOR, _SEPARATOR))
_PPM_HEADER_BYTES = 65_536  # Pillow reads a comment byte by byte
_LOSSY_IN_TIFF = ("jpeg", "tiff_jpeg", "webp", "jpeg2000")


@dataclass(slots=True)
class OpenedImage:
    """An opened file of a format that is not stored."""

    image: Image.Image  # not yet loaded
    width: int  # as stored, not turned
    height: int
    orientation: int  # of EXIF, 1 to 8
    upright_once_loaded: bool  # Pillow turns a TIFF upright while it loads it
    lossless: bool  # stored as PNG and not as JPEG
    animated: bool  # more frames or pages follow
    inverted: bool = False  # 0 is white, in 16-bit gray
    channels: int = 3

    @property
    def noticed(self) -> tuple[str, ...]:
        """The properties that a plain decoder handles wrongly, and whether it leaves out frames."""
        noticed = {"turned": self.orientation != 1, "animated": self.animated}
        return tuple(name for name, holds in noticed.items() if holds)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Keeps Pillow's warnings off the screen. Warning filters are process-wide, so threads take turns."""
    with _WARNING_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def refuse_unreadable(kind: str, problem: str = "") -> Iterator[None]:
    """Turns every error in the block, except tfpipe's own, into a `BadImage`. Blocks must not be nested."""
    with nullcontext() if kind in ("jpeg", "png") else quiet_pillow():
        try:
            yield
        except (BadImage, TfpipeError):
            raise
        except Exception as error:  # Pillow raises a dozen types for hostile files, MemoryError among them.
            lines = str(error).splitlines()
            problem = problem or f"that cannot be decoded: {lines[0] if lines else type(error).__name__}"
            raise BadImage(f"{TITLES[kind]} {problem}") from error


def open_image(data: bytes, kind: str, max_pixels: int) -> OpenedImage:
    """Opens a file and checks its size, without decoding."""
    if kind == "heic" and importlib.util.find_spec("pillow_heif") is None:
        raise BadImage(f"a HEIC image, which needs pillow-heif: {name_install('tfpipe[heif]')}")
    if kind == "webp":
        # Pillow allocates two canvases when it opens a WebP, so the size is checked before.
        check_size(*_read_webp_size(data), max_pixels)
    if kind == "gif":
        _check_gif_blocks(data)
    if kind == "tiff":
        _check_tiff_tags(data)
    if kind == "ppm" and len(data) > _PPM_HEADER_BYTES and not _PPM_HEADER.match(data, 0, _PPM_HEADER_BYTES):
        raise BadImage(f"PPM without a header in its first {_PPM_HEADER_BYTES:,} bytes")
    image = open_plugin(data, kind)
    check_size(*image.size, max_pixels)
    tags: Any = getattr(image, "tag_v2", {})
    upright = kind == "tiff"
    orientation = tags.get(_TIFF_ORIENTATION, 1) if upright else read_orientation(image.info.get("exif") or b"")
    orientation = orientation if orientation in range(1, 9) else 1
    width, height = image.size if not (upright and orientation >= 5) else image.size[::-1]
    return OpenedImage(
        image=image,
        width=width,
        height=height,
        orientation=orientation,
        upright_once_loaded=upright,
        lossless=_is_lossless(data, kind, image),
        animated=bool(getattr(image, "is_animated", False)),
        inverted=tags.get(_TIFF_PHOTOMETRIC) == 0,
    )


def open_plugin(data: bytes, kind: str) -> Image.Image:
    """Opens a file with the plugin of its format. No other plugin is tried, and no process-wide pixel limit applies."""
    module, name = _PLUGINS[kind]
    image: Image.Image = getattr(importlib.import_module(module), name)(io.BytesIO(data))
    if kind == "tiff":
        # An orientation in XMP does not count, but Pillow would apply it on loading.
        image.info.pop("xmp", None)
    return image


def _check_gif_blocks(data: bytes) -> None:
    """Refuses a GIF with very many blocks before its second image, over which Pillow would take quadratic time."""
    budget, at, images = BLOCKS.renew(), 13 + _find_table_bytes(data[10:11]), 0
    try:
        while images < 2 and (found := _GIF_BLOCK.search(data, at)) is not None and found[0] != b";":
            is_image, at = found[0] == b",", found.start()
            at += 11 + _find_table_bytes(data[at + 9 : at + 10]) if is_image else 2
            images += is_image
            while at < len(data) and data[at]:  # a block comes in pieces, each after its size
                budget.take(items=not is_image)
                at += 1 + data[at]
            budget.take(items=1)
            at += 1
    except OverBudget:
        raise BadImage(f"GIF of more than {BLOCKS.items:,} blocks of comments and the like") from None


def _check_tiff_tags(data: bytes) -> None:
    """Refuses a TIFF of very many strips or tiles, or whose tags share bytes, which Pillow copies for each tag."""
    order = "<" if data.startswith(b"I") else ">"
    first, number, entry = ("8xQ", "Q", "HHQQ") if data[2:4] in (b"+\0", b"\0+") else ("4xI", "H", "HHII")
    try:
        (at,) = struct.unpack_from(order + first, data)
        (count,) = struct.unpack_from(order + number, data, at)
        begin = at + struct.calcsize(order + number)
        entries = list(struct.iter_unpack(order + entry, data[begin : begin + count * struct.calcsize(order + entry)]))
    except struct.error:
        return  # Pillow says what is wrong
    if any(values > STRIPS.items for tag, _, values, _ in entries if tag in _TIFF_OFFSETS_AND_SIZES):
        raise BadImage(f"TIFF of more than {STRIPS.items:,} strips or tiles")
    sizes = [(values * _TIFF_VALUE_BYTES.get(kind, 1), offset) for _, kind, values, offset in entries]
    if sum(size for size, offset in sizes if offset + size <= len(data)) > len(data):  # other tags are not read
        raise BadImage("TIFF whose tags name more bytes than the file has")


def _find_table_bytes(flags: bytes) -> int:
    """Returns the bytes of the color table that the flags of a GIF, or of an image in it, announce."""
    return 3 << (flags[0] & 7) + 1 if flags and flags[0] & 0x80 else 0


def _is_lossless(data: bytes, kind: str, image: Image.Image) -> bool:
    if kind == "tiff":
        return image.info.get("compression") not in _LOSSY_IN_TIFF
    if kind != "webp":
        return kind not in ("avif", "heic")  # which are rarely lossless, and no header says so
    position = 12
    while position + 8 <= len(data):
        name = data[position : position + 4]
        if name in (b"VP8 ", b"VP8L"):  # the first frame, lossy or lossless
            return name == b"VP8L"
        if name == b"ANMF":
            position += 8 + 16  # the frame's own chunks follow its position, size and duration
            continue
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        position += 8 + length + (length & 1)
    return False


def _read_webp_size(data: bytes) -> tuple[int, int]:
    """Reads the width and height from the first chunk of a WebP."""
    name = data[12:16]
    if len(data) < 30:
        raise BadImage("truncated WebP")
    if name == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if name == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
