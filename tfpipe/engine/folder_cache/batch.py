"""The batch of a step whose records lie in a cache in files, as far as that is filled.

```
rows of the batch   in a complete shard of the cache -> read there
                    elsewhere                        -> read from the source; for decoded images squeezed as the cache
                                                        has them, and then cropped
```

So the pixels and the order are those of a whole cache, however much of it is there. Once it is whole, a maker of its
own records takes over, in the order of the source.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine.batch import Batch, BatchMaker, StoredBatch, Transform
from tfpipe.engine.cached_batch import WrappedMaker
from tfpipe.engine.epoch_weights import strip_copies
from tfpipe.engine.folder_cache.fill_process import start_filling
from tfpipe.engine.folder_cache.folder import CacheFolder, without_cache
from tfpipe.engine.folder_cache.squeeze import Squeezer
from tfpipe.engine.join import join_rows
from tfpipe.engine.plan import BatchPlan
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.manifest import Manifest
from tfpipe.system.hash_permutation import IntArray

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Part:
    """The records of a batch that come from one place.

    Attributes:
        is_cached: Whether they come from the cache.
        rows: The rows of the batch that they have, int64 [n].
        stored: The records.
    """

    is_cached: bool
    rows: IntArray
    stored: StoredBatch


class CompleteShards:
    """The shards that are complete in a cache, which is looked at twice a second at most. Threads may share it.

    Args:
        folder: The cache.
        reader: The reader of the cache, which gets the size of each shard.
    """

    def __init__(self, folder: CacheFolder, reader: RecordReader) -> None:
        self._folder, self._reader = folder, reader
        self._chosen = reader.manifest.splits[folder.split].chosen
        self._shards = list(reader.manifest.splits[folder.split].shards)
        self._are_there = np.zeros(len(self._shards), np.bool_)
        self._next_look = 0.0

    def find(self, numbers: IntArray) -> NDArray[np.bool_]:
        """Returns whether each record that rows ask for is in a complete shard, bool [n]."""
        numbers = strip_copies(numbers)
        if self._chosen is not None:
            numbers = self._chosen.numbers[numbers]
        now = time.monotonic()
        if now >= self._next_look and not self._are_there.all():
            self._next_look = now + _LOOK_EVERY_S
            self._look()
        found: NDArray[np.bool_] = self._are_there[
            np.searchsorted(self._folder.source.bases, numbers, side="right") - 1
        ]
        return found

    def _look(self) -> None:
        try:
            names = set(os.listdir(self._folder.path))
            if file_names.MANIFEST in names and self._folder.read_manifest() is None:
                return  # of another cache, or just emptied
        except (OSError, FormatError, DataError):
            return  # nothing is there yet; or it was damaged, and is emptied before it is filled anew
        added = []
        for number in np.flatnonzero(~self._are_there).tolist():
            shard = self._folder.shards[number]
            if shard.file in names and (measured := self._folder.measure(shard)) is not None:
                self._shards[number] = measured
                added.append(number)
        if added:
            self._reader.replace_shards(self._shards)
            self._are_there[added] = True


class FolderCacheMaker(WrappedMaker):
    """A maker of any batch of a plan while its cache in files is filled. Threads may share it.

    Args:
        folder: The cache.
        source: The maker of what is not in the cache.
        cached: The maker of what is.
        plan: The plan, with the options of the cache.
    """

    def __init__(self, folder: CacheFolder, source: BatchMaker, cached: BatchMaker, plan: BatchPlan) -> None:
        super().__init__(source)
        self.plan, self._cached = plan, cached
        cached.clocks, cached.bad_records = source.clocks, source.bad_records
        self._complete = CompleteShards(folder, cached.reader)
        self._squeezer = Squeezer(source, folder.size) if folder.is_decoded else None

    def announce(self, numbers: IntArray, soon: Sequence[IntArray] = ()) -> None:
        """Asks storage for records that are read soon."""
        there = self._complete.find(numbers)
        self._cached.announce(numbers[there])
        self._maker.announce(numbers[~there], [later[~self._complete.find(later)] for later in soon])

    def for_rows(self, first: int, end: int) -> FolderCacheMaker:
        """Returns a maker of some of the rows of this host's batches. It shares all that this one has open."""
        maker = copy.copy(self)
        maker._maker, maker._cached = (each.for_rows(first, end) for each in (self._maker, self._cached))
        maker.plan = replace(self.plan, rows=self.plan.rows[first:end])
        return maker

    def read(self, epoch: int, step: int, numbers: IntArray | None = None) -> list[Part]:
        """Reads the records of one batch, each from where it is."""
        numbers = self.list_numbers(epoch, step) if numbers is None else numbers
        there = self._complete.find(numbers)
        if self.plan.config.max_bad_records and not there.all():
            there[:] = False  # what takes the place of a damaged record depends on all others of the batch
        choices = ((True, np.flatnonzero(there)), (False, np.flatnonzero(~there)))
        return [
            Part(cached, rows, (self._cached if cached else self._maker).read(epoch, step, numbers[rows]))
            for cached, rows in choices
            if len(rows) or (cached and not len(numbers))
        ]

    def decode(self, stored: Sequence[Part], threads: int = 1) -> Batch:
        """Makes the arrays of a batch; result and errors are those of `BatchMaker.decode`."""
        parts = stored
        if len(parts) == 1:
            return self._decode_part(parts[0], threads)
        per_record, count = self.plan.num_images or 1, sum(len(part.rows) for part in parts)
        out = None
        if self.plan.source.has_images:
            out = self._maker.allocate_images(self.plan.batch_size)
            out[count * per_record :] = 0
        made, all_rows = [], []
        for part in parts:
            images = (part.rows[:, None] * per_record + np.arange(per_record)).reshape(-1)
            filled = self.plan.batch_size - count if part is parts[-1] else 0
            made.append(self._decode_part(part, threads, (out, images, filled)))
            all_rows.append(np.concatenate((part.rows, count + np.arange(filled))))
        batch = join_rows(made, all_rows, per_record)
        if isinstance(batch.get("image"), list):
            del batch["image"][count * per_record :]  # a transform makes no images for rows that are filled up
        return batch

    def _decode_part(self, part: Part, threads: int, target: tuple[Any, Any, int | None] = (None, None, None)) -> Batch:
        """Makes the arrays of some rows: of a whole batch, or into an array, with rows behind them that are filled."""
        maker, stored = self._cached if part.is_cached else self._maker, part.stored
        if self._squeezer is not None and not part.is_cached:
            with self._maker.naming(stored.numbers):
                maker, stored = self._cached, self._squeezer.squeeze(stored, threads)
        out, images, filled = target
        return maker.decode(stored, threads, out, images, filled)


def open_folder_cache(
    plan: BatchPlan, manifest: Manifest, split: str, transform: Transform | None
) -> BatchMaker | FolderCacheMaker:
    """Opens the cache in files of a dataset, and begins to fill it if it is not whole.

    Args:
        plan: The plan of the batches.
        manifest: The manifest of the source.
        split: The name of the split.
        transform: A function that replaces crops, resizing and flips.

    Raises:
        ConfigError: An option cannot be used, or the disk is too small.
        FormatError: A file of the source is missing, and the cache is not whole.
        DataError: The folder cannot be written.
    """
    folder = CacheFolder(manifest.choose(split, None), split, plan.config)  # views share the cache of all records
    folder.check()
    plan_of = replace(plan, config=without_cache(plan.config), cached=(manifest, split))
    if plan.config.training:  # the order of a cache is that of its source
        plan_of = replace(plan_of, config=replace(plan_of.config, block_records=plan.order.block_records))
    whole = folder.find()
    if whole is not None:
        whole = whole.choose(split, plan.source.chosen)
        return BatchMaker(replace(plan_of, source=Source.from_manifest(whole, split)), whole, split, transform)
    plan.source.check()
    estimated = tuple(
        replace(shard, bytes=round(shard.records * folder.record_bytes)) if folder.is_decoded else shard
        for shard in folder.shards
    )
    filling = folder.new_manifest(estimated).choose(split, plan.source.chosen)
    cached = BatchMaker(replace(plan_of, source=Source.from_manifest(filling, split)), filling, split, transform)
    maker = FolderCacheMaker(folder, BatchMaker(plan_of, manifest, split, transform), cached, plan)
    start_filling(folder)
    return maker
