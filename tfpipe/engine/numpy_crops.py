"""The crops and flips of the input pipeline, drawn without TensorFlow: the same numbers for the same records.

`tfpipe.pipeline.stages._crop_box` draws them with TensorFlow's stateless operations on the host. Their numbers are
those of Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") under a key that is itself
drawn from the seed. They are computed here once more, in float32 where TensorFlow does so;
`tests/readers/test_numpy_crops.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.config.augment_config import AugmentOptions

CropBox = tuple[int, int, int, int]
"""The y, x, height and width of a crop in pixels of the stored image; inside it and at least 1 x 1."""

Size = tuple[int, int]
"""The height and width of an image in pixels."""

CROP_ATTEMPTS = 10
"""Boxes tried before the whole image is taken, as in `tfpipe.pipeline.stages._crop_box`."""

_FLIP_KEY = np.array((0x243F6A88, 0x05A308D3), np.int32)  # as there
_FIRST_NUMBERS = 16  # enough for four boxes: nearly all records need no more
_MORE_NUMBERS = 256

# Philox: two multipliers, the steps by which its key grows, and the key under which TensorFlow draws that key.
_FACTORS = np.array((0xD2511F53, 0xCD9E8D57), np.uint64)
_STEPS = np.array((0x9E3779B9, 0xBB67AE85), np.uint64)
_SCRAMBLE = np.array((0x3EC8F720, 0x02461E29), np.uint64)
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)

_Words = NDArray[np.uint64]


def draw_first_numbers(seeds: NDArray[np.int32]) -> list[list[int]]:
    """Draws the random numbers for the crop boxes of many seeds at once, 2 us each. Few records need more of them.

    Args:
        seeds: int32 of shape [n, 2].
    """
    numbers: list[list[int]] = draw_numbers(seeds, _FIRST_NUMBERS).tolist()
    return numbers


def sample_crop_box(seed: NDArray[np.int32], first: list[int], original: Size, options: AugmentOptions) -> CropBox:
    """Draws a random resized crop, as `_crop_box.sample_crop_box` does, in pixels of the original.

    Args:
        seed: int32 of shape [2].
        first: The seed's row of `draw_first_numbers`.
        original: The size of the original.
        options: `scale` and `ratio` are used.
    """
    later = (number for k in range(1) for number in draw_numbers(seed[None], _MORE_NUMBERS)[0, len(first) :].tolist())
    return _sample(chain(first, later), original, options)


def squeeze_crop_box(crop_box: CropBox, original: Size, stored: Size) -> CropBox:
    """Converts a crop box to pixels of an image that was squeezed to another size: its corners keep their shares."""
    if original == stored:
        return crop_box
    y, x, height, width = crop_box
    shape, extent = np.array(original, np.float32), np.array(stored, np.int64)
    near, far = (
        np.rint(np.array(corner, np.float32) / shape * extent.astype(np.float32)).astype(np.int64)
        for corner in ((y, x), (y + height, x + width))
    )
    near = np.minimum(near, extent - 1)
    top, left = near.tolist()
    high, wide = np.clip(far - near, 1, extent - near).tolist()
    return top, left, high, wide


def sample_flips(seeds: NDArray[np.int32]) -> list[bool]:
    """Draws which images are mirrored left to right, as `_crop_box.sample_flip` does.

    Args:
        seeds: int32 of shape [n, 2]; the same as the crop boxes'.
    """
    flips: list[bool] = (draw_numbers(seeds ^ _FLIP_KEY, 4)[:, 0] % 2 == 1).tolist()
    return flips


def _sample(numbers: Iterator[int], original: Size, options: AugmentOptions) -> CropBox:
    (low, high), (height, width) = np.array(options.ratio, np.float32), original
    min_area, max_area = (np.float32(share) * np.float32(width) * np.float32(height) for share in options.scale)
    for _ in range(CROP_ATTEMPTS):
        # The lower 23 bits are those of a float32 between 1 and 2.
        part = np.float32((next(numbers) & 0x7FFFFF) * 2.0**-23)
        extent = _sample_extent(numbers, original, (min_area, max_area), part * (high - low) + low)
        if extent is not None:
            y = _draw_below(height - extent[0], numbers) if extent[0] < height else 0
            x = _draw_below(width - extent[1], numbers) if extent[1] < width else 0
            return y, x, *extent
    return 0, 0, height, width


def _sample_extent(
    numbers: Iterator[int], original: Size, areas: tuple[np.float32, np.float32], aspect: np.float32
) -> Size | None:
    """Draws a height, uniform among those that keep the area within bounds, and its width; None if none does."""

    def get_width(high: int) -> int:
        return int(np.rint(np.float32(high) * aspect))

    min_area, max_area = areas
    shortest, tallest = (int(np.rint(np.sqrt(area / aspect))) for area in areas)
    if get_width(tallest) > original[1]:
        tallest = int((original[1] + 0.5 - 1e-7) / float(aspect))
        tallest -= get_width(tallest) > original[1]
    tallest = min(tallest, original[0])
    height = min(shortest, tallest)
    if height < tallest:
        height += _draw_below(tallest - height + 1, numbers)
    # Rounding may carry the area out of its bounds by less than a row.
    height += np.float32(height * get_width(height)) < min_area
    height -= np.float32(height * get_width(height)) > max_area
    width = get_width(height)
    fits = min_area <= np.float32(height * width) <= max_area and 0 < width <= original[1] and 0 < height <= original[0]
    return (int(height), width) if fits else None


def _draw_below(count: int, numbers: Iterator[int]) -> int:
    """Draws a number below `count`, without bias."""
    if count & (count - 1) == 0:
        return next(numbers) & (count - 1)
    rest = (2**32 - 1) % count + 1
    return next(number for number in numbers if number >= rest) % count


def draw_numbers(seeds: NDArray[np.int32], count: int) -> NDArray[np.uint32]:
    """Draws the first random numbers of each seed: uint32 [n, count]; `count` is a multiple of 4."""
    words = seeds.astype(np.int64).view(np.uint64)  # with their signs
    halves = np.stack([words & _LOW, words >> _HALF], axis=-1).reshape(-1, 4)
    drawn = _philox(halves, np.broadcast_to(_SCRAMBLE, (len(seeds), 2)))
    blocks = count // 4
    counters = np.zeros((len(seeds), blocks, 4), np.uint64)
    counters[:, :, 0] = np.arange(blocks)
    counters[:, :, 2:] = drawn[:, None, 2:]
    numbers = _philox(counters.reshape(-1, 4), np.repeat(drawn[:, :2], blocks, axis=0))
    return numbers.astype(np.uint32).reshape(len(seeds), count)


def _philox(counters: _Words, keys: _Words) -> _Words:
    """Computes Philox-4x32-10 of each counter ([n, 4]) under its key ([n, 2]), all words of 32 bits: [n, 4]."""
    first, second, third, fourth = counters.T
    for turn in range(10):
        key = (keys + np.uint64(turn) * _STEPS) & _LOW
        left, right = first * _FACTORS[0], third * _FACTORS[1]
        first, second = (right >> _HALF) ^ second ^ key[:, 0], right & _LOW
        third, fourth = (left >> _HALF) ^ fourth ^ key[:, 1], left & _LOW
    return np.stack([first, second, third, fourth], axis=-1)
