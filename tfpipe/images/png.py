"""Reads PNG chunks; checks their checksums and that image data is complete, as libpng does and Pillow does not."""

import io
import struct
import zlib
from dataclasses import dataclass, field
from typing import ClassVar

from PIL import PngImagePlugin

from tfpipe.images.errors import BadImage, check_size
from tfpipe.images.exif import read_orientation
from tfpipe.system.budget import FIELDS

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_GRAY, _RGB, _PALETTE, _GRAY_ALPHA, _RGBA = 0, 2, 3, 4, 6
_DEPTHS = {_GRAY: (1, 2, 4, 8, 16), _RGB: (8, 16), _PALETTE: (1, 2, 4, 8), _GRAY_ALPHA: (8, 16), _RGBA: (8, 16)}
_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
_COMPRESSED_CHUNKS = (b"zTXt", b"iTXt", b"iCCP")

# The offset and the step in x and y of each pass.
_ONE_PASS = ((0, 0, 1, 1),)
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))

# libpng refuses longer sides unless it is configured otherwise, and TensorFlow does not configure it.
_MAX_SIDE = 1_000_000

# libpng's limit for the length of an inflated text; here for all texts of a file together.
_MAX_TEXT = 8_000_000

_PIECE_BYTES = 1 << 18


@dataclass(slots=True)
class PngHeader:
    """The properties of a PNG, from its chunks."""

    width: int  # as stored, not turned
    height: int
    depth: int  # bits a sample: 1, 2, 4, 8 or 16
    color_type: int  # 0 gray, 2 RGB, 3 palette, 4 gray and alpha, 6 RGBA
    interlaced: bool  # in seven passes
    transparent: bool  # alpha samples or a tRNS chunk
    animated: bool = False  # more frames follow
    orientation: int = 1  # of EXIF, 1 to 8
    data: bytes = field(default=b"", repr=False)  # the whole file
    image_data: list[tuple[int, int]] = field(default_factory=list, repr=False)  # bodies of IDAT
    pixel_chunks: list[tuple[int, int]] = field(default_factory=list, repr=False)  # those that concern pixels

    lossless: ClassVar[bool] = True

    @property
    def channels(self) -> int:
        """The number of channels without alpha: 1 for gray, 3 for color."""
        return 1 if self.color_type in (_GRAY, _GRAY_ALPHA) else 3

    @property
    def odd(self) -> tuple[str, ...]:
        """The properties that a plain decoder handles wrongly."""
        odd = {"turned": self.orientation != 1, "transparent": self.transparent, "16_bit": self.depth == 16}
        return tuple(name for name, holds in odd.items() if holds)

    @property
    def noticed(self) -> tuple[str, ...]:
        """The properties that a plain decoder handles wrongly, and whether it leaves out frames."""
        return (*self.odd, "animated") if self.animated else self.odd

    @property
    def decodable(self) -> bytes:
        """The file without the chunks that do not concern pixels. Hostile ones would make Pillow warn or fail."""
        return SIGNATURE + b"".join(self.data[start:end] for start, end in self.pixel_chunks)


def read_header(data: bytes, max_pixels: int) -> PngHeader:
    """Reads all chunks, and checks the order and the checksums of the critical ones."""
    if len(data) < 33:
        raise BadImage("truncated PNG")
    length, name, width, height, depth, color, method, filters, interlace = struct.unpack_from(">I4sIIBBBBB", data, 8)
    if (length, name) != (13, b"IHDR"):
        raise BadImage("damaged PNG: it does not begin with its header")
    if depth not in _DEPTHS.get(color, ()) or method or filters or interlace > 1:
        raise BadImage("damaged PNG: impossible values in its header")
    header = PngHeader(width, height, depth, color, bool(interlace), color in (_GRAY_ALPHA, _RGBA), data=data)
    check_size(header.width, header.height, max_pixels)
    if max(header.width, header.height) > _MAX_SIDE:
        raise BadImage(f"{header.width} x {header.height} pixels; a side must not exceed {_MAX_SIDE}")
    position, before, count, text_bytes = len(SIGNATURE), b"", 0, 0
    seen: set[bytes] = set()
    while before != b"IEND":
        count += 1
        if count > FIELDS.items:
            raise BadImage(f"PNG of more than {FIELDS.items:,} chunks")
        length, name = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8]
        start, end = position + 8, position + 12 + length
        if end > len(data):
            raise BadImage("truncated PNG")
        if not name[0] & 0x20:  # an upper-case first letter marks a critical chunk, which a decoder must understand
            _check_order(name, before, seen, header.color_type)
            if zlib.crc32(memoryview(data)[position + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                raise BadImage(f"damaged PNG: wrong checksum in chunk {name.decode()}")
        if name in _PIXEL_CHUNKS:
            header.pixel_chunks.append((position, end))
        _read_chunk(header, name, start, end - 4)
        if name in _COMPRESSED_CHUNKS:
            text_bytes += _inflate_text(name, data[start : end - 4], _MAX_TEXT - text_bytes)
        seen.add(name)
        position, before = end, name
    if not header.image_data:
        raise BadImage("damaged PNG: no image data")
    return header


def verify_png(header: PngHeader) -> None:
    """Inflates the image data, and checks its length and its filters; the checksums of chunks cover other damage."""
    samples = {_RGB: 3, _GRAY_ALPHA: 2, _RGBA: 4}.get(header.color_type, 1)
    passes, total = [], 0  # of each with pixels its start and end in the inflated data, and the length of a row
    for left, top, across, down in _ADAM7 if header.interlaced else _ONE_PASS:
        width, height = -(-(header.width - left) // across), -(-(header.height - top) // down)
        if width > 0 and height > 0:
            row = 1 + (width * samples * header.depth + 7) // 8
            passes.append((total, total + height * row, row))
            total += height * row
    inflater, offset = zlib.decompressobj(), 0
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
                inflater.decompress(packed, _PIECE_BYTES)  # the end of the stream, and perhaps a few bytes too many
    except zlib.error as error:
        raise BadImage(f"damaged PNG: {error}") from error
    if offset < total or not inflater.eof:
        raise BadImage("damaged PNG: incomplete image data")


def open_png(data: bytes) -> PngImagePlugin.PngImageFile:
    """Opens a file with the PNG plugin. No other format is tried, and no process-wide limit or warning applies."""
    return PngImagePlugin.PngImageFile(io.BytesIO(data))


def _read_chunk(header: PngHeader, name: bytes, start: int, end: int) -> None:
    """Stores the properties in one chunk, whose body is `header.data[start:end]`."""
    if name == b"IDAT":
        header.image_data.append((start, end))
    elif name == b"PLTE":
        most = 3 * (1 << header.depth if header.color_type == _PALETTE else 256)
        if not 0 < end - start <= most or (end - start) % 3:
            raise BadImage("damaged PNG: a palette of impossible length")
    elif name == b"tRNS":
        header.transparent = True
    elif name == b"eXIf":
        header.orientation = read_orientation(header.data[start:end])
    elif name == b"acTL":
        header.animated = True


def _check_order(name: bytes, before: bytes, seen: set[bytes], color_type: int) -> None:
    """Checks that libpng accepts the name and the position of a critical chunk."""
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


def _inflate_text(name: bytes, body: bytes, most: int) -> int:
    """Returns the number of bytes to which a compressed text or color profile expands."""
    packed = body.partition(b"\0")[2][1:]
    if name == b"iTXt":
        if body.partition(b"\0")[2][:1] != b"\1":
            return 0
        packed = packed[1:].partition(b"\0")[2].partition(b"\0")[2]
    try:
        size = len(zlib.decompressobj().decompress(packed, most + 1))
    except zlib.error:  # every reader skips such a chunk
        return 0
    if size > most:
        raise BadImage(f"PNG whose texts, up to a {name.decode()} chunk, expand to more than {_MAX_TEXT} bytes")
    return size


def _check_filters(piece: bytes, offset: int, passes: list[tuple[int, int, int]]) -> None:
    """Checks the first byte of each row in a piece of inflated data: the number of a filter, 0 to 4."""
    for start, end, row in passes:
        first = start + max(0, -(-(offset - start) // row)) * row
        filters = piece[max(0, first - offset) : max(0, end - offset) : row]
        if filters and max(filters) > 4:
            raise BadImage("damaged PNG: unknown filter")
