"""Converts pixels of any kind to 8-bit gray or RGB: a 16-bit sample v becomes v * 255 / 65535; alpha lies on white.

Samples of 32 bits stay if all lie between 0 and 255. Floats are scaled by 255 if all lie between 0 and 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from PIL import Image

from tfpipe.images.errors import BadImage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    ReadRows = Callable[[int, int], NDArray[np.uint64]]
    """A function of the first row and the row after the last: [rows, width, channels], 0 to 65535, alpha last."""

_ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
_GRAY_MODES = ("1", "L", "LA", "La")

# The raw mode that reads the byte which another one leaves out. "N" is the byte order of this machine.
_OTHER_BYTE = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}

# Rows are converted in strips of about this many pixels, so that 64-bit sums take 30 MB and not gigabytes.
_STRIP_PIXELS = 1 << 20


def flatten_alpha(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Converts a loaded image of 8 bits or fewer to gray ("L") or "RGB", and returns the kinds of change too."""
    mode = image.mode
    if mode in ("L", "RGB") and "transparency" not in image.info:
        return image, ()
    if mode == "1":
        image = image.convert("L")
    rgba_palette = mode == "P" and image.palette is not None and image.palette.mode == "RGBA"
    if mode in _ALPHA_MODES or rgba_palette or "transparency" in image.info:
        return _on_white(image, gray=mode in _GRAY_MODES), ("alpha_composited",)
    if mode == "CMYK":
        return image.convert("RGB"), ("cmyk_to_rgb",)
    return (image if image.mode == "L" else image.convert("RGB")), ()


def _on_white(image: Image.Image, *, gray: bool) -> Image.Image:
    """Composites an image on white in strips, because three more copies of a large image would take a gigabyte."""
    white = Image.new("L" if gray else "RGB", image.size, "white")
    step = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, step):
        strip = image.crop((0, top, image.width, min(top + step, image.height))).convert("LA" if gray else "RGBA")
        white.paste(strip.convert(white.mode), (0, top), strip.getchannel("A"))
    return white


def is_gray_16bit(image: Image.Image) -> bool:
    """Returns whether the samples are 16-bit gray. Pillow holds those of a PGM in mode "I", scaled to 65535."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")


def get_16bit_raw_mode(image: Image.Image) -> str:
    """Returns the raw mode of an opened image of 16-bit color samples that is not loaded yet, else ""."""
    if not image.mode.startswith(("RGB", "CMYK")):
        return ""
    tiles: Any = getattr(image, "tile", None)
    if not tiles:
        return ""
    arguments = tiles[0][3]
    raw_mode = arguments if isinstance(arguments, str) else str(arguments[0]) if arguments else ""
    return raw_mode if raw_mode[-4:-1] == ";16" else ""  # "RGB;16B", but not "BGR;16", whose pixels have 16 bits


def select_low_bytes(image: Image.Image) -> None:
    """Makes an opened image of 16-bit color samples load their low bytes instead of the high ones."""
    holder: Any = image
    holder.tile = [tile._replace(args=_swap_byte(tile.args)) for tile in holder.tile]


def reduce_gray(image: Image.Image, inverted: bool = False) -> tuple[Image.Image, tuple[str, ...]]:
    """Reduces a loaded image of 16-bit gray to mode "L"; of an inverted one 0 is white."""
    import numpy as np  # only such images need it, and its import takes as long as Pillow's

    samples = np.asarray(image)
    return reduce_samples(65535 - samples if inverted else samples, 65535, image.info.get("transparency"))


def reduce_32bit(image: Image.Image, inverted: bool = False) -> tuple[Image.Image, tuple[str, ...]]:
    """Reduces a loaded image of 32-bit gray, of mode "I" or "F", to mode "L"; of an inverted one 0 is white."""
    import numpy as np

    samples = np.asarray(image)
    low, high = samples.min(), samples.max()
    if not 0 <= low <= high <= 255:
        raise BadImage(
            f"32-bit samples from {low:g} to {high:g}; only 0 to 255, and fractions from 0 to 1, have a known white"
        )
    white = 1 if image.mode == "F" and high <= 1 else 255
    return reduce_samples(white - samples if inverted else samples, white)


def reduce_samples(samples: NDArray[Any], white: float, key: int | None = None) -> tuple[Image.Image, tuple[str, ...]]:
    """Reduces samples [height, width] or [height, width, channels], alpha last, to 8 bits; `key` is transparent."""
    import numpy as np

    planes = samples if samples.ndim == 3 else samples[:, :, None]

    def read(top: int, bottom: int) -> NDArray[np.uint64]:
        rows = planes[top:bottom].astype(np.float64) * (65535 / white)
        return np.rint(np.clip(rows, 0, 65535)).astype(np.uint64)

    empty = Image.new("L", (planes.shape[1], planes.shape[0]))
    empty.info = {} if key is None else {"transparency": key}
    bands = {1: "L", 3: "RGB", 4: "RGBA"}[planes.shape[2]]
    small, changed = _reduce(empty, read, tuple(bands))
    return small, ("depth_16_to_8" if white == 65535 else "depth_32_to_8", *changed[1:])


def reduce_color(high: Image.Image, low: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Reduces 16-bit RGB or RGBA, given as two loaded images of high and low bytes, to mode "RGB"."""
    import numpy as np

    if high.mode not in ("RGB", "RGBA"):
        raise BadImage(f"16-bit {high.mode} samples, which cannot be read")

    def read(top: int, bottom: int) -> NDArray[np.uint64]:
        box = (0, top, high.width, bottom)
        rows = np.asarray(high.crop(box)).astype(np.uint64) * 256
        rows += np.asarray(low.crop(box))
        return rows

    return _reduce(high, read, tuple(high.mode))


def reduce_gray_alpha(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """Reduces 16-bit gray and alpha, given as `png.as_rgba_bytes` relabels it, to mode "L"."""
    import numpy as np

    def read(top: int, bottom: int) -> NDArray[np.uint64]:
        rows = np.asarray(image.crop((0, top, image.width, bottom))).astype(np.uint64)
        return rows[:, :, 0::2] * 256 + rows[:, :, 1::2]

    return _reduce(image, read, ("L", "A"))


def _reduce(image: Image.Image, read: ReadRows, bands: tuple[str, ...]) -> tuple[Image.Image, tuple[str, ...]]:
    """Composites on white and scales to 8 bits, strip by strip."""
    import numpy as np

    key = image.info.get("transparency")
    has_alpha = bands[-1] == "A"
    colors = len(bands) - has_alpha
    result = Image.new("L" if colors == 1 else "RGB", image.size)
    step = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, step):
        rows = read(top, min(top + step, image.height))
        values = rows[:, :, :colors]
        if has_alpha or key is not None:
            opaque = ~(values == np.asarray(key)).all(axis=-1, keepdims=True)
            alpha = rows[:, :, colors:] if has_alpha else opaque * np.uint64(65535)
            values = (values * alpha + np.uint64(65535) * (65535 - alpha) + np.uint64(32767)) // 65535
        small = ((values + 128) // 257).astype(np.uint8)
        result.paste(Image.fromarray(small[:, :, 0] if colors == 1 else small), (0, top))
    changed = ("depth_16_to_8",)
    return result, (*changed, "alpha_composited") if has_alpha or key is not None else changed


def _swap_byte(arguments: Any) -> Any:
    """Exchanges the byte order at the end of the raw mode in a tile's arguments."""
    if isinstance(arguments, str):
        return arguments[:-1] + _OTHER_BYTE[arguments[-1]]
    return (_swap_byte(arguments[0]), *arguments[1:])
