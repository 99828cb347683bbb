"""JPEG: what the header says, whether the file is whole, and decoding without surprises.

Pillow hides libjpeg's warnings, and libjpeg pads missing data with grey once it sees an end marker. So
whether a file that lacks its end is otherwise whole has to be found out from the pixels: see `append_eoi`.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image, JpegImagePlugin

from tfpipe.images.errors import BadImage, check_size
from tfpipe.images.exif import read_orientation

EOI = b"\xff\xd9"

_SOS, _EOI, _APP0, _APP1, _APP14, _APP15, _COM = 0xDA, 0xD9, 0xE0, 0xE1, 0xEE, 0xEF, 0xFE
_STANDALONE = frozenset((0x01, *range(0xD0, 0xD9)))  # TEM, RST0..7, SOI: no length follows
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # without DHT, JPG, DAC
_HUFFMAN = frozenset((0xC0, 0xC1, 0xC2))
_ARITHMETIC = frozenset((0xC9, 0xCA))
_PROGRESSIVE = frozenset((0xC2, 0xCA))

# Ten scans are usual. A small file of thousands of scans over a large image would keep a decoder busy.
_MAX_SCANS = 200

# Inside entropy-coded data 0xFF may be followed by a stuffed zero, a fill byte or the number of a restart.
_NEXT_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")

# Stand-ins for missing data. They begin with different bits, so one at least differs from what libjpeg would
# pad with, and go on without pattern for long enough to spoil several blocks. No 0xFF: it would be a marker.
_FILLERS = tuple(
    first + b"".join(hashlib.sha256(first + bytes([i])).digest() for i in range(8)).replace(b"\xff", b"\x7f")
    for first in (b"\x00", b"\x55", b"\xaa", b"\xe6")
)


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What precedes the first scan of a JPEG.

    Attributes:
        width: In pixels, as stored (not turned).
        height: In pixels, as stored.
        components: 1 grey, 3 colour, 4 CMYK or YCCK.
        component_ids: Their identifiers, by which scans name them.
        progressive: Several scans refine the whole image.
        arithmetic: Arithmetic instead of Huffman coding, which few decoders know.
        orientation: EXIF orientation, 1 to 8.
        scan_start: Offset of the first start-of-scan marker.
        decodable: The file without the segments that say nothing about pixels. Pillow would parse them, and
            warn about or stumble over hostile ones.
    """

    width: int
    height: int
    components: int
    component_ids: bytes
    progressive: bool
    arithmetic: bool
    orientation: int
    scan_start: int
    decodable: bytes


def read_header(data: bytes, max_pixels: int) -> JpegHeader:
    """Read a JPEG up to its first scan; about 10 us.

    Raises:
        BadImage: The header is damaged, cut, of a kind that is not supported, or promises too many pixels.
    """
    frame, frame_kind, orientation, keep_from = b"", 0, 1, 0
    kept: list[bytes] = []
    for kind, start, end in _header_segments(data):
        if kind in _FRAMES:
            if frame:
                raise BadImage("damaged JPEG: two frame headers")
            frame, frame_kind = data[start + 4 : end], kind
        elif kind == _APP1 and orientation == 1 and data.startswith(b"Exif\0\0", start + 4):
            orientation = read_orientation(data[start + 4 : end])
        elif kind == _SOS:
            break
        if kind == _COM or (_APP0 < kind <= _APP15 and kind != _APP14):
            kept.append(data[keep_from:start])
            keep_from = end
    kept.append(data[keep_from:])
    width, height, component_ids = _read_frame(frame, frame_kind)
    check_size(width, height, max_pixels)
    progressive = frame_kind in _PROGRESSIVE
    if progressive and (scans := data.count(b"\xff\xda")) > _MAX_SCANS:
        raise BadImage(f"progressive JPEG of {scans} scans, more than the {_MAX_SCANS} that are decoded")
    return JpegHeader(
        width=width,
        height=height,
        components=len(component_ids),
        component_ids=component_ids,
        progressive=progressive,
        arithmetic=frame_kind in _ARITHMETIC,
        orientation=orientation,
        scan_start=start,
        decodable=b"".join(kept) if len(kept) > 1 else data,
    )


def decode_jpeg(header: JpegHeader, at_least: tuple[int, int] | None = None) -> tuple[Image.Image, float]:
    """Decode to pixels.

    Args:
        header: Of the file.
        at_least: Width and height, as stored, that suffice. libjpeg then computes the smallest of 1/1, 1/2,
            1/4 and 1/8 of each side that is not smaller: cheaper, and a good first step of a reduction.

    Returns:
        The loaded image, and by how much it was reduced: 1, 2, 4 or 8.
    """
    image = _open(header.decodable, header)
    if at_least is not None:
        image.draft(None, at_least)
    scale = image.decoderconfig[0] if image.decoderconfig else 1
    image.load()
    return image, scale


def verify_jpeg(header: JpegHeader) -> None:
    """Decode every byte of a file once without needing its pixels.

    At 1/8 of the size and without colour libjpeg still reads all entropy-coded data, and so refuses exactly
    what a full decode refuses, but skips nearly all of the inverse transform: two thirds of the time.

    Raises:
        OSError: The data is truncated or broken.
    """
    image = _open(header.decodable, header)
    image.draft("L", (1, 1))
    image.load()


def append_eoi(data: bytes, header: JpegHeader) -> bytes:
    """Complete a JPEG that lacks nothing but its end marker.

    With an end marker after cut data libjpeg invents the rest. So the data is decoded once as it is and again
    with different bytes put where data may be missing. Where nothing is missing they stand behind the last
    scan, are skipped, and the pixels are equal; where something is missing they are decoded. A cut between
    two scans leaves whole but too few scans; counting them finds that. Five decodes, or nine with restart
    markers: only for files that would otherwise be lost.

    Missing bits that no pixel depends on (a last run of empty blocks in a progressive file may be longer than
    the image) stay unnoticed, and do no harm: decoders make the same pixels of the completed file.

    Raises:
        BadImage: More than the end marker is missing.
    """
    body = data.rstrip(b"\xff")  # Half an end marker may be there.
    if not _scans_are_whole(body, header):
        raise BadImage("truncated JPEG")
    tail = header.decodable.rstrip(b"\xff")
    try:
        wanted = _hash_pixels(tail + EOI, header)
        whole = all(_hash_pixels(tail + filler + EOI, header) == wanted for filler in _choose_fillers(body))
    except OSError as error:  # With an end marker libjpeg never runs out of data: something else is wrong.
        raise BadImage(f"damaged JPEG: {error}") from error
    if not whole:
        raise BadImage("truncated JPEG")
    return body + EOI


def _header_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, offset and end of each segment up to and with the first start of scan.

    As tolerant as libjpeg: bytes between segments are skipped.
    """
    position = 2
    while True:
        position = data.find(b"\xff", position)
        if position < 0 or position + 4 > len(data):
            raise BadImage("truncated JPEG: it ends before the image data")
        kind = data[position + 1]
        if kind == 0xFF:
            position += 1
        elif kind == 0 or kind in _STANDALONE:
            position += 2
        elif kind == _EOI:
            raise BadImage("damaged JPEG: no image data")
        else:
            length = int.from_bytes(data[position + 2 : position + 4], "big")
            end = position + 2 + length
            if length < 2:
                raise BadImage("damaged JPEG: a segment of impossible length")
            if end > len(data):
                raise BadImage("truncated JPEG: it ends before the image data")
            yield kind, position, end
            if kind == _SOS:
                return
            position = end


def _read_frame(frame: bytes, kind: int) -> tuple[int, int, bytes]:
    """Return width, height and component identifiers of a start-of-frame segment."""
    if not frame:
        raise BadImage("damaged JPEG: no frame header")
    if kind not in _HUFFMAN and kind not in _ARITHMETIC:
        raise BadImage(f"JPEG of a rare kind (SOF{kind - 0xC0}), which decoders do not read")
    if len(frame) < 6 or len(frame) != 6 + 3 * frame[5]:
        raise BadImage("damaged JPEG: a frame header of impossible length")
    if frame[0] != 8:
        raise BadImage(f"JPEG of {frame[0]} bits a sample; 8 can be read")
    if frame[5] not in (1, 3, 4):
        raise BadImage(f"JPEG of {frame[5]} components; 1, 3 and 4 can be read")
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    return width, height, frame[6::3]


def _open(data: bytes, header: JpegHeader) -> JpegImagePlugin.JpegImageFile:
    """Open by the plugin itself: no other format is tried, no process-wide pixel limit or warning applies.

    Raises:
        OSError: The end marker is missing. Bytes behind it are no harm.
    """
    if not data.endswith(EOI) and data.find(EOI, data.rfind(b"\xff\xda")) < 0:
        # Pillow notices in 19 of 20 files only, depending on how many bits its decoder has read ahead.
        raise OSError("no end marker")
    image = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
    if image.size != (header.width, header.height):
        raise BadImage("damaged JPEG: decoders do not agree about its size")
    return image


def _hash_pixels(data: bytes, header: JpegHeader) -> bytes:
    """Decode fully; a digest of the samples, without the colour conversion that could hide a change."""
    image = _open(data, header)
    image.draft("YCbCr", None)
    image.load()
    digest = hashlib.sha256()
    for top in range(0, header.height, 256):  # A copy of all pixels would double the memory.
        digest.update(image.crop((0, top, header.width, min(top + 256, header.height))).tobytes())
    return digest.digest()


def _choose_fillers(data: bytes) -> tuple[bytes, ...]:
    """Stand-ins for what may be missing after `data`."""
    scan = data.rfind(b"\xff\xda")
    if data.find(b"\xff\xdd", 0, scan) < 0:
        return _FILLERS
    # With a restart interval, a decoder at the end of one skips all but the next restart marker. They count
    # from 0 to 7 in each scan.
    last = max(data.rfind(bytes((0xFF, marker)), scan) for marker in range(0xD0, 0xD8))
    following = 0xD0 if last < 0 else 0xD0 + (data[last + 1] + 1) % 8
    return _FILLERS + tuple(bytes((0xFF, following)) + filler for filler in _FILLERS)


def _scans_are_whole(data: bytes, header: JpegHeader) -> bool:
    """Whether the scans that have begun carry every bit of every coefficient of every component."""
    missing = {component: set(range(64)) for component in header.component_ids}
    position = header.scan_start
    while True:
        length = int.from_bytes(data[position + 2 : position + 4], "big")
        end = position + 2 + length
        if end > len(data):
            break
        if data[position + 1] == _SOS:
            scan = data[position + 4 : end]
            count = scan[0] if scan else 0
            if len(scan) != 4 + 2 * count:
                return False
            first, last, bits_left = scan[-3], scan[-2], scan[-1] & 15
            for component in scan[1 : 1 + 2 * count : 2]:
                if not header.progressive:
                    missing.pop(component, None)
                elif bits_left == 0 and component in missing:
                    missing[component].difference_update(range(first, last + 1))
        match = _NEXT_MARKER.search(data, end)
        if match is None or data[match.start() + 1] == _EOI:
            break
        position = match.start()
    return not any(missing.values())
