"""The one judge of damage. The writer asks it before it stores an image, and `tfpipe verify` asks it again.

```
image      read by                               is whole if
JPEG       the native decoder                    it reads all of the data and complains of nothing
           of a rare kind: Pillow                it makes all pixels, and TensorFlow finds no error either
PNG        zlib, and libpng's rules              critical chunks have the right checksums, and no row is missing
```
"""

from __future__ import annotations

from tfpipe.images import jpeg, png
from tfpipe.images.errors import BadImage, Surplus
from tfpipe.native import jpeg as native_jpeg


def judge(header: jpeg.JpegHeader | png.PngHeader) -> bool:
    """Checks that every reader makes all pixels of an image. No pixel is computed.

    Returns:
        Whether the bytes may be stored. Of a JPEG of a rare kind, which only some decoders read, just its pixels may.

    Raises:
        Surplus: The image is whole, and a JPEG's last scan goes on behind it.
        BadImage: The image is damaged.
        OSError: The end marker of a JPEG is missing; or Pillow finds damage.
    """
    if isinstance(header, png.PngHeader):
        png.verify_png(header)
        return True
    if not header.arithmetic:
        jpeg.open_jpeg(header)
        try:
            native_jpeg.check(header.decodable, header.width * header.height)
            return True
        except native_jpeg.UnsupportedJpeg:
            pass
        except native_jpeg.SurplusJpeg as error:
            raise Surplus(f"damaged JPEG: {error}") from error
        except native_jpeg.BadJpeg as error:
            raise BadImage(f"damaged JPEG: {error}") from error
    jpeg.verify_by_pillow(header)
    return False


def drop_surplus(data: bytes, header: jpeg.JpegHeader) -> bytes:
    """Drops zeros between the last block of a JPEG and the marker behind it, with which some cameras pad their files.

    Decoders pass over them, so the pixels stay. The end of the last block is the place up to which `check` finds no
    surplus.

    Raises:
        Surplus: Other bytes are among them: a flipped bit may have made codes shorter, so that some are left.
    """
    tail, begin, end = header.decodable, *jpeg.find_last_scan(header)
    low, high = begin, end
    while high - low > 1:
        middle = (low + high) // 2
        try:
            native_jpeg.check(tail[:middle] + jpeg.EOI, header.width * header.height)
            low = middle
        except native_jpeg.SurplusJpeg:
            high = middle
        except native_jpeg.BadJpeg:
            low = middle
    surplus = tail[low:end]
    if surplus.strip(b"\0"):
        raise Surplus("damaged JPEG: it has more data than blocks")
    kept = len(data) - len(tail)  # both have the same scans at their ends
    return data[: kept + low] + data[kept + end :]
