"""Masks, the PNG files that hold them, with more kinds than tfpipe writes, and images that show theirs."""

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.beam_jobs.images import save_image

Classes = NDArray[np.uint8] | NDArray[np.uint16]


def make_classes(seed: int, size: tuple[int, int] = (24, 16), num_classes: int = 5) -> NDArray[np.uint8]:
    """Returns random classes, uint8 [height, width], for a width and a height."""
    return np.random.default_rng(seed).integers(0, num_classes, (size[1], size[0]), np.uint8)


def make_mask(seed: int, size: tuple[int, int] = (24, 16), num_classes: int = 5) -> bytes:
    return save_image(Image.fromarray(make_classes(seed, size, num_classes)))


def make_gray(classes: NDArray[np.uint8], bits: int) -> bytes:
    """Returns a gray PNG of 1, 2 or 4 bits, which Pillow cannot write as such."""
    height, width = classes.shape
    digits = (classes[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    rows = np.packbits(digits.reshape(height, width * bits).astype(np.uint8), axis=1)
    return write_png((width, height), bits, 0, [row.tobytes() for row in rows])


def write_png(size: tuple[int, int], depth: int, color_type: int, rows: list[bytes], *chunks: bytes) -> bytes:
    """Returns a PNG written by hand, with `chunks` before the image data."""
    header = make_chunk(b"IHDR", struct.pack(">IIBBBBB", *size, depth, color_type, 0, 0, 0))
    data = make_chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + data + make_chunk(b"IEND", b"")


def make_palette(classes: NDArray[np.uint8], bits: int = 8) -> bytes:
    """Returns a PNG whose palette indices are the classes, and whose colors are others."""
    image = Image.fromarray(classes).copy()
    image.putpalette([(37 * k) % 256 for k in range(3 * 2**bits)])
    return save_image(image, bits=bits)


def make_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


MASK_NAME = "image/mask"


def make_masked_images(count: int, kind: str = "PNG", *, as_classes: bool = False) -> dict[str, Any]:
    """Makes images of large fields of one class each, whose red value is 40 times the class, and their masks."""
    files: dict[str, Any] = {}
    for k in range(count):
        fields = np.random.default_rng(k).integers(0, 6, (4, 5), np.uint8)
        classes = np.repeat(np.repeat(fields, 9 + k % 3, axis=0), 8 + k % 4, axis=1)
        name = f"{'cat' if k % 2 else 'dog'}/{k}"
        ending = "png" if kind == "PNG" else "jpg"
        if as_classes:
            files[f"{name}.{ending}"] = classes
            continue
        pixels = np.stack([classes * 40, 255 - classes, classes], axis=-1)
        image, mask = (save_image(Image.fromarray(array), form) for array, form in ((pixels, kind), (classes, "PNG")))
        files |= {f"{name}.{ending}": image, f"{name}.mask.png": mask}
    return files
