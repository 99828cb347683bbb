"""Makers of batches whose images a cache keeps decoded, in memory or in a file.

Images are decoded whole into the cache, and cropped from it. Images that do not fit into memory are made as without a
cache. Images that a file lacks are first resized like those that it has, and then cropped, so the pixels are the same.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch, BatchMaker, StoredBatch
from tfpipe.engine.buffers import allocate
from tfpipe.engine.cache import DecodedCache, choose_kept, get_cached_form
from tfpipe.engine.cache_file import CacheFile, open_cache_file
from tfpipe.engine.encoded_images import decode_images, read_masks
from tfpipe.engine.epoch_weights import RECORD_MASK
from tfpipe.engine.parse import Column, collect_column, parse_columns
from tfpipe.engine.source import StoredImages
from tfpipe.format.example import encode_example
from tfpipe.format.schema import IMAGE_CHANNELS, IMAGE_COLORSPACE, IMAGE_FORMAT, IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.system.hash_permutation import IntArray

_RAW: dict[str, Any] = {IMAGE_FORMAT: [b"RAW"], IMAGE_CHANNELS: np.array([3]), IMAGE_COLORSPACE: [b"RGB"]}
_OTHER_BYTES = 1000  # of a record besides its pixels; if they take more, each batch allocates memory


HalfCached: TypeAlias = tuple[int, IntArray, IntArray, StoredBatch | None]
"""A batch's epoch, its numbers from `BatchPlan.list_numbers`, the rows that the cache lacked, and the records of these
rows."""


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
        numbers = self.plan.list_numbers(epoch, step) if numbers is None else numbers
        missing = np.flatnonzero(~self._cache.find(numbers & RECORD_MASK))
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
        numbers, cache = asked & RECORD_MASK, self._cache
        slots = cache.slots[numbers]
        if filled is None:
            filled = self.plan.batch_size - len(numbers) if rows is None else 0
        images = np.arange(len(numbers)) if rows is None else rows
        if out is None:
            out = self.allocate_images(self.plan.batch_size)
            out[len(numbers) :] = 0
        batches, batch_rows = [], []
        if records is not None:
            kept = slots[missing] >= 0
            self._fill(records, np.flatnonzero(kept), slots[missing[kept]], threads)
            others = missing[~kept]
            if len(others):
                batches.append(super().decode(records.choose(np.flatnonzero(~kept)), threads, out, images[others]))
                batch_rows.append(others)
        # The rows whose images are in the cache, and the rows of padding.
        rows = np.flatnonzero(slots >= 0)
        slots = slots[rows]
        squeezed = self.plan.source.images.size if self._is_final else self._filling.size
        cropped = self.choose_crops(epoch, asked[rows], cache.sizes[slots], squeezed, _list_pixels(cache.images, slots))
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
        with self.naming(cached.numbers):
            batches.append({**self.make_others(cached, cropped, filled), "image": out})
        batch_rows.append(np.concatenate((rows, len(numbers) + np.arange(filled))))
        return join_rows(batches, batch_rows)

    def _fill(self, stored: StoredBatch, chosen: IntArray, slots: IntArray, threads: int) -> None:
        """Decodes the chosen records into their slots of the cache."""
        if not len(chosen):
            return
        slots, firsts = np.unique(slots, return_index=True)  # a batch may hold copies of one record
        records = stored.choose(chosen[firsts])
        others = {name: column for name, column in records.columns.items() if name not in self._image_names}
        with self.naming(records.numbers), self.clocks.measure("decode"):
            images = self.choose_images(records)
            if not self._is_final:
                images = images.make_whole()
            decode_images(images, self._cache.images, slots, self._filling, threads)
            for name in () if self._is_final else self.plan.masks:
                others[name] = _squeeze_masks(name, others[name], images.extents, self._filling.size)
        listed = zip(*(column.list_records() for column in others.values()), strict=True)
        for slot, values in zip(slots.tolist(), listed if others else [()] * len(slots), strict=True):
            self._cache.others[slot] = dict(zip(others, values, strict=True))
        self._cache.sizes[slots] = images.sizes
        self._cache.present[slots] = True  # after all that belongs to them


_Chunk: TypeAlias = tuple[IntArray, StoredBatch, bool]
"""Rows of a batch, their records, and whether these came from the cache."""


class FileCachingMaker(BatchMaker):
    """A maker that keeps decoded images in a file. Threads may share it."""

    def _open_cache(self) -> None:
        plan, source = self.plan, self.plan.source
        assert source.image_key is not None
        self._image_key = source.image_key
        self._cache: CacheFile = open_cache_file(plan)
        # The file has all features, so that it serves a config with other `extra_features` too.
        self.kinds = {spec.name: spec.dtype for spec in self.manifest.schema.features} | self.kinds
        self._masks = [spec.name for spec in source.schema.masks if spec.name in self.kinds]
        self._size = plan.decoded_size
        self._uncached = copy.copy(self)  # reads images in the form that the dataset stores
        self._squeezing = replace(self.decoding, size=self._size, dtype="uint8")
        images = StoredImages(frozenset({"RAW"}), self._size)  # the form in the file
        self.plan = replace(plan, source=replace(source, images=images))
        self.decoding = replace(self.decoding, raw_size=self._size)

    def read(self, epoch: int, step: int, numbers: IntArray | None = None) -> list[_Chunk]:
        """Reads the records of one batch, from the file if it has them, else from the dataset."""
        numbers = self.plan.list_numbers(epoch, step) if numbers is None else numbers
        with self.clocks.measure("read"):
            memory = allocate([self.plan.batch_size * (3 * prod(self._size) + _OTHER_BYTES)], np.uint8)
            block = self._cache.read(numbers & RECORD_MASK, memory)
        there = block.whole
        if self.plan.config.max_bad_records and not there.all():
            there = np.zeros(len(there), np.bool_)  # the record in place of a damaged one depends on the whole batch
        chunks, rows, missing = list[_Chunk](), np.flatnonzero(there), np.flatnonzero(~there)
        if len(rows) or not len(numbers):
            with self.clocks.measure("parse"):
                columns = parse_columns(block.choose(rows), self.kinds)
            asked = numbers[rows]
            chunks.append((rows, StoredBatch(epoch, asked, asked & RECORD_MASK, columns), True))
        if len(missing):
            chunks.append((missing, super().read(epoch, step, numbers[missing]), False))
        return chunks

    def decode(self, stored: Sequence[_Chunk], threads: int = 1) -> Batch:  # type: ignore[override]  # in no mixture
        """Makes the arrays of a batch; result and errors are those of `BatchMaker.decode`."""
        chunks = [
            (rows, records if is_cached else self._squeeze(records, threads)) for rows, records, is_cached in stored
        ]
        count = sum(len(rows) for rows, _ in chunks)
        out = self.allocate_images(self.plan.batch_size)
        out[count:] = 0
        made, all_rows = [], []
        for rows, records in chunks:
            filled = self.plan.batch_size - count if rows is chunks[-1][0] else 0
            made.append(super().decode(records, threads, out, rows, filled))
            all_rows.append(np.concatenate((rows, count + np.arange(filled))))
        return join_rows(made, all_rows)

    def _squeeze(self, stored: StoredBatch, threads: int) -> StoredBatch:
        """Converts records to the form in the cache file, which has whole images of one size, and offers them to it.

        The features that describe the stored image change; all others stay, also the original's height and width.
        """
        columns, count = dict(stored.columns), len(stored.numbers)
        pixels = allocate((count, *self._size, 3), np.uint8)
        with self.naming(stored.numbers), self.clocks.measure("decode"):
            images = self._uncached.choose_images(stored).make_whole()
            decode_images(images, pixels, None, self._squeezing, threads)
            for name in self._masks:
                columns[name] = _squeeze_masks(name, columns[name], images.extents, self._size)
        for name in _RAW.keys() & columns.keys():
            columns[name] = collect_column([_RAW[name]] * count, name, self.kinds[name])
        columns[self._image_key] = _list_pixels(pixels, np.arange(count))

        def encode() -> Iterator[bytes]:
            names = [name for name in self.kinds if name != self._image_key]
            others = zip(*(columns[name].list_records() for name in names), strict=True)
            for image, values in zip(pixels, others, strict=True):
                yield encode_example({**dict(zip(names, values, strict=True)), self._image_key: [image.tobytes()]})

        self._cache.offer(stored.numbers, encode())
        return replace(stored, columns=columns)


def _squeeze_masks(name: str, column: Column, sizes: IntArray, size: tuple[int, int]) -> Column:
    """Resizes the masks of images, which have these `sizes`, to one `size`."""
    from tfpipe.images.masks import encode_mask, resize_nearest  # loads Pillow

    masks = [[encode_mask(resize_nearest(classes, size))] for classes in read_masks(name, column, sizes)]
    return collect_column(masks, name, "bytes")


def _list_pixels(images: NDArray[np.uint8], chosen: IntArray) -> Column:
    """Makes a column of the raw pixels of the chosen images in an array [images, height, width, 3]."""
    stride = images[0].size if len(images) else 0
    spans = np.stack((chosen * stride, np.full(len(chosen), stride)), axis=1)
    return Column(np.ones(len(chosen), np.int64), spans, images.reshape(-1))


def join_rows(batches: Sequence[dict[str, Any]], rows: Sequence[IntArray], images_per_row: int = 1) -> dict[str, Any]:
    """Joins batches by the rows of each in the whole. An array of images is not joined: all batches share it."""
    return {
        name: _join([batch[name] for batch in batches], rows, images_per_row if name == "image" else 1)
        if name != "image" or not isinstance(batches[0][name], np.ndarray)
        else batches[0][name]
        for name in batches[0]
    }


def _join(values: Sequence[Any], rows: Sequence[IntArray], per_row: int) -> Any:
    total = sum(map(len, rows))
    if isinstance(values[0], np.ndarray):
        joined = np.empty((total, *values[0].shape[1:]), values[0].dtype)
        for chosen, given in zip(rows, values, strict=True):
            joined[chosen] = given
        return joined
    listed: list[Any] = [None] * (total * per_row)
    for chosen, given in zip(rows, values, strict=True):
        for index, value in enumerate(given):
            listed[chosen[index // per_row] * per_row + index % per_row] = value
    return listed
