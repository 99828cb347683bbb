"""Masks: the class of each pixel, cropped and mirrored as the image of the record."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.columns.images import StoredImages
from tfpipe.engine.parse import BadRecord, Column
from tfpipe.images.errors import BadImage
from tfpipe.images.masks import crop_nearest, read_mask, resize_nearest
from tfpipe.system.hash_permutation import IntArray


def make_masks(
    name: str,
    column: Column,
    images: StoredImages,
    stored_sizes: IntArray,
    size: tuple[int, int],
    filled: int,
    squeeze_to: tuple[int, int] | None = None,
) -> NDArray[np.int32]:
    """Makes the masks of a batch, int32 [rows, height, width], cropped as their images, with `filled` ones of zeros.

    A mask that is damaged, or has another size than its stored image, is a `BadRecord`. They are squeezed before they
    are cropped, where a cache has its images squeezed.
    """
    column.check_counts(1, name)
    masks = np.zeros((len(column.counts) + filled, *size), np.int32)
    for row, (height, width) in enumerate(stored_sizes.tolist()):
        try:
            classes = read_mask(column.get_bytes(row), height * width)
            if classes.shape != (height, width):
                raise BadImage(f"it has {classes.shape[1]} x {classes.shape[0]} pixels, the image {width} x {height}")
        except BadImage as error:
            raise BadRecord(row, f"{name!r} cannot be used, {error}") from None
        if squeeze_to is not None:
            classes = resize_nearest(classes, squeeze_to)
        box = images.boxes[row].tolist()
        mask = crop_nearest(classes, (box[0], box[1], box[2], box[3]), size)
        masks[row] = mask[:, ::-1] if images.flips[row] else mask
    return masks
