"""Reads JPEG XL: the size and the depth from the header, and the pixels by imagecodecs.

header = read_header(data)       # 20 bytes are looked at
pixels = decode(data, header)    # [height, width] or [height, width, channels], upright
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfpipe.images.errors import BadImage

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIGNATURES = (b"\xff\x0a", b"\0\0\0\x0cJXL \r\n\x87\n")
"""The first bytes: of an image alone, and of one in a container."""

_HEAD_BYTES = 32
_RATIOS = ((1, 1), (6, 5), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))  # of width and height
_SIZE_BITS = (9, 13, 18, 30)
_DEPTHS = (8, 10, 12)


@dataclass(frozen=True, slots=True)
class JpegXlHeader:
    """The facts in the header of a JPEG XL.

    Attributes:
        width: The width of the upright image in pixels.
        height: The height of the upright image in pixels.
        depth: The bits of a sample; 0 for floats, and where a preview or an animation keeps them from being read.
        animated: Whether it is known that more frames follow the first.
    """

    width: int
    height: int
    depth: int
    animated: bool = False


class _Bits:
    """A reader of bits, from the lowest of each byte on."""

    def __init__(self, data: bytes) -> None:
        self._rest = int.from_bytes(data, "little")

    def take(self, count: int) -> int:
        value = self._rest & ((1 << count) - 1)
        self._rest >>= count
        return value


def read_header(data: bytes) -> JpegXlHeader:
    """Reads the size and the depth.

    Raises:
        BadImage: The container holds no image.
    """
    bits = _Bits(_find_image(data)[2:])
    is_small = bits.take(1)
    height = _take_side(bits, is_small)
    ratio = bits.take(3)
    width = height * _RATIOS[ratio - 1][0] // _RATIOS[ratio - 1][1] if ratio else _take_side(bits, is_small)
    if bits.take(1):  # all else is as usual
        return JpegXlHeader(width, height, 8)
    is_extended = bits.take(1)
    if is_extended and bits.take(3) >= 4:  # the orientation, counted from 0
        width, height = height, width
    further = bits.take(3) if is_extended else 0  # another size, a preview, an animation, which stand before the depth
    if further or bits.take(1):  # floats
        return JpegXlHeader(width, height, 0, animated=further == 4)
    choice = bits.take(2)
    return JpegXlHeader(width, height, _DEPTHS[choice] if choice < 3 else 1 + bits.take(6))


def _take_side(bits: _Bits, is_small: int) -> int:
    return 8 * (1 + bits.take(5)) if is_small else 1 + bits.take(_SIZE_BITS[bits.take(2)])


def _find_image(data: bytes) -> bytes:
    """Returns the first bytes of the image, which a container may hold in several boxes."""
    if data.startswith(SIGNATURES[0]):
        return data[:_HEAD_BYTES]
    head, position = b"", 0
    while position + 8 <= len(data) and len(head) < _HEAD_BYTES:
        size, name, begin = int.from_bytes(data[position : position + 4], "big"), data[position + 4 : position + 8], 8
        if size == 1:
            size, begin = int.from_bytes(data[position + 8 : position + 16], "big"), 16
        end = position + max(size, begin) if size else len(data)
        if name in (b"jxlc", b"jxlp"):  # a part begins with its number
            head += data[position + begin + 4 * (name == b"jxlp") : end][:_HEAD_BYTES]
        position = end
    if not head.startswith(SIGNATURES[0]):
        raise BadImage("damaged JPEG XL: its container holds no image")
    return head


def decode(data: bytes, header: JpegXlHeader) -> tuple[NDArray[Any], float]:
    """Decodes the first frame.

    Returns:
        The samples, of shape [height, width] or [height, width, channels], with alpha last; and the value of white.

    Raises:
        BadImage: The samples have a depth that is not known.
    """
    import imagecodecs
    import numpy as np

    pixels: NDArray[Any] = imagecodecs.jpegxl_decode(data, index=0, numthreads=1)
    if pixels.shape[:2] != (header.height, header.width):
        raise BadImage("damaged JPEG XL: its pixels have another size than its header")
    if pixels.dtype.kind == "f" and np.isfinite(pixels).all():
        return pixels, 1.0
    depth = header.depth or (8 if pixels.dtype == np.uint8 else 0)
    if pixels.dtype.kind == "f" or not 1 <= depth <= 8 * pixels.itemsize:
        raise BadImage("JPEG XL of samples whose depth is not known")
    return pixels, float(2**depth - 1)
