"""Decodes, resizes and converts crops of JPEGs in one call; checks and rewrites whole JPEGs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tfpipe.native import library

MAX_PIXELS = 2**28
"""The default for the most pixels that an image may have."""

RATIOS = (1, 2, 4, 8)
"""The ratios by which an image can be reduced while it is decoded."""

_SURPLUS = "more data than blocks"  # the end of the library's message about surplus data
_MAX_INT32 = 2**31 - 1


class BadJpeg(ValueError):
    """An image that cannot be decoded, or a box that leaves it. The message is a phrase that says why."""


class SurplusJpeg(BadJpeg):
    """An image with more data before a marker than its blocks need; decoders skip the surplus."""


class UnsupportedJpeg(BadJpeg):
    """An image of a kind that the library cannot decode, such as one without some of its scans."""


class Request(ctypes.Structure):
    """A request to the decoder: `tfpipe_request` in C."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("y", "x", "height", "width", "ratio")),
        *((name, ctypes.c_int32) for name in ("out_height", "out_width", "flip", "dtype", "seeks")),
        ("max_pixels", ctypes.c_int64),
        ("offset", ctypes.c_float * 3),
        ("factor", ctypes.c_float * 3),
    )


def decode(data: bytes, box: Sequence[int], out: Any, *, ratio: int = 1, max_pixels: int = MAX_PIXELS) -> None:
    """Decodes a crop of a JPEG into a writable array in C order, uint8 [height, width, 3].

    The box is y, x, height and width in pixels of the stored image. The array has its size, divided by `ratio`: 1, 2, 4
    or 8, the reduction while decoding. Data outside the box is skipped if restart markers allow it.
    """
    view = memoryview(out)
    shape = view.shape or ()
    if len(shape) != 3 or shape[2] != 3 or not view.c_contiguous or view.readonly or view.itemsize != 1:
        raise ValueError(f"The array must be writable, uint8 [height, width, 3] in C order, got {shape}.")
    _check_result(*shape[:2], ratio)
    if len(box) != 4 or not all(-_MAX_INT32 <= value <= _MAX_INT32 for value in box):
        raise ValueError(f"`box` must be four numbers of 32 bits, got {tuple(box)}.")
    if shape[:2] != reduce_box(box, ratio):
        raise ValueError(f"The array must have the size of the crop, got {shape[0]} x {shape[1]} for {tuple(box)}.")
    request = Request(*box, ratio=ratio, seeks=1, max_pixels=max_pixels)
    _call("tfpipe_decode", data, len(data), ctypes.byref(request), (ctypes.c_char * view.nbytes).from_buffer(view))


def decode_resized(data: bytes, new_size: tuple[int, int], ratio: int = 1, max_pixels: int = MAX_PIXELS) -> bytes:
    """Decodes a whole JPEG of three components, checks it as `check` does, and resizes it to RGB bytes, row by row.

    The pixels are the same as by Pillow's decoder and bicubic filter. `new_size` is width and height; `ratio` is 1, 2,
    4 or 8, the reduction while decoding.
    """
    width, height = new_size
    _check_result(height, width, ratio)
    out = ctypes.create_string_buffer(3 * width * height)
    _call("tfpipe_decode_resized", data, len(data), max_pixels, ratio, out, height, width)
    return out.raw


def make_seekable(data: bytes, max_pixels: int = MAX_PIXELS) -> bytes:
    """Rewrites a JPEG without loss, with restart markers from which a crop can be decoded.

    The coefficients and the pixels stay the same. Huffman codes made for them save the bytes that the markers cost.
    Segments that do not affect pixels, such as EXIF, are left out.
    """
    result, size = ctypes.c_void_p(), ctypes.c_size_t()
    _call("tfpipe_make_seekable", data, len(data), max_pixels, ctypes.byref(result), ctypes.byref(size))
    try:
        return ctypes.string_at(result, size.value)
    finally:
        library.load().tfpipe_free(result)


def find_intervals(data: bytes) -> int:
    """Returns 2 for a JPEG with the restart markers of `make_seekable`, 1 for other seekable ones, else 0."""
    return int(library.load().tfpipe_find_intervals(data, len(data)))


def check(data: bytes, max_pixels: int = MAX_PIXELS) -> None:
    """Checks a JPEG for damage: decodes its entropy-coded data, but computes no pixel."""
    _call("tfpipe_check", data, len(data), max_pixels)


def drop_padding(data: bytes, max_pixels: int = MAX_PIXELS) -> bytes:
    """Returns a JPEG without padding zeros before its markers; raises `SurplusJpeg` if other bytes are there."""
    memory, size = ctypes.create_string_buffer(len(data)), ctypes.c_size_t()
    _call("tfpipe_drop_padding", data, len(data), max_pixels, memory, ctypes.byref(size))
    return ctypes.string_at(memory, size.value)


def _check_result(height: int, width: int, ratio: int) -> None:
    """Checks the size of a result in pixels, and a ratio."""
    if height < 1 or width < 1:
        raise ValueError(f"The result must have at least one pixel, got {height} x {width}.")
    if ratio not in RATIOS:
        raise ValueError(f"`ratio` must be 1, 2, 4 or 8, got {ratio}.")


def reduce_box(box: Sequence[int], ratio: int) -> tuple[int, int]:
    """Returns the height and width of a crop after the image is reduced by `ratio`."""
    near = [(side + ratio // 2) // ratio for side in box[:2]]
    far = [(side + extent + ratio // 2) // ratio for side, extent in zip(box[:2], box[2:], strict=True)]
    return far[0] - near[0], far[1] - near[1]


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of the library, and raises an error with the message that it writes into its last argument."""
    message = ctypes.create_string_buffer(library.MESSAGE_BYTES)
    result = getattr(library.load(), name)(*arguments, message)
    if result == library.NO_MEMORY:
        raise MemoryError("The native library got no memory for an image.")
    if result:
        text = message.value.decode(errors="replace")
        if result == library.UNSUPPORTED:
            raise UnsupportedJpeg(text)
        raise (SurplusJpeg if text.endswith(_SURPLUS) else BadJpeg)(text)
