"""Reads JPEG headers, and decodes with checks, since Pillow hides libjpeg's warnings."""

import functools
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from PIL import Image, JpegImagePlugin

from tfpipe.images.errors import BadImage, check_size
from tfpipe.images.exif import read_orientation
from tfpipe.system.budget import BLOCKS, SCANS

EOI = b"\xff\xd9"
TRUNCATED = "truncated JPEG"
SIZES_DIFFER = "damaged JPEG: decoders do not agree about its size"

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_APP0, _APP1, _APP14, _APP15, _COM = 0xE0, 0xE1, 0xEE, 0xEF, 0xFE
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # without DHT, JPG, DAC
_HUFFMAN = frozenset((0xC0, 0xC1, 0xC2))
_PROGRESSIVE = 0xC2
_TABLES = frozenset((0xC4, 0xDB, 0xDD))  # DHT, DQT, DRI
_LEAST_APPLICATION_BYTES = 11  # of JFIF's or Adobe's segment: Pillow reads the version that ends there

_MAX_SCANS = 200
_MAX_SEGMENTS = BLOCKS.items  # millions of empty ones take seconds
_TOO_MANY_SEGMENTS = f"JPEG of more than {_MAX_SEGMENTS:,} segments"

# TEM and RST0..7 have no length. Between segments decoders skip them, and all bytes that are no marker.
_NEXT_SEGMENT = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
_NO_SEGMENTS = frozenset((0x00, 0x01, *range(0xD0, 0xD8), 0xFF))

# Inside entropy-coded data 0xFF may be followed by a stuffed zero, a fill byte or the number of a restart.
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The properties of a JPEG that stand before its first scan."""

    width: int  # as stored, not turned
    height: int  # as stored
    components: int  # 1 gray, 3 color, 4 CMYK or YCCK
    component_ids: bytes  # by which scans name them
    progressive: bool  # several scans refine the whole image
    crops_wrongly: bool  # with 4:1:0 and the like, libjpeg's crops at 1/2 or 1/4 show stray memory
    orientation: int  # of EXIF, 1 to 8
    scan_start: int  # the offset of the first start-of-scan marker
    is_plain: bool  # Pillow accepts the headers if the native library does, and reads the same from them
    decodable: bytes  # the file without segments that do not affect pixels: on these Pillow may fail or take long

    lossless: ClassVar[bool] = False

    @property
    def channels(self) -> int:
        """The number of channels once CMYK is RGB: 1 for gray, 3 for color."""
        return 1 if self.components == 1 else 3

    @property
    def noticed(self) -> tuple[str, ...]:
        """The properties that a plain decoder handles wrongly or slowly."""
        noticed = {"turned": self.orientation != 1, "cmyk": self.components == 4, "progressive": self.progressive}
        return tuple(name for name, holds in noticed.items() if holds)


def read_header(data: bytes, max_pixels: int) -> JpegHeader:
    """Reads a JPEG up to its first scan, in about 10 us."""
    frame, frame_kind, orientation, is_plain, behind = b"", 0, 1, True, 2
    kept = [data[:2]]
    for kind, start, end in _header_segments(data):
        is_plain, behind = is_plain and start == behind, end
        if kind in _FRAMES:
            if frame:
                raise BadImage("damaged JPEG: two frame headers")
            frame, frame_kind = data[start + 4 : end], kind
        elif kind == _APP1 and orientation == 1 and data.startswith(b"Exif\0\0", start + 4):
            orientation = read_orientation(data[start + 4 : end])
        elif kind == _SOS:
            break
        if kind != _COM and not (_APP0 < kind <= _APP15 and kind != _APP14):
            kept.append(data[start:end])
            is_usual = kind in _TABLES or kind in _HUFFMAN
            is_plain = is_plain and (is_usual or (kind >= _APP0 and end - start >= _LEAST_APPLICATION_BYTES))
    width, height, component_ids = _read_frame(frame, frame_kind)
    check_size(width, height, max_pixels)
    progressive = frame_kind == _PROGRESSIVE
    most = min(_MAX_SCANS, SCANS.items // (width * height))
    if progressive and (scans := data.count(b"\xff\xda")) > most:
        raise BadImage(f"progressive JPEG of {scans} scans of {width:,} x {height:,} pixels, more than are decoded")
    return JpegHeader(
        width=width,
        height=height,
        components=len(component_ids),
        component_ids=component_ids,
        progressive=progressive,
        crops_wrongly=_crops_wrongly(frame[7::3]),
        orientation=orientation,
        scan_start=start,
        is_plain=is_plain,
        decodable=data if sum(map(len, kept)) == start else b"".join((*kept, data[start:])),
    )


def check_end(header: JpegHeader) -> None:
    """Raises an `OSError` if a JPEG has no end marker."""
    data = header.decodable
    if not data.endswith(EOI) and data.find(EOI, data.rfind(b"\xff\xda")) < 0:
        # Pillow notices this in 19 of 20 files only, depending on how many bits its decoder has read ahead.
        raise OSError("no end marker")


def open_jpeg(header: JpegHeader) -> JpegImagePlugin.JpegImageFile:
    """Opens a file with the JPEG plugin alone, without process-wide limits. No end marker is an `OSError`."""
    check_end(header)
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(header.decodable))
    if image.size != (header.width, header.height):
        raise BadImage(SIZES_DIFFER)
    if image.mode == "CMYK" and "adobe" not in image.info:
        # Pillow takes all CMYK for Adobe's, where 255 is no ink. Other decoders do so only with Adobe's segment.
        image.tile = [tile._replace(args=("CMYK", "")) for tile in image.tile]
    return image


def decode_jpeg(header: JpegHeader, at_least: tuple[int, int] | None = None) -> tuple[Image.Image, float]:
    """Decodes a JPEG, and returns the reduction too: the largest of 1, 2, 4 and 8 that leaves `at_least` (w, h)."""
    image = open_jpeg(header)
    if at_least is not None:
        image.draft(None, at_least)
    scale = image.decoderconfig[0] if image.decoderconfig else 1
    image.load()
    return image, scale


def verify_by_pillow(header: JpegHeader) -> None:
    """Decodes every byte of a file once, and refuses what TensorFlow calls an error.

    At 1/8 of the size and without color libjpeg still reads all entropy-coded data. So it refuses exactly the files
    that a full decode refuses, in two thirds of the time. TensorFlow reads up to the end marker, which Pillow does not.
    """
    image = open_jpeg(header)
    image.draft("L", (1, 1))
    image.load()
    data = header.decodable
    *_, (_, first_scan, _) = _header_segments(data)
    *_, (_, _, end) = _segments_of_scans(data, first_scan)
    match = _NEXT_MARKER.search(data, end)
    if match is None or data[match.start() + 1] != _EOI:
        raise BadImage("damaged JPEG: a segment among its image data is cut off")


def scans_are_whole(data: bytes, header: JpegHeader) -> bool:
    """Returns whether the scans that have begun carry every bit of every coefficient of every component."""
    missing = {component: set(range(64)) for component in header.component_ids}
    for kind, start, end in _segments_of_scans(data, header.scan_start):
        if kind != _SOS:
            continue
        scan = data[start + 4 : end]
        count = scan[0] if scan else 0
        if len(scan) != 4 + 2 * count:
            return False
        first, last, bits_left = scan[-3], scan[-2], scan[-1] & 15
        for component in scan[1 : 1 + 2 * count : 2]:
            if not header.progressive:
                missing.pop(component, None)
            elif bits_left == 0 and component in missing:
                missing[component].difference_update(range(first, last + 1))
    return not any(missing.values())


def _segments_of_scans(data: bytes, position: int) -> Iterator[tuple[int, int, int]]:
    """Yields the marker, offset and end of each whole segment from the first start of scan on, up to the end marker."""
    for _ in range(_MAX_SEGMENTS):
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if end > len(data):
            return
        yield data[position + 1], position, end
        match = _NEXT_MARKER.search(data, end)
        if match is None or data[match.start() + 1] == _EOI:
            return
        position = match.start()
    raise BadImage(_TOO_MANY_SEGMENTS)


def _header_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yields marker, offset and end of each segment up to the first scan; bytes between are skipped, as in libjpeg."""
    position, size = 2, len(data)
    for _ in range(_MAX_SEGMENTS):
        kind = data[position + 1] if position + 4 <= size and data[position] == 0xFF else 0
        if kind in _NO_SEGMENTS:
            match = _NEXT_SEGMENT.search(data, position)
            if match is None or match.start() + 4 > size:
                raise BadImage("truncated JPEG: it ends before the image data")
            position, kind = match.start(), data[match.start() + 1]
        if kind == _EOI:
            raise BadImage("damaged JPEG: no image data")
        if kind == _SOI:
            raise BadImage("damaged JPEG: it begins twice")
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        end = position + 2 + length
        if length < 2:
            raise BadImage("damaged JPEG: a segment of impossible length")
        if end > size:
            raise BadImage("truncated JPEG: it ends before the image data")
        yield kind, position, end
        if kind == _SOS:
            return
        position = end
    raise BadImage(_TOO_MANY_SEGMENTS)


def _read_frame(frame: bytes, kind: int) -> tuple[int, int, bytes]:
    """Returns width, height and component identifiers of a start-of-frame segment."""
    if not frame:
        raise BadImage("damaged JPEG: no frame header")
    if kind not in _HUFFMAN:
        raise BadImage(f"JPEG of a rare kind (SOF{kind - 0xC0}), which decoders do not read")
    if len(frame) < 6 or len(frame) != 6 + 3 * frame[5]:
        raise BadImage("damaged JPEG: a frame header of impossible length")
    if frame[0] != 8:
        raise BadImage(f"JPEG of {frame[0]} bits a sample; 8 can be read")
    if frame[5] not in (1, 3, 4):
        raise BadImage(f"JPEG of {frame[5]} components; 1, 3 and 4 can be read")
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    return width, height, frame[6::3]


@functools.lru_cache
def _crops_wrongly(factors: bytes) -> bool:
    """Returns `JpegHeader.crops_wrongly` for sampling factors, and refuses factors that libjpeg cannot decode."""
    sides = [(factor >> 4, factor & 15) for factor in factors]
    across, down = (max(lengths) for lengths in zip(*sides, strict=True))
    if not all(1 <= h <= 4 and 1 <= v <= 4 and across % h == 0 and down % v == 0 for h, v in sides):
        raise BadImage("JPEG whose sampling factors do not divide each other, which no decoder reads")
    shares = [(across // h, down // v) for h, v in sides]  # the pixels of the image per sample
    return any(4 in share and share[0] % 2 == share[1] % 2 == 0 for share in shares)
