"""The batch of a step whose decoded images are kept in a file.

Rows that are not there are read and squeezed as the file has them, and then cropped, so pixels and order are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch, BatchMaker, StoredBatch
from tfpipe.engine.buffers import allocate
from tfpipe.engine.cache_file import CacheFile, Payload
from tfpipe.engine.cached_batch import WrappedMaker, join_rows
from tfpipe.engine.columns.images import decode_images
from tfpipe.engine.epoch_weights import strip_copies
from tfpipe.engine.parse import BadRecord, Column, collect_column, parse_columns
from tfpipe.engine.stored_images import StoredImages
from tfpipe.format.example import encode_example
from tfpipe.format.schema import IMAGE_CHANNELS, IMAGE_COLORSPACE, IMAGE_FORMAT
from tfpipe.images.errors import BadImage
from tfpipe.system.hash_permutation import IntArray

_RAW = {IMAGE_FORMAT: b"RAW", IMAGE_CHANNELS: 3, IMAGE_COLORSPACE: b"RGB"}  # the features that say what a raw image is
_OTHER_BYTES = 1000  # of a record beside its pixels; where they take more, each batch takes new memory


@dataclass(frozen=True)
class Part:
    """The records of a batch that come from one place."""

    is_cached: bool
    rows: IntArray  # of the batch that they have, int64 [n]
    stored: StoredBatch


class FileCachingMaker(WrappedMaker):
    """A maker of any batch of a plan, which keeps decoded images in a file. Threads may share it."""

    def __init__(self, maker: BatchMaker, cache: CacheFile) -> None:
        super().__init__(maker)
        self._cache, self._size = cache, maker.plan.decoded_size
        # The file has all features, so that it serves a config with other `extra_features` too.
        maker.kinds = {spec.name: spec.dtype for spec in maker.manifest.schema.features} | maker.kinds
        source = maker.plan.source
        self._masks = [spec.name for spec in source.schema.masks if spec.name in maker.kinds]
        self._squeezing = replace(maker.decoding, size=self._size, dtype="uint8")
        self._kept_kinds = {name: kind for name, kind in maker.kinds.items() if name != source.image_key}
        self._cached = copy.copy(maker)
        images = StoredImages(frozenset({"RAW"}), self._size)
        self._cached.plan = replace(maker.plan, source=replace(source, images=images))
        self._cached.decoding = replace(maker.decoding, raw_size=self._size)

    def announce(self, numbers: IntArray, soon: Sequence[IntArray] = ()) -> None:
        """Asks the disk for records that are read soon, and storage for those that are not in the cache."""
        self._cache.announce(strip_copies(numbers))
        super().announce(numbers, soon)

    def for_rows(self, first: int, end: int) -> FileCachingMaker:
        """Returns a maker of some of the rows of this host's batches, with the same cache."""
        maker = copy.copy(self)
        maker._maker, maker._cached = (each.for_rows(first, end) for each in (self._maker, self._cached))
        maker.plan = maker._maker.plan
        return maker

    def read(self, epoch: int, step: int, numbers: IntArray | None = None) -> list[Part]:
        """Reads the records of one batch, each from where it is."""
        numbers = self.list_numbers(epoch, step) if numbers is None else numbers
        with self.clocks.measure("read"):
            record_bytes = self._cache.pixel_bytes + _OTHER_BYTES
            memory = allocate([self.plan.batch_size * record_bytes], np.uint8)
            block = self._cache.read(strip_copies(numbers), memory)
        there = block.whole
        if self.plan.config.max_bad_records and not there.all():
            there = np.zeros(len(there), np.bool_)  # what takes a damaged record's place depends on the whole batch
        parts, (rows, missing) = [], (np.flatnonzero(there), np.flatnonzero(~there))
        if len(rows) or not len(numbers):
            block = block.choose(rows)
            with self.clocks.measure("parse"):
                columns = parse_columns(block, self._kept_kinds)
            pixels = Column(np.ones(len(rows), np.int64), self._cache.find_pixels(block), _get_array(block.data))
            columns[self._image_key] = pixels
            asked = numbers[rows]
            parts.append(Part(True, rows, StoredBatch(epoch, asked, strip_copies(asked), columns)))
        if len(missing):
            parts.append(Part(False, missing, self._maker.read(epoch, step, numbers[missing])))
        return parts

    def decode(self, stored: Sequence[Part], threads: int = 1) -> Batch:
        """Makes the arrays of a batch; result and errors are those of `BatchMaker.decode`."""
        if len(stored) == 1:
            return self._cached.decode(self._squeeze(stored[0], threads), threads)
        count = sum(len(part.rows) for part in stored)
        out = self.allocate_images(self.plan.batch_size)
        out[count:] = 0
        made, all_rows = [], []
        for part in stored:
            filled = self.plan.batch_size - count if part is stored[-1] else 0
            made.append(self._cached.decode(self._squeeze(part, threads), threads, out, part.rows, filled))
            all_rows.append(np.concatenate((part.rows, count + np.arange(filled))))
        return join_rows(made, all_rows)

    def _squeeze(self, part: Part, threads: int) -> StoredBatch:
        """Returns records as the cache has them, and offers it those that it lacks.

        The features that say how an image is stored change; all others stay, also the original's height and width.
        """
        if part.is_cached:
            return part.stored
        stored, maker, columns = part.stored, self._maker, dict(part.stored.columns)
        images = maker.choose_images(stored).make_whole()
        count, pixels = len(images), allocate((len(images), *self._size, 3), np.uint8)
        with self.clocks.measure("decode"), maker.naming(stored.numbers):
            decode_images(images, pixels, None, self._squeezing, threads)
            for name in self._masks:
                columns[name] = self._squeeze_masks(name, columns[name], images.extents)
        for name in _RAW.keys() & columns.keys():
            value = _RAW[name]
            values: Any = [value] if isinstance(value, bytes) else np.array([value], np.int64)
            columns[name] = collect_column([values] * count, name, self._kept_kinds[name])
        stride = self._cache.pixel_bytes
        places = np.stack((np.arange(count) * stride, np.full(count, stride)), axis=1)
        columns[self._image_key] = Column(np.ones(count, np.int64), places, pixels.reshape(-1))
        self._cache.offer(stored.numbers, lambda: self._encode(columns), pixels)
        return replace(stored, columns=columns)

    def _squeeze_masks(self, name: str, column: Column, sizes: IntArray) -> Column:
        from tfpipe.images.masks import encode_mask, read_mask, resize_nearest  # loads Pillow

        column.check_counts(1, name)
        masks: list[list[bytes]] = []
        for row, (height, width) in enumerate(sizes.tolist()):
            try:
                classes = read_mask(column.get_bytes(row), height * width)
            except BadImage as error:
                raise BadRecord(row, f"{name!r} cannot be used, {error}") from None
            masks.append([encode_mask(resize_nearest(classes, self._size))])
        return collect_column(masks, name, "bytes")

    def _encode(self, columns: dict[str, Column]) -> list[Payload]:
        """Encodes all of some records but their images."""
        names = list(self._kept_kinds)
        records = zip(*(columns[name].list_records() for name in names), strict=True)
        return [encode_example(dict(zip(names, values, strict=True))) for values in records]

    @property
    def _image_key(self) -> str:
        key = self.plan.source.image_key
        assert key is not None
        return key

    def _find_known(self, numbers: IntArray) -> NDArray[np.bool_]:
        return self._cache.find(numbers)


def _get_array(data: memoryview) -> Any:
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
