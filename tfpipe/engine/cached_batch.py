"""The batch of a step whose images are kept decoded.

Images that the cache keeps are decoded whole into it and cropped there; the others are made as without a cache.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import STEPS_AHEAD, Batch, BatchMaker, StoredBatch
from tfpipe.engine.cache import DecodedCache, choose_kept, get_cached_form
from tfpipe.engine.clocks import Clocks
from tfpipe.engine.columns.images import decode_images
from tfpipe.engine.epoch_weights import strip_copies
from tfpipe.engine.parse import Column, collect_column
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.system.hash_permutation import IntArray


@dataclass(frozen=True)
class HalfCachedBatch:
    """The records of a batch, as far as they are not in the cache."""

    epoch: int
    numbers: IntArray  # as `BatchPlan.list_numbers` says them: int64 [n]
    missing: IntArray  # the rows that were not in the cache, int64 [m]
    stored: StoredBatch | None  # the records of these rows


class WrappedMaker(ABC):
    """A maker that has another one for the records that are not in its cache."""

    steps_ahead, steps_asked = STEPS_AHEAD, 0

    def __init__(self, maker: BatchMaker) -> None:
        self._maker, self.plan = maker, maker.plan

    @property
    def clocks(self) -> Clocks:
        """The time that was spent on batches."""
        return self._maker.clocks

    @clocks.setter
    def clocks(self, clocks: Clocks) -> None:
        self._maker.clocks = clocks

    def allocate_images(self, records: int) -> NDArray[Any]:
        """Returns memory for the images of so many records: [images, height, width, 3]."""
        return self._maker.allocate_images(records)

    @property
    def is_remote(self) -> bool:
        """Whether the dataset lies in an object store."""
        return self._maker.is_remote

    @property
    def block_steps(self) -> int:
        """The steps in which a row uses a block of records up."""
        return self._maker.block_steps

    def list_numbers(self, epoch: int, step: int) -> IntArray:
        """Lists the records of a step: `BatchPlan.list_numbers`."""
        return self.plan.list_numbers(epoch, step)

    def announce(self, numbers: IntArray, soon: Sequence[IntArray] = ()) -> None:
        """Asks storage for records that are not in the cache and are read soon."""
        missing, *later = (each[~self._find_known(strip_copies(each))] for each in (numbers, *soon))
        self._maker.announce(missing, later)

    @abstractmethod
    def _find_known(self, numbers: IntArray) -> NDArray[np.bool_]:
        """Finds out whether each record is in the cache: bool [n]."""

    def make(self, epoch: int, step: int, threads: int = 1) -> Batch:
        """Makes one batch; arguments, result and errors are those of `BatchMaker.make`."""
        batch: Batch = self.decode(self.read(epoch, step), threads)
        return batch

    @abstractmethod
    def read(self, epoch: int, step: int, numbers: IntArray | None = None) -> Any:
        """Reads the records of one batch, as far as they must be read."""

    @abstractmethod
    def decode(self, stored: Any, threads: int = 1) -> Batch:
        """Makes the arrays of a batch; result and errors are those of `BatchMaker.decode`."""

    def make_example_image(self) -> Any:
        """Returns the result of the transform for the first image."""
        return self._maker.make_example_image()


class CachingMaker(WrappedMaker):
    """A maker of any batch of a plan, which keeps decoded images. Threads may share it."""

    def __init__(self, maker: BatchMaker) -> None:
        super().__init__(maker)
        config = self.plan.config
        self._cache = DecodedCache(choose_kept(self.plan, maker.reader), self.plan)
        size, dtype = get_cached_form(self.plan)
        self._is_final = not config.training and config.augment != "device"
        self._filling = replace(maker.decoding, size=size, dtype=dtype)
        self._cropping = replace(maker.decoding, raw_size=size)

    def for_rows(self, first: int, end: int) -> CachingMaker:
        """Returns a maker of some of the rows of this host's batches, with the same cache."""
        maker = copy.copy(self)
        maker._maker = self._maker.for_rows(first, end)
        maker.plan = maker._maker.plan
        return maker

    def read(self, epoch: int, step: int, numbers: IntArray | None = None) -> HalfCachedBatch:
        """Reads the records of one batch that are not in the cache."""
        numbers = self.list_numbers(epoch, step) if numbers is None else numbers
        missing = np.flatnonzero(~self._find_known(strip_copies(numbers)))
        stored = self._maker.read(epoch, step, numbers[missing]) if len(missing) else None
        return HalfCachedBatch(epoch, numbers, missing, stored)

    def decode(
        self,
        stored: HalfCachedBatch,
        threads: int = 1,
        out: NDArray[Any] | None = None,
        rows: IntArray | None = None,
    ) -> Batch:
        """Makes the arrays of a batch; arguments, result and errors are those of `BatchMaker.decode`."""
        numbers, slots = stored.numbers, self._cache.slots[strip_copies(stored.numbers)]
        filled = self.plan.batch_size - len(numbers) if rows is None else 0
        images = np.arange(len(numbers)) if rows is None else rows
        if out is None:
            out = self._maker.allocate_images(self.plan.batch_size)
            out[len(numbers) :] = 0
        parts, part_rows = [], []
        if stored.stored is not None:
            kept = slots[stored.missing] >= 0
            self._fill(stored.stored, np.flatnonzero(kept), slots[stored.missing[kept]], threads)
            others = stored.missing[~kept]
            if len(others):
                records = stored.stored.choose(np.flatnonzero(~kept))
                parts.append(self._maker.decode(records, threads, out, images[others]))
                part_rows.append(others)
        cached = np.flatnonzero(slots >= 0)
        records_of = numbers[cached], slots[cached]
        parts.append(
            {**self._make_cached(stored.epoch, *records_of, (out, images[cached]), filled, threads), "image": out}
        )
        part_rows.append(np.concatenate((cached, len(numbers) + np.arange(filled))))
        return join_rows(parts, part_rows)

    def _fill(self, stored: StoredBatch, chosen: IntArray, slots: IntArray, threads: int) -> None:
        """Decodes some of the records into their places in the cache."""
        if not len(chosen):
            return
        slots, firsts = np.unique(slots, return_index=True)  # copies of one record may meet in a batch
        records = stored.choose(chosen[firsts])
        images = self._maker.choose_images(records)
        if not self._is_final:
            images = images.make_whole()
        with self.clocks.measure("decode"), self._maker.naming(records.numbers):
            decode_images(images, self._cache.images, slots, self._filling, threads)
        others = {name: column for name, column in records.columns.items() if name not in self._image_names}
        self._cache.keep_others(slots, images.sizes, others)

    def _make_cached(
        self,
        epoch: int,
        asked: IntArray,
        slots: IntArray,
        target: tuple[NDArray[Any], IntArray],
        filled: int,
        threads: int,
    ) -> Batch:
        """Makes the rows whose images are in the cache, and the parts of rows behind all records."""
        cache, (out, rows) = self._cache, target
        height, width = cache.images.shape[1:3]
        squeeze_to = None if self._is_final else (height, width)
        squeezed = self.plan.source.images.size if self._is_final else squeeze_to
        images = self._maker.place_crops(epoch, asked, cache.sizes[slots], squeezed)
        if self._is_final:
            out[rows] = cache.images[slots]
        else:
            stride = height * width * 3
            places = np.stack((slots * stride, np.full(len(slots), stride)), axis=1)
            column = Column(np.ones(len(slots), np.int64), places, cache.images.reshape(-1))
            cropped = replace(self._maker.leave_to_device(images), column=column)
            with self.clocks.measure("decode"):
                decode_images(cropped, out, rows, self._cropping, threads)
        records = [cache.get_others(slot) for slot in slots.tolist()]
        columns = {
            name: collect_column([record[name] for record in records], name, kind)
            for name, kind in self._maker.kinds.items()
            if name not in self._image_names
        }
        numbers = strip_copies(asked)
        stored = StoredBatch(epoch, numbers, numbers, columns)
        return self._maker.make_others(stored, images, filled, squeeze_to)

    @property
    def _image_names(self) -> tuple[str | None, ...]:
        return self.plan.source.image_key, IMAGE_HEIGHT, IMAGE_WIDTH

    def _find_known(self, numbers: IntArray) -> NDArray[np.bool_]:
        return self._cache.find(numbers)[1]


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
