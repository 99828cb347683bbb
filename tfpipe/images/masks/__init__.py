"""Masks: PNG files that give the class of each pixel of an image.

classes = read_mask(data, max_pixels)                       # uint8 or uint16 [height, width]
stored = prepare_mask(data, place, max_pixels)              # follows what was done to its image
"""

from tfpipe.images.masks.follow_image import MaskPlace, crop_nearest, prepare_mask, resize_nearest
from tfpipe.images.masks.mask_file import Classes, check_mask, count_masks, encode_mask, read_mask

__all__ = [
    "Classes",
    "MaskPlace",
    "check_mask",
    "count_masks",
    "crop_nearest",
    "encode_mask",
    "prepare_mask",
    "read_mask",
    "resize_nearest",
]
