"""Native decoding for tfpipe: a crop of a JPEG, resized and converted, in one call that does not hold Python's lock.

```
image = np.empty((224, 224, 3), np.uint8)
decode(jpeg, (16, 40, 300, 280), image, flip=True)
seekable = make_seekable(jpeg)      # the same coefficients, with restart markers: a crop is decoded in less time
```

It needs neither TensorFlow nor NumPy. `OPERATION_PATH` is the library that `tf.load_op_library` takes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OPERATION_PATH = str(Path(__file__).with_name("tfpipe_operation.so"))
"""The library of the TensorFlow operation `tfpipe_decode`."""

MAX_PIXELS = 2**28
"""The most pixels that an image may have, if nothing else is asked for."""

_INTERFACE = 4
_MESSAGE_BYTES = 256
_DTYPES = {"uint8": (0, 1), "float32": (1, 4), "bfloat16": (2, 2)}


class BadJpeg(ValueError):
    """An image that cannot be decoded, or a box that leaves it. The message is a phrase that says why."""


class _Request(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("y", "x", "height", "width", "ratio")),
        *((name, ctypes.c_int32) for name in ("out_height", "out_width", "flip", "dtype", "seeks")),
        ("max_pixels", ctypes.c_int64),
        ("offset", ctypes.c_float * 3),
        ("factor", ctypes.c_float * 3),
    )


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(Path(__file__).with_name("libtfpipe_kernels.so")))
    if library.tfpipe_interface() != _INTERFACE:
        raise ImportError("tfpipe-kernels is damaged: its library is of another release. Install it again.")
    text, size, pixels = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64
    library.tfpipe_decode.argtypes = (text, size, ctypes.POINTER(_Request), ctypes.c_void_p, text)
    library.tfpipe_check.argtypes = (text, size, pixels, text)
    library.tfpipe_make_seekable.argtypes = (
        *(text, size, pixels),
        *(ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(size), text),
    )
    library.tfpipe_free.argtypes = (ctypes.c_void_p,)
    library.tfpipe_free.restype = None
    return library


_LIBRARY = _load()


def decode(
    data: bytes,
    box: Sequence[int],
    out: Any,
    *,
    dtype: str = "uint8",
    resize: bool = True,
    ratio: int = 1,
    flip: bool = False,
    seeks: bool = True,
    offset: Sequence[float] = (0.0, 0.0, 0.0),
    factor: Sequence[float] = (1.0, 1.0, 1.0),
    max_pixels: int = MAX_PIXELS,
) -> None:
    """Decodes a crop of a JPEG into memory of the caller's.

    Args:
        data: The JPEG.
        box: y, x, height and width of the crop in pixels of the stored image.
        out: A writable array of shape [height, width, 3] in C order; bfloat16 has two bytes.
        dtype: "uint8": rounded to the nearest, halves up. "float32" or "bfloat16": (value - offset) * factor.
        resize: Whether to resize the crop to the array. If not, the array has the size of the box, divided by `ratio`.
        ratio: 1, 2, 4 or 8: the image is decoded at this fraction of its size.
        flip: Whether to mirror left to right.
        seeks: Whether to skip what lies outside the box where restart markers allow it. The pixels are the same.
        offset: One number for each channel.
        factor: One number for each channel.
        max_pixels: The most pixels that the whole image may have.

    Raises:
        BadJpeg: The bytes are not a JPEG, or a damaged one, or the image is too large, or the box leaves it.
        ValueError: The array does not fit.
        MemoryError: There is no memory.
    """
    view = memoryview(out)
    code, value_bytes = _DTYPES[dtype]
    shape = view.shape or ()
    if len(shape) != 3 or shape[2] != 3 or not view.c_contiguous or view.readonly or view.itemsize != value_bytes:
        raise ValueError(f"The array must be writable, [height, width, 3] of {dtype} in C order, got {shape}.")
    height, width, _ = shape
    if not resize and (height, width) != tuple(_reduce(box[i], box[i + 2], ratio) for i in range(2)):
        raise ValueError(f"The array must have the size of the crop, got {height} x {width} for {tuple(box)}.")
    request = _Request(
        *box, ratio, *((height, width) if resize else (0, 0)), flip, code, seeks, max_pixels, (*offset,), (*factor,)
    )
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    memory = (ctypes.c_char * view.nbytes).from_buffer(view)
    _check(_LIBRARY.tfpipe_decode(data, len(data), request, memory, message), message)


def make_seekable(data: bytes, max_pixels: int = MAX_PIXELS) -> bytes:
    """Rewrites a JPEG without loss, with restart markers from which a crop can be decoded.

    The coefficients stay the same, and so do the pixels. Huffman codes are made for them, which pays for the markers.
    Segments that do not concern pixels, such as EXIF, are left out.

    Raises:
        BadJpeg: The bytes are not a JPEG, or libjpeg complains of them, or the image is too large.
        MemoryError: There is no memory.
    """
    result, size = ctypes.c_void_p(), ctypes.c_size_t()
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    _check(_LIBRARY.tfpipe_make_seekable(data, len(data), max_pixels, result, size, message), message)
    try:
        return ctypes.string_at(result, size.value)
    finally:
        _LIBRARY.tfpipe_free(result)


def check(data: bytes, max_pixels: int = MAX_PIXELS) -> None:
    """Decodes the entropy-coded data of a JPEG, the part that damage can break. No pixel is computed.

    Raises:
        BadJpeg: The bytes are not a JPEG, or libjpeg complains of them, or the image is too large.
        MemoryError: There is no memory.
    """
    message = ctypes.create_string_buffer(_MESSAGE_BYTES)
    _check(_LIBRARY.tfpipe_check(data, len(data), max_pixels, message), message)


def _reduce(begin: int, size: int, ratio: int) -> int:
    return (begin + size + ratio // 2) // ratio - (begin + ratio // 2) // ratio


def _check(result: int, message: Any) -> None:
    if result == 4:
        raise MemoryError("tfpipe-kernels got no memory for an image.")
    if result:
        raise BadJpeg(message.value.decode(errors="replace"))
