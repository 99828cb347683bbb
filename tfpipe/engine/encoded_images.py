"""The images of a batch: which ones it holds, their crops, their pixels, and their masks.

The native library decodes all images of a batch in one call. Pillow decodes those that it declines: other formats, rare
kinds of JPEGs, and damaged ones, for an error that says what is wrong. The native library does all resizing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.clocks import run_in_threads
from tfpipe.engine.config.augment_config import AugmentOptions, compute_scaling
from tfpipe.engine.parse import BadRecord, Column
from tfpipe.format.image_form import ImageForm
from tfpipe.images.errors import BadImage
from tfpipe.native import antialias, batches
from tfpipe.system.hash_permutation import IntArray, hash_numbers

DTYPES: dict[str, Any] = {"uint8": np.uint8, "float32": np.float32, "bfloat16": np.uint16}
"""The NumPy type of each `image_dtype`. NumPy has no bfloat16, so its values are held as their bits."""

_CHOICE_KEY = 0x13198A2E03707344  # digits of pi
_HALF_MARGIN = 1e-9  # sides have at most five digits, and float64 sixteen
_MOST_RATIO = 8
_MAX_SIDE = 2**31 - 1


@dataclass(frozen=True)
class EncodedImages:
    """The images of a batch as they are stored, with the crop and the flip of each."""

    column: Column  # with `per_record` values for each record
    per_record: int
    indices: IntArray | None  # each image's index in its record, int64 [images]; None if records have one
    sizes: IntArray  # height and width of each original, int64 [images, 2]
    extents: IntArray  # height and width of each stored image, int64 [images, 2]
    seeds: NDArray[np.int32]  # int32 [images, 2]
    boxes: NDArray[np.int32]  # y, x, height and width of each crop in pixels of the stored image, int32 [images, 4]
    flips: NDArray[np.bool_]  # whether to mirror left to right, bool [images]

    def make_whole(self) -> EncodedImages:
        """Returns the images without their crops and flips."""
        return replace(self, boxes=make_whole_boxes(self.extents), flips=np.zeros_like(self.flips))

    def list_corners(self) -> NDArray[np.float32]:
        """Lists the corners of each crop as fractions of the image, float32 [images, 4]: ymin, xmin, ymax, xmax."""
        corners = np.concatenate((self.boxes[:, :2], self.boxes[:, :2] + self.boxes[:, 2:]), axis=1)
        return (corners / np.tile(self.extents, 2)).astype(np.float32)

    @contextmanager
    def naming(self, image: int) -> Iterator[None]:
        """Turns a `BadImage` into a `BadRecord` with the image's row, and its index in records with several."""
        try:
            yield
        except BadImage as error:
            which = "image" if self.indices is None else f"image {self.indices[image]}"
            raise BadRecord(image // self.per_record, f"its {which} cannot be used, {error}") from None


def make_whole_boxes(extents: IntArray) -> NDArray[np.int32]:
    """Makes boxes of whole images of these heights and widths: int32 [images, 4]."""
    return np.concatenate((np.zeros_like(extents), extents), axis=1).astype(np.int32)


@dataclass(frozen=True)
class Decoding:
    """The options with which the images of a batch are decoded."""

    form: ImageForm
    raw_size: tuple[int, int] | None  # height and width of raw pixels; None for files
    size: tuple[int, int]  # height and width of the result
    dtype: str  # "uint8"; or "float32" or "bfloat16", which are normalized
    options: AugmentOptions  # `antialias`, `dct_scaling`, `mean` and `std`

    @cached_property
    def scaling(self) -> dict[str, Any]:
        """The native library's arguments that convert pixels to `dtype` and normalize them."""
        if self.dtype == "uint8":
            return {"dtype": self.dtype}
        offset, factor = compute_scaling(self.options.mean, self.options.std)
        return {"dtype": self.dtype, "offset": offset, "factor": factor}


def measure_images(column: Column, heights: Column, widths: Column) -> IntArray:
    """Returns the height and width of each original from the records' features, checked: int64 [images, 2]."""
    for sides in (heights, widths):
        wrong = np.flatnonzero(sides.counts != column.counts)
        if len(wrong):
            row = int(wrong[0])
            must = f"it must have a height and a width for each of {column.counts[row]} images"
            raise BadRecord(row, f"{must}, got {sides.counts[row]}")
    sizes = np.stack((heights.values, widths.values), axis=1)
    wrong = np.flatnonzero(((sizes < 1) | (sizes > _MAX_SIDE)).any(axis=1))
    if len(wrong):
        row = int(np.searchsorted(np.cumsum(column.counts), wrong[0], side="right"))
        height, width = sizes[wrong[0]].tolist()
        raise BadRecord(row, f"it must have the height and the width of its image, got {height} x {width}")
    return sizes


def measure_headers(column: Column) -> IntArray:
    """Returns the height and width of each image, read from its header: int64 [images, 2]."""
    from tfpipe.images.decode import read_image_header  # loads Pillow

    sizes = np.empty((len(column.values), 2), np.int64)
    for image, row in enumerate(np.repeat(np.arange(len(column.counts)), column.counts).tolist()):
        try:
            header = read_image_header(column.get_bytes(image))
        except BadImage as error:
            raise BadRecord(row, f"its image cannot be used, {error}") from None
        sizes[image] = header.height, header.width
    return sizes


def choose_images(seeds: NDArray[np.int32], counts: IntArray, number: int, most: int) -> IntArray:
    """Draws `number` of the up to `most` images of each record: their indices, ascending, int64 [n, number]."""
    drawn = hash_numbers(_CHOICE_KEY, seeds.view(np.int64) + np.arange(most))
    drawn[np.arange(most) >= counts[:, None]] = 2**63 - 1
    return np.sort(np.argsort(drawn, axis=1, kind="stable")[:, :number], axis=1)


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


def decode_images(
    images: EncodedImages, out: NDArray[Any], rows: IntArray | None, decoding: Decoding, threads: int
) -> None:
    """Decodes the crops of images into `out`, [images, height, width, 3], in order, or at `rows` if given.

    With one thread the calling thread decodes. An image that is damaged, or too large, raises a `BadRecord`.
    """
    left, column = list(range(len(images.boxes))), images.column
    if not decoding.options.antialias:  # the native library decodes the images that it supports
        assert column.memory is not None
        spans, size = np.array(column.values), decoding.raw_size
        spans[:, 0] += column.memory.ctypes.data
        results = batches.decode(
            spans,
            images.boxes,
            images.flips,
            out,
            sizes=None if size is None else np.tile(np.array(size, np.int32), (len(images.boxes), 1)),
            **decoding.scaling,
            max_ratio=1 if decoding.options.dct_scaling is False else _MOST_RATIO,
            threads=threads,
            max_pixels=decoding.form.max_pixels,
            rows=rows,
        )
        left = np.flatnonzero(results != batches.OK).tolist()

    def decode_one(image: int) -> None:
        _decode_one(images, image, out[image if rows is None else rows[image]], decoding)

    if left:
        run_in_threads(decode_one, left, threads)


def _decode_one(images: EncodedImages, image: int, out: NDArray[Any], decoding: Decoding) -> None:
    """Decodes one crop with Pillow, or slices it from raw pixels, and resizes it into `out`."""
    from tfpipe.images.decode import decode_crop, view_raw_pixels  # loads Pillow

    y, x, height, width = images.boxes[image].tolist()
    with images.naming(image):
        if decoding.raw_size is None:
            # The largest reduction while decoding that leaves a crop no smaller than the output.
            most = max(min(height // decoding.size[0], width // decoding.size[1]), 1)
            ratio = 1 if decoding.options.dct_scaling is False else min(1 << most.bit_length() - 1, _MOST_RATIO)
            data, box = images.column.get_bytes(image), (y, x, height, width)
            crop = decode_crop(data, decoding.form, box, ratio)
        else:
            crop = view_raw_pixels(images.column.get_view(image), decoding.raw_size)[y : y + height, x : x + width]
    if decoding.options.antialias:
        smooth = antialias.resize(crop.tobytes(), crop.shape[1::-1], decoding.size[::-1], is_bicubic=False)
        crop = np.frombuffer(smooth, np.uint8).reshape(*decoding.size, 3)
    resize_pixels(crop, out, decoding, bool(images.flips[image]))


def resize_pixels(pixels: NDArray[np.uint8], out: NDArray[Any], decoding: Decoding, flip: bool) -> None:
    """Resizes uint8 [height, width, 3] bilinearly, with half-pixel centers, into `out`; converts and mirrors it."""
    pixels = np.ascontiguousarray(pixels)
    spans = np.array([(pixels.ctypes.data, pixels.size)], np.int64)
    sizes = np.array([pixels.shape[:2]], np.int32)
    boxes = np.array([(0, 0, *pixels.shape[:2])], np.int32)
    batches.decode(spans, boxes, np.array([flip]), out[None], sizes=sizes, **decoding.scaling)


def make_masks(
    name: str, column: Column, images: EncodedImages, size: tuple[int, int], filled: int
) -> NDArray[np.int32]:
    """Makes the masks of a batch, int32 [rows, height, width], cropped like their images, and `filled` zeros."""
    from tfpipe.images.masks import crop_nearest  # loads Pillow

    masks = np.zeros((len(column.counts) + filled, *size), np.int32)
    for row, classes in enumerate(read_masks(name, column, images.extents)):
        box = images.boxes[row].tolist()
        mask = crop_nearest(classes, (box[0], box[1], box[2], box[3]), size)
        masks[row] = mask[:, ::-1] if images.flips[row] else mask
    return masks


def read_masks(name: str, column: Column, sizes: IntArray) -> Iterator[Any]:
    """Yields the classes of each mask, [height, width]; a damaged mask, or one of another size, is a `BadRecord`."""
    from tfpipe.images.masks import read_mask  # loads Pillow

    column.check_counts(1, name)
    for row, (height, width) in enumerate(sizes.tolist()):
        try:
            classes = read_mask(column.get_bytes(row), height * width)
            if classes.shape != (height, width):
                raise BadImage(f"it has {classes.shape[1]} x {classes.shape[0]} pixels, the image {width} x {height}")
        except BadImage as error:
            raise BadRecord(row, f"{name!r} cannot be used, {error}") from None
        yield classes
