"""The batch of a step whose images are kept decoded, in memory.

Images that the cache keeps are decoded whole into it and cropped there. Others are made as without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch, BatchMaker, StoredBatch
from tfpipe.engine.cache import DecodedCache, choose_kept, get_cached_form
from tfpipe.engine.columns.images import decode_images, read_masks
from tfpipe.engine.epoch_weights import strip_copies
from tfpipe.engine.parse import Column, collect_column
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.system.hash_permutation import IntArray

HalfCached: TypeAlias = tuple[int, IntArray, IntArray, StoredBatch | None]
"""The epoch of a batch, its records as `BatchPlan.list_numbers` says them, the rows that were not in the cache, and the
records of these rows."""


class CachingMaker(BatchMaker):
    """A maker that keeps decoded images in memory. Threads may share it."""

    def _open_cache(self) -> None:
        self._cache: DecodedCache = DecodedCache(choose_kept(self.plan, self.reader), self.plan)
        size, dtype = get_cached_form(self.plan)
        self._image_names = self.plan.source.image_key, IMAGE_HEIGHT, IMAGE_WIDTH
        self._is_final = not self.plan.config.training and self.plan.config.augment != "device"
        self._filling = replace(self.decoding, size=size, dtype=dtype)
        self._cropping = replace(self.decoding, raw_size=size)

    def read(self, epoch: int, step: int, numbers: IntArray | None = None) -> HalfCached:
        """Reads the records of one batch that are not in the cache."""
        numbers = self.list_numbers(epoch, step) if numbers is None else numbers
        missing = np.flatnonzero(~self._cache.find(strip_copies(numbers)))
        stored = super().read(epoch, step, numbers[missing]) if len(missing) else None
        return epoch, numbers, missing, stored

    def decode(
        self,
        stored: HalfCached,
        threads: int = 1,
        out: NDArray[Any] | None = None,
        rows: IntArray | None = None,
        filled: int | None = None,
    ) -> Batch:
        """Makes the arrays of a batch; arguments, result and errors are those of `BatchMaker.decode`."""
        epoch, asked, missing, records = stored
        numbers, cache = strip_copies(asked), self._cache
        slots = cache.slots[numbers]
        if filled is None:
            filled = self.plan.batch_size - len(numbers) if rows is None else 0
        images = np.arange(len(numbers)) if rows is None else rows
        if out is None:
            out = self.allocate_images(self.plan.batch_size)
            out[len(numbers) :] = 0
        parts, part_rows = [], []
        if records is not None:
            kept = slots[missing] >= 0
            self._fill(records, np.flatnonzero(kept), slots[missing[kept]], threads)
            others = missing[~kept]
            if len(others):
                parts.append(super().decode(records.choose(np.flatnonzero(~kept)), threads, out, images[others]))
                part_rows.append(others)
        # The rows whose images are in the cache, and the parts of rows behind all records.
        rows = np.flatnonzero(slots >= 0)
        slots = slots[rows]
        squeezed = self.plan.source.images.size if self._is_final else self._filling.size
        cropped = self.place_crops(epoch, asked[rows], cache.sizes[slots], squeezed, _list_pixels(cache.images, slots))
        if self._is_final:
            out[images[rows]] = cache.images[slots]
        else:
            with self.clocks.measure("decode"):
                decode_images(self.leave_to_device(cropped), out, images[rows], self._cropping, threads)
        columns = {
            name: collect_column([cache.others[slot][name] for slot in slots.tolist()], name, kind)
            for name, kind in self.kinds.items()
            if name not in self._image_names
        }
        cached = StoredBatch(epoch, numbers[rows], numbers[rows], columns)
        parts.append({**self.make_others(cached, cropped, filled), "image": out})
        part_rows.append(np.concatenate((rows, len(numbers) + np.arange(filled))))
        return join_rows(parts, part_rows)

    def _fill(self, stored: StoredBatch, chosen: IntArray, slots: IntArray, threads: int) -> None:
        """Decodes some of the records into their places in the cache."""
        if not len(chosen):
            return
        slots, firsts = np.unique(slots, return_index=True)  # copies of one record may meet in a batch
        records = stored.choose(chosen[firsts])
        images = self.choose_images(records)
        if not self._is_final:
            images = images.make_whole()
        others = {name: column for name, column in records.columns.items() if name not in self._image_names}
        with self.clocks.measure("decode"), self.naming(records.numbers):
            decode_images(images, self._cache.images, slots, self._filling, threads)
            for name in () if self._is_final else self.plan.masks:  # they are resized as the images
                from tfpipe.images.masks import encode_mask, resize_nearest  # loads Pillow

                masks = read_masks(name, others[name], images.extents)
                encoded = [[encode_mask(resize_nearest(classes, self._filling.size))] for classes in masks]
                others[name] = collect_column(encoded, name, "bytes")
        self._cache.keep_others(slots, images.sizes, others)


def _list_pixels(images: NDArray[np.uint8], chosen: IntArray) -> Column:
    """Makes the column of records that have the pixels of some images, [images, height, width, 3]."""
    stride = images[0].size if len(images) else 0
    places = np.stack((chosen * stride, np.full(len(chosen), stride)), axis=1)
    return Column(np.ones(len(chosen), np.int64), places, images.reshape(-1))


def join_rows(parts: Sequence[dict[str, Any]], rows: Sequence[IntArray], images_per_row: int = 1) -> dict[str, Any]:
    """Joins the parts of a batch by the rows that each has. An array of images is whole already in each part."""
    return {
        name: _join([part[name] for part in parts], rows, images_per_row if name == "image" else 1)
        if name != "image" or not isinstance(parts[0][name], np.ndarray)
        else parts[0][name]
        for name in parts[0]
    }


def _join(values: Sequence[Any], rows: Sequence[IntArray], per_row: int) -> Any:
    total = sum(map(len, rows))
    if isinstance(values[0], np.ndarray):
        joined = np.empty((total, *values[0].shape[1:]), values[0].dtype)
        for chosen, part in zip(rows, values, strict=True):
            joined[chosen] = part
        return joined
    listed: list[Any] = [None] * (total * per_row)
    for chosen, part in zip(rows, values, strict=True):
        for place, value in enumerate(part):
            listed[chosen[place // per_row] * per_row + place % per_row] = value
    return listed
