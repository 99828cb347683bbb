"""Seekable JPEGs: restart markers at an interval that divides a row, so that a decoder can begin at each of them.

The native library recognizes and writes the same ones. An MCU is the unit in which a JPEG is coded, 8 x 8 up to 32 x 32
pixels.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tfpipe.images.errors import BadImage
from tfpipe.native import jpeg

# A marker costs about two bytes, and a crop decodes half an interval in vain on each side.
_MOST_PIXELS, _LEAST_PIXELS = 96, 24

_SOI, _EOI, _SOS, _DRI = 0xD8, 0xD9, 0xDA, 0xDD
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # without DHT, JPG, DAC
_SEQUENTIAL = frozenset((0xC0, 0xC1))
_MAX_COMPONENTS = 4
_RST0 = 0xD0

# Any number may stand in front of a marker.
_FILL_BYTES = re.compile(rb"\xff+(?=\xff)")


class _Layout(NamedTuple):
    """The place of the one scan of a sequential JPEG, and its intervals."""

    scan: int  # the offset of the entropy-coded data
    interval: int  # in MCUs
    mcus_per_row: int
    mcu_rows: int
    mcu_width: int  # in pixels


def choose_interval(width: int, mcu_width: int) -> int:
    """Returns the MCUs between two restart markers: the most that divide a row in 24 to 96 pixels, else the row."""
    mcus_per_row = -(-width // mcu_width)
    longest, shortest = _MOST_PIXELS // mcu_width, -(-_LEAST_PIXELS // mcu_width)
    return next((mcus for mcus in range(longest, shortest - 1, -1) if mcus_per_row % mcus == 0), mcus_per_row)


def is_seekable(data: bytes) -> bool:
    """Returns whether a JPEG has one sequential scan, with a marker after each interval. Nothing is decoded."""
    layout = _read_layout(data)
    return layout is not None and _has_markers(data, layout)


def has_chosen_interval(data: bytes) -> bool:
    """Returns whether a JPEG is seekable and has the very interval that `choose_interval` gives it."""
    layout = _read_layout(data)
    if layout is None or not _has_markers(data, layout):
        return False
    return layout.interval == choose_interval(layout.mcus_per_row * layout.mcu_width, layout.mcu_width)


def make_seekable(data: bytes, max_pixels: int) -> bytes | None:
    """Rewrites a JPEG, coefficients and pixels alike, as a seekable one; None for a rare kind without such a form."""
    try:
        return jpeg.make_seekable(data, max_pixels)
    except jpeg.UnsupportedJpeg:
        return None
    except jpeg.BadJpeg as error:
        raise BadImage(f"damaged JPEG: {error}") from error


def _read_layout(data: bytes) -> _Layout | None:
    """Reads the headers. Returns None for a JPEG that cannot be seekable, or whose headers are damaged."""
    if data[:2] != bytes((0xFF, _SOI)):
        return None
    at, interval, frame, frame_kind = 2, 0, b"", 0
    while True:
        if fill := _FILL_BYTES.match(data, at):
            at = fill.end()
        kind, length = data[at + 1 : at + 2], int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at + 4 : at + 2 + length]
        if data[at : at + 1] != b"\xff" or length < 2 or len(segment) != length - 2:
            return None
        if kind[0] in _FRAMES:
            if frame:
                return None
            frame, frame_kind = segment, kind[0]
        elif kind[0] == _DRI:
            if len(segment) < 2:
                return None
            interval = int.from_bytes(segment[:2], "big")
        at += 2 + length
        if kind[0] == _SOS:
            break
    if frame_kind not in _SEQUENTIAL or not interval or not segment:
        return None
    components = frame[5] if len(frame) > 5 else 0
    if not 1 <= components <= _MAX_COMPONENTS or segment[0] != components or len(frame) < 6 + 3 * components:
        return None
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    sampling = [(factors >> 4, factors & 15) for factors in frame[7 : 6 + 3 * components : 3]]
    if frame[0] != 8 or not height or not width or not all(1 <= h <= 4 and 1 <= v <= 4 for h, v in sampling):
        return None
    # A single component is not interleaved, so its MCU is a block, whatever its sampling factors.
    across, down = (1, 1) if components == 1 else map(max, zip(*sampling, strict=True))
    mcus_per_row, mcu_rows = -(-width // (8 * across)), -(-height // (8 * down))
    return None if mcus_per_row % interval else _Layout(at, interval, mcus_per_row, mcu_rows, 8 * across)


def _has_markers(data: bytes, layout: _Layout) -> bool:
    """Returns whether the markers of the scan, up to the end of the image, are exactly those of its intervals."""
    import numpy as np

    count = layout.mcus_per_row // layout.interval * layout.mcu_rows
    if 3 * (count - 1) > len(data):  # a header may promise any size
        return False
    scan = np.frombuffer(data, np.uint8)[layout.scan :]
    # In entropy-coded data a zero follows each 0xFF that is not the first byte of a marker.
    following = scan[np.flatnonzero(scan[:-1] == 0xFF) + 1]
    expected = _RST0 + np.arange(count) % 8
    expected[-1] = _EOI
    return np.array_equal(following[following != 0][:count], expected)
