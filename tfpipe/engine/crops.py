"""The seeds, the crop boxes and the flips of a batch: each one call for all of its images.

A box is y, x, height and width in pixels of the stored image. Randomness is a function of the seed, the epoch and the
record's number, so it does not depend on who makes the batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.native import batches
from tfpipe.system.hash_permutation import EXAMPLE, IntArray, extend_keys, key_of

_CHOICE_KEY = (0x13198A2E, 0x03707344)  # further digits of pi, of which the key of flips is the first ones
_IMAGE_STEP = 0x9E3779B1  # odd, so that each image of a record changes its seed in another way

# Philox-4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): two multipliers, the steps by
# which its key grows, and the key under which TensorFlow draws that key from a seed.
_FACTORS = np.array((0xD2511F53, 0xCD9E8D57), np.uint64)
_STEPS = np.array((0x9E3779B9, 0xBB67AE85), np.uint64)
_SCRAMBLE = np.array((0x3EC8F720, 0x02461E29), np.uint64)
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)

_Words = NDArray[np.uint64]
_HALF_MARGIN = 1e-9  # sides have at most five digits, and float64 sixteen


def make_seeds(seed: int, epoch: int, numbers: IntArray) -> NDArray[np.int32]:
    """Computes the seed of each record in one epoch, int32 [n, 2], by its number, counted through all shards."""
    keys = extend_keys(key_of(EXAMPLE, seed, epoch), numbers)
    seeds: NDArray[np.int32] = keys.astype("<u8").view("<i4").astype(np.int32).reshape(-1, 2)
    return seeds


def make_image_seeds(seeds: NDArray[np.int32], places: IntArray) -> NDArray[np.int32]:
    """Makes the seed of each image of records with several, int32 [n, images, 2]; image 0 has the record's own."""
    words = (places.astype(np.uint64) * np.uint64(_IMAGE_STEP) & _LOW).astype(np.uint32).view(np.int32)
    image_seeds: NDArray[np.int32] = seeds[:, None] ^ np.stack((words, np.zeros_like(words)), axis=-1)
    return image_seeds


def choose_images(seeds: NDArray[np.int32], counts: IntArray, number: int, most: int) -> IntArray:
    """Draws `number` images of each record, which has up to `most`: their ascending places, int64 [n, number]."""
    keys = seeds ^ np.array(_CHOICE_KEY, np.int32)
    drawn = _draw_numbers(keys, -(-most // 4))[:, :most].astype(np.uint32).view(np.int32).astype(np.int64)
    drawn[np.arange(most) >= counts[:, None]] = 2**62
    return np.sort(np.argsort(drawn, axis=1, kind="stable")[:, :number], axis=1)


def draw_boxes(
    seeds: NDArray[np.int32], sizes: IntArray, stored: tuple[int, int] | None, options: AugmentOptions
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Draws random resized crops, int32 [n, 4], in the shape of the originals, and whether to mirror each, bool [n].

    `stored` is the size of the stored images if all were squeezed to one; None if they have the originals' `sizes`.
    """
    boxes, flips = np.empty((len(seeds), 4), np.int32), np.empty(len(seeds), np.bool_)
    arrays = np.array(seeds, np.int32, order="C"), np.array(sizes, np.int32, order="C")
    batches.draw_crops(*arrays, boxes, flips, scale=options.scale, ratio=options.ratio, stored=stored or (0, 0))
    return boxes, flips if options.flip else np.zeros(len(flips), np.bool_)


def center_boxes(
    sizes: IntArray, stored: IntArray, out_size: tuple[int, int], crop_fraction: float
) -> NDArray[np.int32]:
    """Computes the boxes of evaluation: what resizing the short side and then cropping the middle would show.

    In the originals, of these `sizes`, they have the output's aspect ratio, and `crop_fraction` of the largest such
    crop's side. A box's size is rounded, halves up; its place is rounded up and to the left.
    """
    units = sizes / np.array(out_size, np.float64)
    shares = units.min(axis=1, keepdims=True) / units * crop_fraction
    # Halves up, by far more than these numbers' error: a model that is served computes them in another order.
    extents = np.clip(np.floor(shares * stored + (0.5 + _HALF_MARGIN)).astype(np.int64), 1, stored)
    return np.concatenate(((stored - extents) // 2, extents), axis=1).astype(np.int32)


def _draw_numbers(seeds: NDArray[np.int32], blocks: int) -> _Words:
    """Draws the first random numbers of each seed, those of TensorFlow's stateless operations: [n, 4 * blocks]."""
    words = seeds.astype(np.int64).view(np.uint64)  # with their signs
    halves = np.stack([words & _LOW, words >> _HALF], axis=-1).reshape(-1, 4)
    drawn = _philox(halves, np.broadcast_to(_SCRAMBLE, (len(seeds), 2)))
    counters = np.zeros((len(seeds), blocks, 4), np.uint64)
    counters[:, :, 0] = np.arange(blocks)
    counters[:, :, 2:] = drawn[:, None, 2:]
    return _philox(counters.reshape(-1, 4), np.repeat(drawn[:, :2], blocks, axis=0)).reshape(len(seeds), 4 * blocks)


def _philox(counters: _Words, keys: _Words) -> _Words:
    """Computes Philox-4x32-10 of each counter ([n, 4]) under its key ([n, 2]), all words of 32 bits: [n, 4]."""
    first, second, third, fourth = counters.T
    for turn in range(10):
        key = (keys + np.uint64(turn) * _STEPS) & _LOW
        left, right = first * _FACTORS[0], third * _FACTORS[1]
        first, second = (right >> _HALF) ^ second ^ key[:, 0], right & _LOW
        third, fourth = (left >> _HALF) ^ fourth ^ key[:, 1], left & _LOW
    return np.stack([first, second, third, fourth], axis=-1)
