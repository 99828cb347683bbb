"""The features of an image and its mask out of the values that a user's record gives."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from tfpipe.errors import ConfigError
from tfpipe.format import schema as keys
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import MAX_IMAGES

_MAX_CLASS = 65_535


def make_image_values(name: str, image: Any, mask: tuple[str, Any] | None, form: ImageForm) -> dict[str, Any]:
    """Makes the features of an image.

    Args:
        name: The name of the image with what it is, for messages: "Image 'photo'".
        image: The bytes of a file, or uint8 [height, width, 3] or [height, width].
        mask: The name of its mask, and the bytes of a PNG or whole numbers [height, width]; None without one.
        form: The form in which the image is stored.

    Raises:
        ConfigError: The image or the mask cannot be stored. The message says why.
    """
    from tfpipe.images.normalize import BadImage, prepare_image  # Pillow loads only for records with images

    data = _encode_image(name, image)
    mask_data = None if mask is None else _encode_mask(*mask)
    try:
        prepared = prepare_image(data, form, mask=mask_data)
    except BadImage as error:
        raise ConfigError(f"{name} cannot be stored: {error.reason}.") from None
    values: dict[str, Any] = {
        keys.IMAGE_ENCODED: prepared.encoded,
        keys.IMAGE_FORMAT: prepared.format,
        keys.IMAGE_HEIGHT: prepared.height,
        keys.IMAGE_WIDTH: prepared.width,
        keys.IMAGE_CHANNELS: prepared.channels,
        keys.IMAGE_COLORSPACE: prepared.colorspace,
        keys.IMAGE_FILENAME: "",
        keys.IMAGE_SHA256: hashlib.sha256(data).hexdigest(),
    }
    return values if mask is None else values | {keys.IMAGE_MASK: prepared.mask}


def make_list_values(name: str, images: Any, shape: tuple[int, ...] | None, form: ImageForm) -> dict[str, list[Any]]:
    """Makes the features of several images: lists with one value for each.

    Args:
        name: The name of the images, for messages.
        images: A list of images, each as for `make_image_values`, or an array of them.
        shape: The shape of their features: `(n,)` for n images, None for any number.
        form: The form in which the images are stored.

    Raises:
        ConfigError: The number is wrong, or an image cannot be stored. The message says which.
    """
    must = f"Images {name!r} must be a list of {f'1 to {MAX_IMAGES:,}' if shape is None else shape[0]} images"
    if not isinstance(images, list | tuple) and not (isinstance(images, np.ndarray) and images.ndim):
        raise ConfigError(f"{must}, got a {type(images).__name__}.")
    if not 1 <= len(images) <= MAX_IMAGES or shape not in (None, (len(images),)):
        raise ConfigError(f"{must}, got {len(images):,}.")
    rows = [make_image_values(f"Image {k} of {name!r}", image, None, form) for k, image in enumerate(images)]
    return {key: [row[key] for row in rows] for key in rows[0]}


def _encode_image(name: str, image: Any) -> bytes:
    from tfpipe.images.decode import make_image
    from tfpipe.images.transcode import encode

    if isinstance(image, bytes):
        return image
    pixels = np.asarray(image)
    is_gray, is_color = pixels.ndim == 2, pixels.ndim == 3 and pixels.shape[-1] == 3
    if pixels.dtype != np.uint8 or not (is_gray or is_color) or not pixels.size:
        got = f"{pixels.dtype} {list(pixels.shape)}" if pixels.dtype.kind in "biuf" else f"a {type(image).__name__}"
        raise ConfigError(
            f"{name} must be the bytes of a file, or uint8 [height, width, 3] or [height, width], got {got}."
        )
    return encode(make_image(np.ascontiguousarray(pixels)), "png", ImageForm())


def _encode_mask(name: str, mask: Any) -> bytes:
    from tfpipe.images.masks import encode_mask

    if isinstance(mask, bytes):
        return mask
    classes = np.asarray(mask)
    if classes.dtype.kind not in "biu" or classes.ndim != 2 or not classes.size:
        got = f"{classes.dtype} {list(classes.shape)}" if classes.dtype.kind in "biuf" else f"a {type(mask).__name__}"
        raise ConfigError(f"Mask {name!r} must be the bytes of a PNG, or whole numbers [height, width], got {got}.")
    low, high = int(classes.min()), int(classes.max())
    if low < 0 or high > _MAX_CLASS:
        raise ConfigError(f"Mask {name!r} must hold classes from 0 to {_MAX_CLASS:,}, got {low if low < 0 else high}.")
    if classes.dtype != np.uint16:
        classes = classes.astype(np.uint8 if high < 256 else np.uint16)
    return encode_mask(classes)
