"""Does to a mask what is done to its image: turns it, cuts a box out of it, and resizes it without blending classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfpipe.images.errors import BadImage
from tfpipe.images.exif import find_turn, get_upright_size, swaps_sides, turn_image
from tfpipe.images.masks.mask_file import (
    Classes,
    decode_mask,
    encode_mask,
    is_plain,
    make_mask_image,
    read_mask_header,
)


@dataclass(frozen=True, slots=True)
class MaskPlace:
    """The place of a mask: what was done to the image that it belongs to.

    Attributes:
        width: The width of the image in its file, before it was turned.
        height: The height of the image in its file.
        orientation: The EXIF orientation by which the image was turned, 1 to 8.
        size: The width and the height of the stored image.
        frame: The width and the height of the image that an annotation is for, as for boxes; empty without one.
    """

    width: int
    height: int
    orientation: int
    size: tuple[int, int]
    frame: Sequence[float] = ()

    def find_turn(self, mask: tuple[int, int]) -> int | None:
        """Returns the orientation by which a mask of this size must be turned; None if it does not fit."""
        stored = self.width, self.height
        if mask not in (stored, get_upright_size(stored, self.orientation), tuple(self.frame)):
            return None
        return find_turn(mask, stored, self.orientation, is_upright=bool(self.frame))


def prepare_mask(data: bytes, place: MaskPlace, max_pixels: int) -> bytes:
    """Checks a mask and does to it what was done to its image. A mask that fits as it is keeps its bytes.

    Args:
        data: The PNG, for the pixels of the image as they lie in its file or, if its size says so, for the upright
            ones.
        place: The place of the mask.
        max_pixels: The largest number of pixels.

    Raises:
        BadImage: The mask cannot be read, or it has another size than the image. The reason names the mask.
    """
    try:
        header = read_mask_header(data, max_pixels)
        classes = decode_mask(header)
    except BadImage as error:
        raise BadImage(f"its mask: {error.reason}") from error
    size = header.width, header.height
    turn = place.find_turn(size)
    if turn is None:
        turned = ", before EXIF turns it" if swaps_sides(place.orientation) else ""
        raise BadImage(
            f"its mask has {header.width} x {header.height} pixels, the image {place.width} x {place.height}{turned}"
        )
    if place.size == size and turn == 1 and is_plain(header):
        return data
    classes = np.asarray(turn_image(make_mask_image(classes), turn))
    return encode_mask(resize_nearest(classes, place.size[::-1]))


def resize_nearest(classes: Classes, size: tuple[int, int]) -> Classes:
    """Resizes classes to a height and a width: each pixel takes the class under its center."""
    height, width = classes.shape
    return crop_nearest(classes, (0, 0, height, width), size)


def crop_nearest(classes: Classes, crop_box: tuple[int, int, int, int], size: tuple[int, int]) -> Classes:
    """Cuts a box out of classes and resizes it: each pixel takes the class under its center.

    Args:
        classes: uint8 or uint16 [height, width].
        crop_box: The y, x, height and width of the box, inside and not empty.
        size: The height and width of the result.

    Returns:
        The dtype of `classes`, of this size.
    """
    y, x, height, width = crop_box
    rows = y + (2 * np.arange(size[0]) + 1) * height // (2 * size[0])
    columns = x + (2 * np.arange(size[1]) + 1) * width // (2 * size[1])
    return classes[rows[:, None], columns]
