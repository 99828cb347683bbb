"""The crops and the images of a batch, each in one call of the native library.

```
boxes, flips = draw_crops(seeds, sizes, None, AugmentOptions())
decoded = decode_images(encoded, boxes, flips, images, Decoding(max_ratio=8, threads=4, max_pixels=2**28))
```

With one call for each image, what Python does around the decoder takes a third of the decoder's own time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfpipe.native import batches, library
from tfpipe.pipeline.config.augment_config import AugmentOptions


@dataclass(frozen=True)
class Decoding:
    """The way in which the images of a batch are decoded.

    Attributes:
        max_ratio: The largest reduction while decoding: 1, 2, 4 or 8.
        threads: The most threads that decode, of all batches together. With 1 the caller does it.
        max_pixels: The most pixels that an image may have.
    """

    max_ratio: int
    threads: int
    max_pixels: int


def can_make_batches() -> bool:
    """Returns whether the native library is there."""
    return library.is_available()


def draw_crops(
    seeds: NDArray[np.int32], sizes: NDArray[np.int32], stored: tuple[int, int] | None, options: AugmentOptions
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Draws random resized crops and flips: those of `numpy_crops`.

    Args:
        seeds: int32 [n, 2].
        sizes: int32 [n, 2]: the height and width of the originals.
        stored: The size of the stored images if all were squeezed to one; None if they have the originals' sizes.
        options: `scale` and `ratio` are used.

    Returns:
        The crop boxes in pixels of the stored images, int32 [n, 4], and whether to flip, bool [n].

    Raises:
        ValueError: A size is below 1.
    """
    boxes, flips = np.empty((len(seeds), 4), np.int32), np.empty(len(seeds), np.bool_)
    arrays = np.array(seeds, np.int32, order="C"), np.array(sizes, np.int32, order="C")
    batches.draw_crops(*arrays, boxes, flips, scale=options.scale, ratio=options.ratio, stored=stored or (0, 0))
    return boxes, flips


def decode_images(
    encoded: Sequence[bytes | NDArray[np.uint8]],
    boxes: NDArray[np.int32],
    flips: NDArray[np.bool_],
    images: NDArray[np.uint8],
    decoding: Decoding,
) -> NDArray[np.bool_]:
    """Decodes the crops of JPEGs into a batch.

    Args:
        encoded: The bytes of each image.
        boxes: int32 [n, 4]: y, x, height and width of each crop in pixels of the stored image.
        flips: Whether each crop is mirrored, bool [n].
        images: The result, uint8 [n, height, width, 3].
        decoding: The threads and limits.

    Returns:
        Whether each image was decoded, bool [n].
    """
    arrays = [np.frombuffer(data, np.uint8) for data in encoded]
    places = np.array([(array.ctypes.data, array.size) for array in arrays], np.int64).reshape(-1, 2)
    limits = {"max_ratio": decoding.max_ratio, "threads": decoding.threads, "max_pixels": decoding.max_pixels}
    results = batches.decode(places, boxes, flips, images, **limits)
    decoded: NDArray[np.bool_] = np.asarray(results) == batches.OK
    return decoded
