"""PNG: what the chunks say, and whether each is whole.

libpng refuses a critical chunk with a wrong checksum and image data that ends early; Pillow looks at neither
and fills up with black. So both are checked here: 1 GB/s for checksums, and an inflate.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass, field

from PIL import PngImagePlugin

from tfpipe.images.errors import BadImage, check_size
from tfpipe.images.exif import read_orientation

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_DEPTHS = {
    _GREY: (1, 2, 4, 8, 16),
    _RGB: (8, 16),
    _PALETTE: (1, 2, 4, 8),
    _GREY_ALPHA: (8, 16),
    _RGBA: (8, 16),
}
_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_COMPRESSED_CHUNKS = (b"zTXt", b"iTXt", b"iCCP")

# Offset and step in x and y of each pass.
_ONE_PASS = ((0, 0, 1, 1),)
_ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)

# libpng refuses longer sides unless told otherwise, and TensorFlow does not tell it.
_MAX_SIDE = 1_000_000

# What libpng inflates of a text at most.
_MAX_TEXT = 8_000_000

_PIECE_BYTES = 1 << 18


@dataclass(slots=True)
class PngHeader:
    """What the chunks of a PNG say.

    Attributes:
        width: In pixels, as stored (not turned).
        height: In pixels, as stored.
        depth: Bits a sample: 1, 2, 4, 8 or 16.
        color_type: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA.
        interlaced: Seven passes instead of one.
        transparent: Alpha samples, or a tRNS chunk.
        animated: More frames follow the image.
        orientation: EXIF orientation, 1 to 8.
        data: The file.
        image_data: Start and end of the body of each IDAT chunk in it.
        pixel_chunks: Start and end of each chunk that says something about pixels.
    """

    width: int
    height: int
    depth: int
    color_type: int
    interlaced: bool
    transparent: bool
    animated: bool = False
    orientation: int = 1
    data: bytes = field(default=b"", repr=False)
    image_data: list[tuple[int, int]] = field(default_factory=list, repr=False)
    pixel_chunks: list[tuple[int, int]] = field(default_factory=list, repr=False)

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour; alpha is not counted."""
        return 1 if self.color_type in (_GREY, _GREY_ALPHA) else 3

    @property
    def decodable(self) -> bytes:
        """The file without the chunks that Pillow would parse, warn about or stumble over, for nothing."""
        return SIGNATURE + b"".join(self.data[start:end] for start, end in self.pixel_chunks)


def read_header(data: bytes, max_pixels: int) -> PngHeader:
    """Walk all chunks, checking the order and the checksum of the critical ones.

    Raises:
        BadImage: The file is cut or damaged, promises too many pixels, or has a text that expands enormously.
    """
    header = _read_ihdr(data)
    check_size(header.width, header.height, max_pixels)
    if max(header.width, header.height) > _MAX_SIDE:
        raise BadImage(f"{header.width} x {header.height} pixels; a side must not exceed {_MAX_SIDE}")
    position, before = len(SIGNATURE), b""
    seen: set[bytes] = set()
    while before != b"IEND":
        length, name = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        start, end = position + 8, position + 12 + length
        if end > len(data):
            raise BadImage("truncated PNG")
        if not name[0] & 0x20:  # An upper-case first letter: critical, a decoder must understand it.
            _check_order(name, before, seen, header.color_type)
            if zlib.crc32(memoryview(data)[position + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                raise BadImage(f"damaged PNG: wrong checksum in chunk {name.decode()}")
        if name in _PIXEL_CHUNKS:
            header.pixel_chunks.append((position, end))
        _read_chunk(header, name, start, end - 4)
        seen.add(name)
        position, before = end, name
    if not header.image_data:
        raise BadImage("damaged PNG: no image data")
    return header


def verify_png(header: PngHeader) -> None:
    """Inflate the image data and check that there is enough of it, as libpng does and Pillow does not.

    With the checksums known to be right, wrong filters and missing data are all that can still go wrong. So
    no pixels are computed, and nothing is kept.

    Raises:
        BadImage: The image data is damaged.
    """
    passes = _list_passes(header)
    inflater = zlib.decompressobj()
    offset, total = 0, passes[-1][1]
    try:
        for start, end in header.image_data:
            packed: bytes = header.data[start:end]
            while packed and offset < total:
                piece = inflater.decompress(packed, min(_PIECE_BYTES, total - offset))
                _check_filters(piece, offset, passes)
                offset += len(piece)
                packed = inflater.unconsumed_tail
                if not piece:
                    break
            if packed and not inflater.eof:
                inflater.decompress(packed, _PIECE_BYTES)  # The end of the stream, and a few bytes too many.
    except zlib.error as error:
        raise BadImage(f"damaged PNG: {error}") from error
    if offset < total or not inflater.eof:
        raise BadImage("damaged PNG: incomplete image data")


def open_png(data: bytes) -> PngImagePlugin.PngImageFile:
    """Open by the plugin itself: no other format is tried, no process-wide pixel limit or warning applies."""
    return PngImagePlugin.PngImageFile(io.BytesIO(data))


def as_rgba_bytes(data: bytes) -> bytes:
    """Relabel a 16-bit grey and alpha PNG as 8-bit RGBA: high and low byte of grey, then of alpha.

    Both have four bytes a pixel and PNG filters work on bytes, so the image data stays; and Pillow, which
    reads only the high bytes of such files, hands over all four.
    """
    ihdr = b"IHDR" + data[16:24] + bytes((8, _RGBA)) + data[26:29]
    return data[:12] + ihdr + struct.pack(">I", zlib.crc32(ihdr)) + data[33:]


def _read_ihdr(data: bytes) -> PngHeader:
    if len(data) < 33:
        raise BadImage("truncated PNG")
    length, name, width, height, depth, color_type, method, filters, interlace = struct.unpack_from(
        ">I4sIIBBBBB", data, 8
    )
    if (length, name) != (13, b"IHDR"):
        raise BadImage("damaged PNG: it does not begin with its header")
    if depth not in _DEPTHS.get(color_type, ()) or method or filters or interlace > 1:
        raise BadImage("damaged PNG: impossible values in its header")
    transparent = color_type in (_GREY_ALPHA, _RGBA)
    return PngHeader(width, height, depth, color_type, bool(interlace), transparent, data=data)


def _read_chunk(header: PngHeader, name: bytes, start: int, end: int) -> None:
    """Note what one chunk says; its body is `header.data[start:end]`."""
    if name == b"IDAT":
        header.image_data.append((start, end))
    elif name == b"PLTE":
        _check_palette(end - start, header)
    elif name == b"tRNS":
        header.transparent = True
    elif name == b"eXIf":
        header.orientation = read_orientation(header.data[start:end])
    elif name == b"acTL":
        header.animated = True
    elif name in _COMPRESSED_CHUNKS:
        _check_text(name, header.data[start:end])


def _check_order(name: bytes, before: bytes, seen: set[bytes], color_type: int) -> None:
    """Refuse critical chunks in an order, or of a name, that libpng refuses."""
    if name not in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
        raise BadImage(f"damaged PNG: unknown critical chunk {name!r}")
    wrong = {
        b"IHDR": before != b"",
        b"PLTE": b"PLTE" in seen or b"IDAT" in seen,
        b"IDAT": (b"IDAT" in seen and before != b"IDAT") or (color_type == _PALETTE and b"PLTE" not in seen),
        b"IEND": False,
    }
    if wrong[name]:
        raise BadImage(f"damaged PNG: chunk {name.decode()} in the wrong place")


def _check_palette(length: int, header: PngHeader) -> None:
    most = 3 * (1 << header.depth if header.color_type == _PALETTE else 256)
    if length == 0 or length % 3 or length > most:
        raise BadImage("damaged PNG: a palette of impossible length")


def _check_text(name: bytes, body: bytes) -> None:
    """Refuse a compressed text or colour profile that expands beyond what libpng reads."""
    packed = body.partition(b"\0")[2][1:]
    if name == b"iTXt":
        if body.partition(b"\0")[2][:1] != b"\1":
            return
        packed = packed[1:].partition(b"\0")[2].partition(b"\0")[2]
    try:
        too_long = len(zlib.decompressobj().decompress(packed, _MAX_TEXT + 1)) > _MAX_TEXT
    except zlib.error:  # Of no use, and skipped by every reader.
        return
    if too_long:
        raise BadImage(f"PNG with a {name.decode()} chunk that expands to more than {_MAX_TEXT} bytes")


def _list_passes(header: PngHeader) -> list[tuple[int, int, int]]:
    """Start, end and length of a row in the inflated data, of each pass that has pixels."""
    samples = {_RGB: 3, _GREY_ALPHA: 2, _RGBA: 4}.get(header.color_type, 1)
    passes, start = [], 0
    for left, top, across, down in _ADAM7 if header.interlaced else _ONE_PASS:
        width = -(-(header.width - left) // across)
        height = -(-(header.height - top) // down)
        if width > 0 and height > 0:
            row = 1 + (width * samples * header.depth + 7) // 8
            passes.append((start, start + height * row, row))
            start += height * row
    return passes


def _check_filters(piece: bytes, offset: int, passes: list[tuple[int, int, int]]) -> None:
    """Check the first byte of each row in a piece of inflated data: the five filters are numbered from 0."""
    for start, end, row in passes:
        first = start + max(0, -(-(offset - start) // row)) * row
        filters = piece[max(0, first - offset) : max(0, end - offset) : row]
        if filters and max(filters) > 4:
            raise BadImage("damaged PNG: unknown filter")
