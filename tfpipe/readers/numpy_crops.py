"""The windows and flips of the input pipeline, drawn without TensorFlow: the same numbers for the same records.

`tfpipe.pipeline.stages._crop_box` draws them with TensorFlow's stateless operations on the host, whose numbers are
those of
Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") under a key that is itself drawn from
the seed. They are computed here once more, in float32 where TensorFlow does so; `tests/readers/test_numpy_crops.py`
holds
the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import floor

import numpy as np
from numpy.typing import NDArray

from tfpipe.pipeline.config.augment_config import AugmentOptions
from tfpipe.system.hash_permutation import EXAMPLE, IntArray, key_of

Window = tuple[int, int, int, int]
"""y, x, height and width in pixels of the stored image; inside it and at least 1 x 1."""

Size = tuple[int, int]
"""Height and width in pixels."""

CROP_ATTEMPTS = 10
"""Windows tried before the whole image is taken, as in `tfpipe.pipeline.stages._crop_box`."""

_FLIP_KEY = np.array((0x243F6A88, 0x05A308D3), np.int32)  # as there
_HALF_MARGIN = 1e-9
_FIRST_NUMBERS = 16  # four windows' worth: nearly all records need no more
_MORE_NUMBERS = 256

# Philox: two multipliers, what the key grows by each round, and the key under which TensorFlow draws the key.
_FACTORS = np.array((0xD2511F53, 0xCD9E8D57), np.uint64)
_STEPS = np.array((0x9E3779B9, 0xBB67AE85), np.uint64)
_SCRAMBLE = np.array((0x3EC8F720, 0x02461E29), np.uint64)
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)

_Words = NDArray[np.uint64]


def example_seeds(seed: int, epoch: int, records: IntArray) -> NDArray[np.int32]:
    """The seed of each record in one epoch, as `_order_ops.make_seeds` gives it.

    Args:
      seed: Of the run.
      epoch: From 0.
      records: int64 of shape [n]: numbers of records, counted through all shards.

    Returns:
      int32 of shape [n, 2].
    """
    keys = [key_of(EXAMPLE, seed, epoch, record) for record in records.tolist()]
    return np.array(keys, "<u8").view("<i4").astype(np.int32).reshape(-1, 2)


def first_numbers(seeds: NDArray[np.int32]) -> list[list[int]]:
    """The random numbers of windows, as many as nearly all records need: for many seeds at once, 2 us each.

    Args:
      seeds: int32 of shape [n, 2].
    """
    numbers: list[list[int]] = _numbers(seeds, _FIRST_NUMBERS).tolist()
    return numbers


def sample_window(seed: NDArray[np.int32], first: list[int], original: Size, options: AugmentOptions) -> Window:
    """Draws a random resized crop, as `augment.sample_window` does, in pixels of the original.

    Args:
      seed: int32 of shape [2].
      first: The seed's row of `first_numbers`.
      original: Of the original.
      options: `scale` and `ratio` are used.
    """
    later = (number for k in range(1) for number in _numbers(seed[None], _MORE_NUMBERS)[0, len(first) :].tolist())
    return _sample(chain(first, later), original, options)


def squeeze_window(window: Window, original: Size, stored: Size) -> Window:
    """The window in pixels of an image that was squeezed to another size: its corners as shares of the original."""
    if original == stored:
        return window
    y, x, height, width = window
    shape, extent = np.array(original, np.float32), np.array(stored, np.int64)
    near, far = (
        np.rint(np.array(corner, np.float32) / shape * extent.astype(np.float32)).astype(np.int64)
        for corner in ((y, x), (y + height, x + width))
    )
    near = np.minimum(near, extent - 1)
    top, left = near.tolist()
    high, wide = np.clip(far - near, 1, extent - near).tolist()
    return top, left, high, wide


def center_window(original: Size, stored: Size, out_size: Size, crop_fraction: float) -> Window:
    """The window of evaluation, as `augment.center_window` has it.

    Args:
      original: Of the original, which the output's aspect ratio is seen in.
      stored: Of the image that is stored, which may be squeezed.
      out_size: Of the output.
      crop_fraction: Share of the largest centred crop's side that is kept, in (0, 1].
    """
    units = [side / out for side, out in zip(original, out_size, strict=True)]
    # Halves up, with the margin that is there.
    sides = (min(units) / unit * crop_fraction * side for unit, side in zip(units, stored, strict=True))
    height, width = (
        min(max(floor(side + 0.5 + _HALF_MARGIN), 1), most) for side, most in zip(sides, stored, strict=True)
    )
    return (stored[0] - height) // 2, (stored[1] - width) // 2, height, width


def sample_flips(seeds: NDArray[np.int32]) -> list[bool]:
    """Draws which images are mirrored left to right, as `augment.sample_flip` does.

    Args:
      seeds: int32 of shape [n, 2]; the same as the windows'.
    """
    flips: list[bool] = (_numbers(seeds ^ _FLIP_KEY, 4)[:, 0] % 2 == 1).tolist()
    return flips


def _sample(numbers: Iterator[int], original: Size, options: AugmentOptions) -> Window:
    (low, high), (height, width) = np.array(options.ratio, np.float32), original
    least, most = (np.float32(share) * np.float32(width) * np.float32(height) for share in options.scale)
    for _ in range(CROP_ATTEMPTS):
        # The lower 23 bits are those of a float32 between 1 and 2.
        part = np.float32((next(numbers) & 0x7FFFFF) * 2.0**-23)
        extent = _sample_extent(numbers, original, (least, most), part * (high - low) + low)
        if extent is not None:
            y = _below(height - extent[0], numbers) if extent[0] < height else 0
            x = _below(width - extent[1], numbers) if extent[1] < width else 0
            return y, x, *extent
    return 0, 0, height, width


def _sample_extent(
    numbers: Iterator[int], original: Size, areas: tuple[np.float32, np.float32], aspect: np.float32
) -> Size | None:
    """Height, uniform among those that keep the area within bounds, and width; None where none does."""

    def wide(high: int) -> int:
        return int(np.rint(np.float32(high) * aspect))

    least, most = areas
    shortest, tallest = (int(np.rint(np.sqrt(area / aspect))) for area in areas)
    if wide(tallest) > original[1]:
        tallest = int((original[1] + 0.5 - 1e-7) / float(aspect))
        tallest -= wide(tallest) > original[1]
    tallest = min(tallest, original[0])
    height = min(shortest, tallest)
    if height < tallest:
        height += _below(tallest - height + 1, numbers)
    # Rounding may carry the area out of its bounds by less than a row.
    height += np.float32(height * wide(height)) < least
    height -= np.float32(height * wide(height)) > most
    width = wide(height)
    fits = least <= np.float32(height * width) <= most and 0 < width <= original[1] and 0 < height <= original[0]
    return (int(height), width) if fits else None


def _below(count: int, numbers: Iterator[int]) -> int:
    """A number below `count`, without bias."""
    if count & (count - 1) == 0:
        return next(numbers) & (count - 1)
    rest = (2**32 - 1) % count + 1
    return next(number for number in numbers if number >= rest) % count


def _numbers(seeds: NDArray[np.int32], count: int) -> NDArray[np.uint32]:
    """The first random numbers of each seed: uint32 [n, count]; `count` is a multiple of 4."""
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
    """Philox-4x32-10 of each counter ([n, 4]) under its key ([n, 2]), all words of 32 bits: [n, 4]."""
    first, second, third, fourth = counters.T
    for turn in range(10):
        key = (keys + np.uint64(turn) * _STEPS) & _LOW
        left, right = first * _FACTORS[0], third * _FACTORS[1]
        first, second = (right >> _HALF) ^ second ^ key[:, 0], right & _LOW
        third, fourth = (left >> _HALF) ^ fourth ^ key[:, 1], left & _LOW
    return np.stack([first, second, third, fourth], axis=-1)
