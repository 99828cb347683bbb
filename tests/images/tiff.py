"""TIFFs written by hand, with more layouts than Pillow writes."""

import struct
from collections.abc import Mapping, Sequence

BEGIN = 16
"""The byte at which the pixels begin."""


def write_tiff(order: str, tags: Mapping[int, int | Sequence[int]], pixels: bytes, big: bool = False) -> bytes:
    """Writes a TIFF, or a BigTIFF, whose tags hold whole numbers of 32 bits."""
    word, count = ("Q", "Q") if big else ("I", "H")
    begin = BEGIN + len(pixels)
    head = struct.pack(f"{order}HHHQ" if big else f"{order}HI8x", *((43, 8, 0, begin) if big else (42, begin)))
    size = struct.calcsize(f"{order}{word}")
    lists_begin = begin + struct.calcsize(f"{order}{count}") + len(tags) * (4 + 2 * size) + size
    entries = lists = b""
    for tag, value in sorted(tags.items()):
        values = [value] if isinstance(value, int) else value
        packed = struct.pack(f"{order}{len(values)}I", *values)
        if len(packed) > size:
            lists, packed = lists + packed, struct.pack(f"{order}{word}", lists_begin + len(lists))
        entries += struct.pack(f"{order}HH{word}", tag, 4, len(values)) + packed.ljust(size, b"\0")
    mark = b"II" if order == "<" else b"MM"
    return mark + head + pixels + struct.pack(f"{order}{count}", len(tags)) + entries + bytes(size) + lists


def write_planes(planes: Sequence[bytes], size: tuple[int, int]) -> bytes:
    """Writes a TIFF of 16-bit RGB in separate planes, each one strip."""
    (width, height), num_bytes = size, len(planes[0])
    layout = {256: width, 257: height, 258: [16] * 3, 259: 1, 262: 2, 277: 3, 278: height, 284: 2}
    strips = {273: [BEGIN + k * num_bytes for k in range(3)], 279: [num_bytes] * 3}
    return write_tiff("<", {**layout, **strips}, b"".join(planes))
