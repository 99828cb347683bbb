"""Seekable JPEGs: restart markers at an interval that divides a row, so that a decoder can begin at each of them.

```
interval = choose_interval(width, gray=False)      # MCUs between two markers, for a JPEG that is encoded anew
smaller = make_seekable(jpeg, max_pixels)          # a JPEG that exists, without loss, by tfpipe-kernels
is_seekable(smaller)                               # True: reads headers and markers, and decodes nothing
```

The package tfpipe-kernels decodes a crop of such a JPEG from the intervals that the crop needs. It recognizes the
same files as `is_seekable`, and chooses the interval as `choose_interval` does. (An MCU is a square or rectangle of
8 x 8 up to 32 x 32 pixels, the unit in which a JPEG is coded.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfpipe.errors import ConfigError
from tfpipe.images.errors import BadImage
from tfpipe.system import kernels

# A marker costs about two bytes, and a crop decodes half an interval in vain on each side.
_MOST_PIXELS, _LEAST_PIXELS = 96, 24

_SOI, _EOI, _SOS, _DRI = 0xD8, 0xD9, 0xDA, 0xDD
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # without DHT, JPG, DAC
_SEQUENTIAL = frozenset((0xC0, 0xC1))
_MAX_COMPONENTS = 4
_RESTARTS = b"".join(bytes((0xFF, marker)) for marker in range(0xD0, 0xD8))

# In entropy-coded data a zero follows each 0xFF that is not the first byte of a marker.
_MARKER = re.compile(rb"\xff[^\x00]")


@dataclass(frozen=True, slots=True)
class _Layout:
    """The place of the one scan of a sequential JPEG, and its intervals.

    Attributes:
        scan: The offset of the entropy-coded data.
        interval: The MCUs of an interval.
        mcu_width: The width of an MCU in pixels.
        mcus_per_row: The MCUs of a row.
        mcu_rows: The rows of MCUs.
    """

    scan: int
    interval: int
    mcu_width: int
    mcus_per_row: int
    mcu_rows: int


def choose_interval(width: int, mcu_width: int) -> int:
    """Returns the MCUs between two restart markers: the most that divide a row and span at most 96 pixels.

    Where no interval of at least 24 pixels divides the row, it is the whole row.

    Args:
        width: The width of the image in pixels.
        mcu_width: The width of an MCU in pixels.
    """
    mcus_per_row = -(-width // mcu_width)
    longest, shortest = _MOST_PIXELS // mcu_width, -(-_LEAST_PIXELS // mcu_width)
    return next((mcus for mcus in range(longest, shortest - 1, -1) if mcus_per_row % mcus == 0), mcus_per_row)


def is_seekable(data: bytes) -> bool:
    """Returns whether a JPEG has one sequential scan, and a restart marker after each interval, which divides a row.

    It reads the headers and looks for markers. Damage between two markers stays unnoticed.
    """
    layout = _read_layout(data)
    return layout is not None and _has_all_markers(data, layout)


def has_chosen_interval(data: bytes) -> bool:
    """Returns whether a JPEG is seekable and has the very interval that `choose_interval` gives it."""
    layout = _read_layout(data)
    if layout is None or not _has_all_markers(data, layout):
        return False
    return layout.interval == choose_interval(layout.mcus_per_row * layout.mcu_width, layout.mcu_width)


def make_seekable(data: bytes, max_pixels: int) -> bytes:
    """Rewrites a JPEG without loss as a seekable one. The coefficients stay, and so do the pixels.

    A progressive JPEG becomes a sequential one. Segments that do not concern pixels are left out.

    Raises:
        BadImage: libjpeg complains of the JPEG, or it is too large.
        ConfigError: tfpipe-kernels is not installed, or cannot be loaded.
    """
    check_kernels()
    import tfpipe_kernels

    try:
        return tfpipe_kernels.make_seekable(data, max_pixels)
    except tfpipe_kernels.BadJpeg as error:
        raise BadImage(f"damaged JPEG: {error}") from error


def check_kernels() -> None:
    """Checks that `make_seekable` can be called.

    Raises:
        ConfigError: tfpipe-kernels is not installed, or cannot be loaded. The message says how to install it.
    """
    reason = kernels.explain_missing_kernels()
    if reason is not None:
        raise ConfigError(
            f"`seekable` needs tfpipe-kernels, and {reason}; install it from a checkout with `pip install ./kernels`."
        )


def _read_layout(data: bytes) -> _Layout | None:
    """Reads the headers. Returns None for a JPEG that cannot be seekable, or whose headers are damaged."""
    if data[:2] != bytes((0xFF, _SOI)):
        return None
    at, interval, frame, frame_kind = 2, 0, b"", 0
    while True:
        while data[at : at + 2] == b"\xff\xff":  # any number of fill bytes may stand in front of a marker
            at += 1
        kind, length = data[at + 1 : at + 2], int.from_bytes(data[at + 2 : at + 4], "big")
        segment = data[at + 4 : at + 2 + length]
        if data[at : at + 1] != b"\xff" or length < 2 or len(segment) != length - 2:
            return None
        at += 2 + length
        if kind[0] in _FRAMES:
            if frame:
                return None
            frame, frame_kind = segment, kind[0]
        elif kind[0] == _DRI:
            if len(segment) < 2:
                return None
            interval = int.from_bytes(segment[:2], "big")
        elif kind[0] == _SOS:
            break
    if frame_kind not in _SEQUENTIAL or not interval or not segment:
        return None
    return _make_layout(frame, segment[0], interval, at)


def _make_layout(frame: bytes, components_of_scan: int, interval: int, scan: int) -> _Layout | None:
    """Returns the intervals of a sequential JPEG, or None if they do not divide a row."""
    components = frame[5] if len(frame) > 5 else 0
    if not 1 <= components <= _MAX_COMPONENTS or components_of_scan != components or len(frame) < 6 + 3 * components:
        return None
    height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
    sampling = [(factors >> 4, factors & 15) for factors in frame[7 : 6 + 3 * components : 3]]
    if frame[0] != 8 or not height or not width or not all(1 <= h <= 4 and 1 <= v <= 4 for h, v in sampling):
        return None
    # A single component is not interleaved, so its MCU is a block, whatever its sampling factors.
    across, down = (1, 1) if components == 1 else map(max, zip(*sampling, strict=True))
    mcus_per_row, mcu_rows = -(-width // (8 * across)), -(-height // (8 * down))
    return None if mcus_per_row % interval else _Layout(scan, interval, 8 * across, mcus_per_row, mcu_rows)


def _has_all_markers(data: bytes, layout: _Layout) -> bool:
    """Returns whether the scan has exactly the right restart markers, up to the end of the image."""
    markers = layout.mcus_per_row // layout.interval * layout.mcu_rows - 1
    if 4 * markers > len(data):  # a header may promise any size
        return False
    expected = (_RESTARTS * (markers // 8 + 1))[: 2 * markers] + bytes((0xFF, _EOI))
    return b"".join(_MARKER.findall(data, layout.scan)).startswith(expected)
