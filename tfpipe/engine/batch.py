"""The batch of a step: order, read, parse, decode. Every framework gets its batches from here.

Records that lie near each other are read together, and their features stay columns from the file to the array.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfpipe.engine import encoded_images
from tfpipe.engine.buffers import allocate
from tfpipe.engine.cache import BytesCache, DecodedCache, choose_kept
from tfpipe.engine.cache_file import CacheFile, open_cache_file
from tfpipe.engine.clocks import Clocks, run_in_threads
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.encoded_images import DTYPES, Decoding, EncodedImages
from tfpipe.engine.epoch_weights import RECORD_MASK
from tfpipe.engine.features import list_stored_features, make_labels, make_multi_hot, make_tensors, make_values
from tfpipe.engine.parse import BadRecord, Column, ReadBlock, RecordBlock, join_columns, parse_columns
from tfpipe.engine.plan import AnyPlan, BatchPlan
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.format.tensors.tensor_type import get_numpy_dtype
from tfpipe.native.batches import draw_crops
from tfpipe.storage.file_io import is_url
from tfpipe.system.fork_lock import make_fork_lock
from tfpipe.system.hash_permutation import IntArray, make_seeds

Batch = dict[str, Any]
"""The parts of a batch by their names."""

Transform = Callable[[Any, int], Any]
"""A function from a whole Pillow image and its seed to the trainer's image, in place of crop, resize and flip."""

STEPS_AHEAD = 2
"""The number of steps that this process makes ahead, besides the one that the trainer waits for."""

_MOST_BLOCK_STEPS, _MOST_BLOCK_BYTES = 64, 2**30  # the most that an object store is asked for at once
_MEMORY_FACTOR = 1.5  # of a batch's mean size: pages that are never written take no memory
_IMAGE_STEP = 0x9E3779B1  # odd, so that each image of a record changes its seed in another way


_LOGGER = logging.getLogger(__name__)
_COUNTING = make_fork_lock()  # guards `bad_records` of all makers


def leave_out_masked(batch: Batch) -> Batch:
    """Removes the rows whose mask is 0 from a batch of an evaluation, unless the mask of every row is 0."""
    mask = np.asarray(batch["mask"], np.bool_)
    count = int(mask.sum())
    if count in (0, len(mask)):
        return batch
    if mask[:count].all():
        return {name: rows[:count] for name, rows in batch.items()}
    chosen = np.flatnonzero(mask)
    return {
        name: [rows[row] for row in chosen] if isinstance(rows, list) else rows[chosen] for name, rows in batch.items()
    }


def view_bfloat16(batch: Batch, names: Set[str]) -> Batch:
    """Returns the batch with arrays of bfloat16, a type of the package ml_dtypes, of the bits that have these names."""

    def view(bits: Any) -> Any:
        return list(map(view, bits)) if isinstance(bits, list) else bits.view(get_numpy_dtype("bfloat16"))

    return {name: view(values) if name in names else values for name, values in batch.items()}


def make_pair(batch: Batch, config: PipelineConfig) -> tuple[Any, ...]:
    """Makes (inputs, label[, mask]) of a batch, as a trainer gets it with `as_supervised`."""
    images = ("image", "crop", "flip") if config.augment == "device" else ("image",)
    inputs = {name: batch[name] for name in (*images, *config.extra_features) if name in batch}
    first = inputs if len(inputs) > 1 else inputs["image"]
    return (first, batch["label"], batch["mask"]) if "mask" in batch else (first, batch["label"])


@dataclass(frozen=True)
class StoredBatch:
    """The records of a batch, read, checked and parsed."""

    epoch: int
    asked: IntArray  # the record number that the plan gives each row, int64 [n]; the row's crop is drawn from it
    numbers: IntArray  # the record number that each row holds: another one where a damaged record is left out
    columns: dict[str, Column]

    def choose(self, rows: IntArray) -> StoredBatch:
        """Returns a batch of some of the rows."""
        columns = {name: column.choose_records(rows) for name, column in self.columns.items()}
        return StoredBatch(self.epoch, self.asked[rows], self.numbers[rows], columns)


class Maker(ABC):
    """The base of all makers of a plan's batches: from one dataset, from several, or by workers on other machines."""

    plan: AnyPlan
    clocks: Clocks
    steps_ahead = STEPS_AHEAD
    steps_asked = 0  # how many of `steps_ahead` others make, such as the workers of a service
    is_remote: bool  # whether it has connections to an object store or to workers, which a forked process cannot use
    block_steps = 1  # the steps in which a row uses up a block of records, which storage is asked for at once

    @abstractmethod
    def announce(self, numbers: Any, soon: Sequence[Any] = ()) -> None:
        """Asks storage for the records of the next batch; an object store, in the same requests, also for `soon`."""

    @abstractmethod
    def for_rows(self, first: int, end: int) -> Maker:
        """Returns a maker of the rows `first` to `end` of this host's batches, which shares this maker's open files."""

    def make(self, epoch: int, step: int, threads: int = 1) -> Batch:
        """Makes one batch: reads its records and decodes them."""
        return self.decode(self.read(epoch, step), threads)

    @abstractmethod
    def read(self, epoch: int, step: int, numbers: Any = None) -> Any:
        """Reads the records of one batch; `numbers` are those that the plan lists for it, if they are known."""

    @abstractmethod
    def decode(self, stored: Any, threads: int = 1) -> Batch:
        """Makes the arrays of a batch."""

    def make_example_image(self) -> Any:
        """Returns the first image after the transform, from which the shape and dtype of all images are known."""
        raise NotImplementedError


class BatchMaker(Maker):
    """The maker of the batches of one dataset. Threads may share it; a pickled copy opens the files anew."""

    plan: BatchPlan

    def __init__(
        self,
        plan: BatchPlan,
        manifest: Manifest,
        split: str,
        transform: Transform | None = None,
        classes: Sequence[int] | None = None,
    ) -> None:
        source, config = plan.source, plan.config
        if transform is not None and not source.has_images:
            raise ConfigError(f"`transform` needs images, and {source.name} has none. Leave it out.")
        if transform is not None and plan.masks:
            raise ConfigError(
                f"`transform` gets an image without its mask, so a batch cannot hold {plan.masks[0]!r} as well. "
                "Leave one of them out."
            )
        self.plan, self.manifest, self.split = plan, manifest, split
        self.kinds = {name: source.schema[name].dtype for name in list_stored_features(source, plan.features)}
        manifest = manifest.keep_columns(self.kinds)  # other columns are not read
        self.reader = RecordReader(manifest.directory, manifest, split)
        columns = (column.splits[split] for column in manifest.columns)
        self._record_bytes = source.record_bytes + sum(column.bytes / column.records for column in columns)
        self.is_remote = is_url(manifest.directory)
        if config.training and self.is_remote:
            affordable = int(_MOST_BLOCK_BYTES / (max(plan.batch_size, 1) * self._record_bytes))
            self.block_steps = max(min(plan.order.block_records, _MOST_BLOCK_STEPS, affordable), 1)
        self.form = ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()
        self.clocks = Clocks()
        self.bad_records: set[int] = set()  # numbers of those left out, in all epochs
        self._transform = transform
        self._classes = None if classes is None else np.array(classes, np.int64)
        raw_size = (self.form.square or 0, self.form.square or 0) if self.form.encoding == "raw" else None
        self.decoding = Decoding(self.form, raw_size, plan.image_size, config.image_dtype, config.augment_options)
        self._cache: BytesCache | DecodedCache | CacheFile | None = None
        self._read_block: ReadBlock = partial(self.reader.read_block, lacks=config.max_bad_records > 0)
        self._open_cache()

    def _open_cache(self) -> None:
        """Opens the cache of stored records, if the config asks for one."""
        plan = self.plan
        if plan.config.cache == "bytes":
            is_file = plan.config.cache_dir is not None
            cache = open_cache_file(plan) if is_file else BytesCache(choose_kept(plan, self.reader))
            self._cache, self._read_block = cache, partial(cache.read_block, read=self._read_block)

    def announce(self, numbers: IntArray, soon: Sequence[IntArray] = ()) -> None:
        """Asks storage for the records of the next batch; an object store, in the same requests, also for `soon`."""
        numbers = numbers & RECORD_MASK
        later = np.concatenate(soon) & RECORD_MASK if len(soon) else None
        if isinstance(self._cache, CacheFile):
            self._cache.announce(numbers)
        if self._cache is not None:
            numbers = numbers[~self._cache.find(numbers)]
            later = None if later is None else later[~self._cache.find(later)]
        self.reader.announce(numbers, later)

    def for_rows(self, first: int, end: int) -> BatchMaker:
        """Returns a maker of the rows `first` to `end` of this host's batches, which shares this maker's open files."""
        maker = copy.copy(self)
        maker.plan = replace(self.plan, rows=self.plan.rows[first:end])
        return maker

    def read(self, epoch: int, step: int, numbers: IntArray | None = None) -> Any:
        """Reads the records of one batch: into a `StoredBatch`, or into what the `decode` of a subclass takes."""
        with self.clocks.measure("read"):
            asked = self.plan.list_numbers(epoch, step) if numbers is None else numbers
            # One buffer for all records, so that they are read at once; if it is too small, a larger one is made.
            memory = allocate([int(_MEMORY_FACTOR * self.plan.batch_size * self._record_bytes)], np.uint8)
            numbers = asked & RECORD_MASK
            block = self._read_block(numbers, memory)
            if not block.whole.all():  # else a damaged record is an error
                block, numbers = self._replace_bad(block, numbers, memory)
        with self.clocks.measure("parse"), self.naming(numbers):
            columns = parse_columns(block, self.kinds)
        return StoredBatch(epoch, asked, numbers, columns)

    def _replace_bad(
        self, block: RecordBlock, numbers: IntArray, memory: NDArray[np.uint8]
    ) -> tuple[RecordBlock, IntArray]:
        """Puts others in place of damaged records, and returns their numbers too; logs each damaged one once."""
        first, most, total = numbers[0], self.plan.config.max_bad_records, self.plan.source.num_records or 0
        while True:
            good, bad = np.flatnonzero(block.whole), np.flatnonzero(~block.whole)
            for number in numbers[bad].tolist():
                with _COUNTING:
                    is_new = number not in self.bad_records
                    self.bad_records.add(number)
                if not is_new:
                    continue
                record, count = self.reader.describe(number), len(self.bad_records)
                if count > most:
                    raise DataError(
                        f"At most {most} bad records may be left out (`max_bad_records`); one more is {record}."
                    )
                _LOGGER.warning("tfpipe leaves out %s, which is damaged or cannot be read: %d so far", record, count)
            if len(good):
                rows = np.arange(len(numbers))
                rows[bad] = np.resize(good, len(bad))
                return block.choose(rows), numbers[rows]
            if len(self.bad_records) >= total:
                what = "it and all other records are damaged or cannot be read"
                raise FormatError(f"Record {first} of {self.split!r}: {what}.")
            numbers = (numbers + 1) % total  # try the record after each
            block = self._read_block(numbers, memory)

    def decode(
        self,
        stored: Any,
        threads: int = 1,
        out: NDArray[Any] | None = None,
        rows: IntArray | None = None,
        filled: int | None = None,
    ) -> Batch:
        """Makes the arrays of a batch from its records, in the forms that `tfpipe.engine.features` describes.

        Images are written to `out` at `rows`, if these are given. `filled` rows of zeros follow the records; None: as
        many as the batch lacks, or none with `rows`.
        """
        if filled is None and rows is not None:
            filled = 0
        batch, images = Batch(), None
        with self.naming(stored.numbers):
            if self.plan.source.has_images:
                with self.clocks.measure("batch"):
                    images = self.choose_images(stored)
                count, per_record = len(images.boxes), self.plan.num_images
                if self._transform is not None:
                    batch["image"] = run_in_threads(partial(self._transform_image, images), range(count), threads)
                else:
                    if out is None:
                        out = self.allocate_images(self.plan.batch_size)
                        out[count:] = 0
                    with self.clocks.measure("decode"):
                        to = out if rows is not None else out[:count]
                        encoded_images.decode_images(self.leave_to_device(images), to, rows, self.decoding, threads)
                    batch["image"] = out if per_record is None else out.reshape(-1, per_record, *out.shape[1:])
            batch |= self.make_others(stored, images, filled)
        return batch

    def choose_images(self, stored: StoredBatch) -> EncodedImages:
        """Chooses the images of a batch, their crops and flips; call it within `naming`."""
        source, indices = self.plan.source, None
        assert source.image_key is not None
        column = every = stored.columns[source.image_key]
        if source.more_images:
            keys = (source.image_key, *source.more_images)
            for key in keys:
                stored.columns[key].check_counts(1, key)
            column = join_columns([stored.columns[key] for key in keys])
        if source.per_record is None:
            column.check_counts(1, source.image_key)
        else:
            column, indices = self._choose_several(stored, column, source.per_record.max)
        # The sizes of the original images: crops are drawn in their aspect ratio.
        if source.has_sizes:
            sizes = encoded_images.measure_images(every, stored.columns[IMAGE_HEIGHT], stored.columns[IMAGE_WIDTH])
            sizes = sizes if indices is None else sizes[(every.firsts[:, None] + indices).reshape(-1)]
        elif source.images.size is not None:
            sizes = np.tile(np.array(source.images.size, np.int64), (len(column.values), 1))
        else:
            sizes = encoded_images.measure_headers(column)
        return self.choose_crops(stored.epoch, stored.asked, sizes, source.images.size, column, indices)

    def choose_crops(
        self,
        epoch: int,
        numbers: IntArray,
        sizes: IntArray,
        squeezed: tuple[int, int] | None,
        column: Column,
        indices: IntArray | None = None,
    ) -> EncodedImages:
        """Chooses the crops and flips of the images of a column.

        `sizes` are the sizes of the originals, int64 [images, 2]; `squeezed` is the one size of all stored images, if
        they have one. `indices` are the indices of images in records with several, int64 [n, images of a record].
        """
        config = self.plan.config
        seeds = np.zeros((len(sizes), 2), np.int32)
        if (config.training and config.augment != "none") or self._transform is not None:
            seeds = make_seeds(config.seed, epoch, numbers)
            if indices is not None:  # image 0 has the record's seed
                words = (indices.astype(np.uint64) * np.uint64(_IMAGE_STEP)).astype(np.uint32).view(np.int32)
                seeds = (seeds[:, None] ^ np.stack((words, np.zeros_like(words)), axis=-1)).reshape(-1, 2)
        extents = sizes if squeezed is None else np.tile(np.array(squeezed, np.int64), (len(sizes), 1))
        options = config.augment_options
        flips = np.zeros(len(sizes), np.bool_)
        if config.augment == "none":
            boxes = encoded_images.make_whole_boxes(extents)
        elif config.training:
            boxes, drawn = draw_crops(seeds, sizes, squeezed, scale=options.scale, ratio=options.ratio)
            flips = drawn if options.flip else flips
        else:
            boxes = encoded_images.center_boxes(sizes, extents, config.size, options.crop_fraction)
        flat = None if indices is None else indices.reshape(-1)
        return EncodedImages(column, self.plan.num_images or 1, flat, sizes, extents, seeds, boxes, flips)

    def leave_to_device(self, images: EncodedImages) -> EncodedImages:
        """Removes the crops and flips of images if the device applies them."""
        return images.make_whole() if self.plan.config.augment == "device" else images

    def make_others(self, stored: StoredBatch, images: EncodedImages | None, filled: int | None = None) -> Batch:
        """Makes all of a batch but its images, with masks cropped like these; call it within `naming`.

        `filled` is that of `decode`.
        """
        plan, source, config = self.plan, self.plan.source, self.plan.config
        if filled is None:
            filled = plan.batch_size - len(stored.numbers)
        batch: Batch = {}
        if images is not None and config.augment == "device":  # in rows of padding the crop is the whole image
            count = filled * images.per_record
            whole = np.tile(np.array([0, 0, 1, 1], np.float32), (count, 1))
            flips = np.concatenate((images.flips.astype(np.uint8), np.zeros(count, np.uint8)))  # Keras cannot sum bool
            shape = (-1,) if plan.num_images is None else (-1, images.per_record)
            corners = np.concatenate((images.list_corners(), whole))
            batch = {"crop": corners.reshape(*shape, 4), "flip": flips.reshape(shape)}
        with self.clocks.measure("batch"):
            if source.label_key is not None:
                one_hot, column = source.num_classes if config.one_hot else None, stored.columns[source.label_key]
                numbers = source.label_key, column, source.label_base, self._classes
                batch["label"] = make_labels(*numbers, one_hot, filled)
            for feature in plan.features:
                column, tensor = stored.columns[feature.name], feature.spec.tensor
                if feature.name in plan.masks:
                    assert images is not None
                    name, shown = feature.name, self.leave_to_device(images)
                    batch[name] = encoded_images.make_masks(name, column, shown, self.decoding.size, filled)
                elif feature.multi_hot:
                    batch[feature.name] = make_multi_hot(feature.spec, column, filled)
                elif tensor is not None:
                    axes = None if tensor.sizes is None else stored.columns[tensor.sizes]
                    batch |= make_tensors(feature, column, axes, filled)
                else:
                    batch |= make_values(feature, column, filled)
        if not config.training:
            batch["mask"] = np.concatenate((stored.numbers == stored.asked, np.zeros(filled, np.bool_)))
        return batch

    def allocate_images(self, records: int) -> NDArray[Any]:
        """Returns an array of unknown content for the images of some records: [images, height, width, 3]."""
        images = records * (self.plan.num_images or 1)
        return allocate((images, *self.decoding.size, 3), DTYPES[self.decoding.dtype])

    def make_example_image(self) -> Any:
        """Returns the split's first image after the transform."""
        return self.decode(self.read(0, 0, np.zeros(1, np.int64)), filled=0)["image"][0]

    @contextmanager
    def naming(self, numbers: IntArray) -> Iterator[None]:
        """Turns a `BadRecord`, which has a row, into a FormatError that names the record."""
        try:
            yield
        except BadRecord as error:
            raise FormatError(f"Record {numbers[error.row]} of {self.split!r}: {error}.") from None

    def _choose_several(self, stored: StoredBatch, column: Column, most: int) -> tuple[Column, IntArray]:
        """Chooses images of records with several: their column, and their indices in each record, int64 [n, images]."""
        chosen = self.plan.num_images or 1
        few = np.flatnonzero(column.counts < chosen)
        if len(few):
            raise BadRecord(int(few[0]), f"it must have {chosen} images or more, got {column.counts[few[0]]}")
        indices = np.broadcast_to(np.arange(chosen), (len(column.counts), chosen))
        if self.plan.config.training and self.plan.num_images is not None and chosen < most:
            seeds = make_seeds(self.plan.config.seed, stored.epoch, stored.asked)
            indices = encoded_images.choose_images(seeds, column.counts, chosen, most)
        images = (column.firsts[:, None] + indices).reshape(-1)
        return column.choose(images, np.full(len(column.counts), chosen)), indices

    def _transform_image(self, images: EncodedImages, image: int) -> Any:
        from tfpipe.images.decode import decode_pixels, make_image

        assert self._transform is not None
        with self.clocks.measure("decode"), images.naming(image):
            pixels = decode_pixels(images.column.get_bytes(image), self.form)
        seed = int(images.seeds[image : image + 1].astype("<i4").view("<u8")[0, 0])
        with self.clocks.measure("transform"):
            return self._transform(make_image(pixels), seed)
