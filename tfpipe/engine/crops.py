"""The seeds, the crop boxes and the flips of a batch; one call computes each for all images.

A box is y, x, height and width in pixels of the stored image. Randomness is a function of the seed, the epoch and the
record's number, so it does not depend on who makes the batch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.config.augment_config import AugmentOptions
from tfpipe.native import batches
from tfpipe.system.hash_permutation import EXAMPLE, IntArray, extend_keys, hash_numbers, key_of

_CHOICE_KEY = 0x13198A2E03707344  # digits of pi
_IMAGE_STEP = 0x9E3779B1  # odd, so that each image of a record changes its seed in another way

_HALF_MARGIN = 1e-9  # sides have at most five digits, and float64 sixteen


def make_seeds(seed: int, epoch: int, numbers: IntArray) -> NDArray[np.int32]:
    """Computes the seed of each record in one epoch, int32 [n, 2], by its number, counted through all shards."""
    keys = extend_keys(key_of(EXAMPLE, seed, epoch), numbers)
    seeds: NDArray[np.int32] = keys.astype("<u8").view("<i4").astype(np.int32).reshape(-1, 2)
    return seeds


def make_image_seeds(seeds: NDArray[np.int32], indices: IntArray) -> NDArray[np.int32]:
    """Makes the seeds of the images of records with several, int32 [n, images, 2]; image 0 has the record's seed."""
    words = (indices.astype(np.uint64) * np.uint64(_IMAGE_STEP) & np.uint64(2**32 - 1)).astype(np.uint32).view(np.int32)
    image_seeds: NDArray[np.int32] = seeds[:, None] ^ np.stack((words, np.zeros_like(words)), axis=-1)
    return image_seeds


def choose_images(seeds: NDArray[np.int32], counts: IntArray, number: int, most: int) -> IntArray:
    """Draws `number` of the up to `most` images of each record: their indices, ascending, int64 [n, number]."""
    drawn = hash_numbers(_CHOICE_KEY, seeds.view(np.int64) + np.arange(most))
    drawn[np.arange(most) >= counts[:, None]] = 2**63 - 1
    return np.sort(np.argsort(drawn, axis=1, kind="stable")[:, :number], axis=1)


def draw_boxes(
    seeds: NDArray[np.int32], sizes: IntArray, stored: tuple[int, int] | None, options: AugmentOptions
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Draws random resized crops, int32 [n, 4], in the originals' aspect ratio, and whether to mirror each, bool [n].

    `stored` is the size of the stored images if all were squeezed to one; None if they have the originals' `sizes`.
    """
    boxes, flips = np.empty((len(seeds), 4), np.int32), np.empty(len(seeds), np.bool_)
    arrays = np.array(seeds, np.int32, order="C"), np.array(sizes, np.int32, order="C")
    batches.draw_crops(*arrays, boxes, flips, scale=options.scale, ratio=options.ratio, stored=stored or (0, 0))
    return boxes, flips if options.flip else np.zeros(len(flips), np.bool_)


def center_boxes(
    sizes: IntArray, stored: IntArray, out_size: tuple[int, int], crop_fraction: float
) -> NDArray[np.int32]:
    """Computes the crop boxes of evaluation: what resizing the short side and then cropping the center would show.

    In an original, of these `sizes`, a box has the output's aspect ratio, and `crop_fraction` of the side of the
    largest such box. Its size is rounded, halves up; its corner is rounded to the top left.
    """
    units = sizes / np.array(out_size, np.float64)
    shares = units.min(axis=1, keepdims=True) / units * crop_fraction
    # The margin is far above the rounding error, which differs in a served model, so halves always go up.
    extents = np.clip(np.floor(shares * stored + (0.5 + _HALF_MARGIN)).astype(np.int64), 1, stored)
    return np.concatenate(((stored - extents) // 2, extents), axis=1).astype(np.int32)
