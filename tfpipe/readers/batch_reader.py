"""Any batch of a run by its epoch and step, as NumPy arrays; the readers for PyTorch and JAX share it.

The records and their order, the crops and the flips are those of `tfpipe.pipeline`. A record is found by its number
and read on its own, about 20 us from the page cache or 100 us from a local SSD; on spinning disks and network mounts,
where each read waits, `build_dataset` reads runs of adjacent records instead. An object store is asked for the rest of
a run with its first record, which costs about 200 us a record of 110 KB.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, FormatError
from tfpipe.format.example import Feature
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.format.schema import IMAGE_HEIGHT, IMAGE_WIDTH
from tfpipe.images.errors import BadImage
from tfpipe.native import jpeg
from tfpipe.pipeline.config.pipeline_config import PipelineConfig
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.plan.source import Source
from tfpipe.readers import native_batch, numpy_crops
from tfpipe.readers.columns import make_columns
from tfpipe.readers.record_lookup import get_label
from tfpipe.readers.record_reader import RecordReader
from tfpipe.system.file_io import is_url
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.options import get_options

Batch = dict[str, Any]

Resize = Callable[[Any, tuple[int, int], bool], NDArray[np.uint8]]
"""A function from a Pillow image to uint8 [height, width, 3] of this height and width, with or without antialias."""

Transform = Callable[[Any, int], Any]
"""A function from a Pillow image and the record's seed in this epoch to the trainer's image."""

Run = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]
"""A function that calls another once for each number, in any order or at once: `map`, or that of a thread pool."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_READS_AT_ONCE = 64  # of one process: 900 records a second from storage that answers in 50 ms, if not asked before
_RECORDS_PER_READ = 3  # a task of a thread costs about 40 us
_STEPS_AHEAD = 2  # are read, and where threads make whole batches as many are decoded
_MEMORY_FACTOR = 1.5  # of the mean size of a batch: what is never written takes no memory
_PART_IMAGES = 8  # of a batch that the native library decodes for one call of `Run`
_MOST_RUN_STEPS = 64
_STEPS_ANNOUNCED = 4  # beyond these storage is asked for, which takes no memory of this process


@dataclass(frozen=True)
class Rank:
    """One of the processes that share a batch.

    Attributes:
        index: The number of this rank, from 0.
        num_ranks: The number of ranks.
        num_replicas: The number of replicas of all ranks together; each has an equal share.
    """

    index: int = 0
    num_ranks: int = 1
    num_replicas: int = 1


class EncodedImage(NamedTuple):
    """An image as it is stored, and the part of it that the trainer gets.

    Attributes:
        number: The number of its record, counted through all shards.
        data: The bytes in the record: bytes or a uint8 array, which must not be written to.
        crop_box: The crop in pixels of the stored image. A record that lies about its size may have one outside of it.
        flip: Whether the crop is mirrored left to right.
    """

    number: int
    data: bytes | NDArray[np.uint8]
    crop_box: numpy_crops.CropBox
    flip: bool


class EncodedBatch(NamedTuple):
    """A batch whose images are not decoded yet.

    Attributes:
        images: The images; in evaluation there may be fewer than rows.
        others: All parts of the batch but the images, as `BatchReader.read` returns them.
    """

    images: list[EncodedImage]
    others: Batch


class BatchReader:
    """The batches of one rank. Threads may share it; a pickled one opens the files anew.

    Args:
        manifest: The manifest of a dataset on a local disk or in a bucket, from `load_manifest`.
        split: The name of a split.
        config: The options of `build_dataset`, without those that only `tf.data` has.
        rank: The part of each batch that is read.
        resize: The function that makes images of the model's size out of crops.
        transform: A function that replaces crops, resizing and flips; it gets whole images.
        start_step: The global step at which the run begins.

    Raises:
        ConfigError: The config does not fit this reader, the data or the number of ranks.
        DataError: There are no records.
    """

    def __init__(
        self,
        manifest: Manifest,
        split: str,
        config: PipelineConfig,
        rank: Rank,
        resize: Resize,
        transform: Transform | None = None,
        start_step: int = 0,
    ) -> None:
        _check_config(config)
        if manifest.directory:
            manifest = replace(manifest, directory=_make_absolute(manifest.directory))
        source = Source.from_manifest(manifest, split)
        if transform is not None and not source.has_images:
            raise ConfigError(f"`transform` needs images, and {source.name} has none. Leave it out.")
        # In training every rank takes rows of one batch, so the order is that of a single host for any number of them.
        hosts = (1, 0) if config.training else (rank.num_ranks, rank.index)
        self.config, self.manifest, self.split, self.rank = config, manifest, split, rank
        self.plan = ReadPlan(source, config, *hosts, rank.num_replicas, start_step)
        self.plan.check()
        self._reader = RecordReader(manifest.directory, manifest, split)
        self.form = ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()
        self._resize, self._transform = resize, transform
        if transform is not None and self.plan.masks:
            raise ConfigError(
                f"`transform` gets an image without its mask, so a batch cannot hold {self.plan.masks[0]!r} as well. "
                "Leave one of them out."
            )
        source.check()

    @cached_property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        steps = self.plan.steps_per_epoch
        assert steps is not None
        return steps

    @property
    def batch_size(self) -> int:
        """The number of images of this rank in a batch."""
        return self.plan.global_batch_size // self.rank.num_ranks

    def list_numbers(self, epoch: int, step: int) -> IntArray:
        """Lists the records that this rank reads in a step, counted through all shards: int64 [n].

        In evaluation there may be fewer than `batch_size`.
        """
        plan, size = self.plan, self.batch_size
        if not self.config.training:
            records = plan.source.num_records or 0
            begin, end = (records * part // self.rank.num_ranks for part in (self.rank.index, self.rank.index + 1))
            return np.arange(begin + step * size, max(min(begin + (step + 1) * size, end), begin + step * size))
        rows = range(self.rank.index * size, (self.rank.index + 1) * size)
        shard, record = plan.order.batch(epoch, step, plan.global_batch_size, rows).T
        numbers: IntArray = plan.source.bases[shard] + record
        return numbers

    @property
    def calls_per_batch(self) -> int:
        """The number of calls that `run` makes for a batch of `iterate`."""
        return -(-self.batch_size // _PART_IMAGES) if self.decodes_batches else self.batch_size

    @cached_property
    def decodes_batches(self) -> bool:
        """Whether the native library decodes many images in one call, with several threads."""
        fits = self._transform is None and self.plan.num_images is None and self.plan.decodes_batches
        return fits and native_batch.can_make_batches()

    def iterate(self, positions: Iterable[tuple[int, int]], run: Run = map, threads: int = 1) -> Generator[Batch]:
        """Yields the batches of several (epoch, step); results and errors are those of `read`.

        The records of the next steps are read meanwhile, by threads that do nothing else. Storage that answers late is
        asked for those of some steps more, so that a thread seldom waits.

        Args:
            positions: The epoch and the step of each batch.
            run: A `map` that may work on several records at once.
            threads: The number of threads that decode where the native library decodes whole batches. Above 1 they
                work on several batches, the first one first, and `run` is not called.
        """
        if not self.decodes_batches:
            yield from self._iterate_rows(positions, run)
            return
        steps = self._announce_steps(positions)
        records = _map_ahead(self._read_step, steps, "tfpipe-read")
        if threads > 1:
            yield from _map_ahead(lambda step: self._decode_step(step, map, threads), records, "tfpipe-decode")
            return
        with closing(records):
            for step in records:
                yield self._decode_step(step, run, 1)

    def _read_step(self, place: tuple[int, IntArray]) -> _ReadStep:
        epoch, numbers = place
        # In one piece, so that storage is asked for all records at once; what does not fit comes in pieces of its own.
        memory = np.empty(int(_MEMORY_FACTOR * len(numbers) * self.plan.source.record_bytes), np.uint8)
        return _ReadStep(epoch, numbers, self._read_all_features(numbers, memory))

    def _decode_step(self, step: _ReadStep, run: Run, threads: int) -> Batch:
        """Makes a batch of records by the native library: with several threads in one call, else part by part."""
        config, numbers, features = self.config, step.numbers, step.features
        encoded = [
            self._get_stored_image(int(number), record) for number, record in zip(numbers, features, strict=True)
        ]
        boxes, flips = self._choose_crops(step, encoded)
        images = np.empty((self.batch_size, *config.size, 3), np.uint8)
        decoding = native_batch.Decoding(8 if config.dct_scaling else 1, threads, self.form.max_pixels)
        draws: _RandomDraws | None = None

        def decode_part(begin: int) -> None:
            nonlocal draws
            rows = slice(begin, len(numbers) if threads > 1 else begin + _PART_IMAGES)
            decoded = native_batch.decode_images(encoded[rows], boxes[rows], flips[rows], images[rows], decoding)
            for row in (begin + np.flatnonzero(~decoded)).tolist():
                # What the native library refuses is left to Pillow, whose error then says why.
                draws = draws or _RandomDraws(self.plan, step.epoch, numbers)
                record = {**features[row], self.manifest.image_key or "": [bytes(encoded[row])]}
                images[row] = self._make_image(int(numbers[row]), record, draws, row, 0)

        for _ in run(decode_part, range(0, len(numbers), len(numbers) if threads > 1 else _PART_IMAGES)):
            pass
        return {"image": images, **self._collect_features(features)}

    def _choose_crops(self, step: _ReadStep, encoded: list[Any]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Chooses the crop boxes of a training batch, int32 [n, 4], and which crops are mirrored, bool [n]."""
        config, stored = self.config, self.plan.source.images.size
        sizes = [self._read_stored_size(data, record)[0] for data, record in zip(encoded, step.features, strict=True)]
        for number, size in zip(step.numbers, sizes, strict=True):
            if not all(0 < side < 2**31 for side in size):
                raise FormatError(
                    f"Record {number} of {self.split!r} must have the height and the width of its image, got "
                    f"{size[0]} x {size[1]}."
                )
        if config.augment != "host":
            whole = np.array([(0, 0, *(stored or size)) for size in sizes], np.int32)
            return whole, np.zeros(len(whole), np.bool_)
        seeds = numpy_crops.make_seeds(config.seed, step.epoch, step.numbers)
        boxes, flips = native_batch.draw_crops(seeds, np.array(sizes, np.int32), stored, config.augment_options)
        return boxes, flips if config.augment_options.flip else np.zeros(len(flips), np.bool_)

    def _iterate_rows(self, positions: Iterable[tuple[int, int]], run: Run) -> Generator[Batch]:
        """Yields batches that are made row by row."""
        readers, started = ThreadPoolExecutor(_READS_AT_ONCE, "tfpipe-read"), deque[_StartedReads]()
        try:
            for epoch, numbers in self._announce_steps(positions):
                started.append(self._start_reads(epoch, numbers, readers))
                if len(started) > _STEPS_AHEAD:
                    yield self._finish(started.popleft(), run)
            while started:
                yield self._finish(started.popleft(), run)
        finally:  # the trainer may have left early
            _let_end(readers)

    def read(self, epoch: int, step: int, run: Run = map) -> Batch:
        """Reads one batch of this rank.

        Args:
            epoch: The epoch, from 0; not used in evaluation.
            step: The step in the epoch.
            run: A `map` that may work on several records at once.

        Returns:
            "image", if records have one: uint8 [n, height, width, 3], or for several images of a record
            [n, images, height, width, 3], or with a `transform` the list of its results for all images;
            "label", int64 [n] or one-hot float32 [n, classes], if there are labels; masks, int32 [n, height, width],
            cropped as their images; the other features of the plan as `make_columns` makes them; in evaluation "mask",
            bool [n] or float32 with `as_supervised`, False in rows that fill the batch up with zeros.

        Raises:
            FormatError: A file is missing or damaged, or an image is.
            DataError: A file cannot be read.
        """
        numbers = self.list_numbers(epoch, step)
        return self._make_batch(epoch, numbers, lambda row: self._reader.read_payload(int(numbers[row])), run)

    def read_encoded(self, epoch: int, step: int, memory: NDArray[np.uint8] | None = None) -> EncodedBatch:
        """Reads one batch of this rank with images as they are stored, for a decoder elsewhere.

        Records that lie near each other are read together, and each is checked against its checksums.

        Args:
            epoch: The epoch, from 0; not used in evaluation.
            step: The step in the epoch.
            memory: The memory into which records are read, as for `RecordReader.read_columns`.

        Raises:
            FormatError: A file is missing or damaged, or the header of an image is.
            DataError: A file cannot be read.
        """
        numbers = self.list_numbers(epoch, step)
        features = self._read_all_features(numbers, memory)
        draws = _RandomDraws(self.plan, epoch, numbers)
        images: list[EncodedImage] = []
        masks = self._make_empty_masks()
        for row, whole_record in enumerate(features):
            number = int(numbers[row])
            record = self._choose_records(number, whole_record, draws, row)[0][1]
            stored = self._get_stored_image(number, record)
            try:
                crop_box = self._choose_crop_box(stored, record, draws, row)
            except BadImage as error:
                raise self.name_bad_image(number, error) from None
            images.append(EncodedImage(number, stored, crop_box, bool(draws.flips[row])))
            for name, column in masks.items():
                column[row] = self._make_mask(name, number, record, draws, row)
        return EncodedBatch(images, {**masks, **self._collect_features(features)})

    def decode_crop(self, data: bytes, crop_box: numpy_crops.CropBox) -> Any:
        """Decodes a crop of a stored image by Pillow, at its full size: an RGB image of the box's size.

        Raises:
            BadImage: The image cannot be decoded.
        """
        from tfpipe.images.decode import decode_crop

        return decode_crop(data, self.form, crop_box, 1, self.plan.source.images.seekable)

    def name_bad_image(self, number: int, error: BadImage, place: int | None = None) -> FormatError:
        """Returns the error that names the record of an image that cannot be used, and its place among several."""
        which = "image" if place is None else f"image {place}"
        return FormatError(f"Record {number} of {self.split!r}: its {which} cannot be used, {error}.")

    def make_example_image(self) -> Any:
        """Returns the result of the transform for the split's first image."""
        draws = _RandomDraws(self.plan, 0, np.zeros(1, np.int64))
        place, record = self._choose_records(0, self._reader[0], draws, 0)[0]
        return self._make_image(0, record, draws, draws.find(0, place), place)

    def _read_all_features(self, numbers: IntArray, memory: NDArray[np.uint8] | None) -> list[dict[str, Any]]:
        """Reads what a batch needs of its records. Where each has one value of everything, images are not copied."""
        source, schema = self.plan.source, self.manifest.schema
        image_key = self.manifest.image_key
        others = [feature.name for feature in self.plan.features]
        names = [image_key, source.label_key, *((IMAGE_HEIGHT, IMAGE_WIDTH) if source.has_sizes else ()), *others]
        wanted = [name for name in dict.fromkeys(names) if name is not None]
        if not all(name in schema and schema[name].shape == () for name in wanted):
            return list(self._reader.read_examples(numbers))
        columns = self._reader.read_columns(numbers, wanted, memory)
        rows: list[dict[str, Any]] = [{} for _ in numbers]
        for name, column in columns.items():
            for row, record in enumerate(rows):
                if isinstance(column, list):
                    record[name] = [column[row] if name == image_key else column[row].tobytes()]
                else:
                    record[name] = column[row : row + 1]
        return rows

    def _get_stored_image(self, number: int, features: dict[str, Any]) -> Any:
        """Returns the bytes of a record's image, or a view of them."""
        stored = features.get(self.manifest.image_key or "")
        if not (isinstance(stored, list) and len(stored) == 1):
            raise FormatError(f"Record {number} of {self.split!r} must have one {self.manifest.image_key}.")
        return stored[0]

    def _announce_steps(self, positions: Iterable[tuple[int, int]]) -> Generator[tuple[int, IntArray]]:
        """Yields the epoch and the records of several (epoch, step), and asks storage for those of the next steps.

        These grow by one with each step, so the first batch waits for nothing but its own records.
        """
        listed: deque[tuple[int, IntArray]] = deque()
        announced: deque[tuple[int, IntArray]] = deque()
        steps_ahead, run = 0, self._run_steps
        for epoch, step in positions:
            listed.append((epoch, self.list_numbers(epoch, step)))
            if len(listed) < run:
                continue
            self._reader.announce(listed[0][1], np.concatenate([numbers for _, numbers in listed]))
            announced.append(listed.popleft())
            if len(announced) > steps_ahead:
                yield announced.popleft()
                steps_ahead = min(steps_ahead + 1, _STEPS_ANNOUNCED)
        for place in listed:
            self._reader.announce(place[1])
        yield from announced
        yield from listed

    @cached_property
    def _run_steps(self) -> int:
        """The steps that use a run of records up; 1 where none are read at once, as on a local disk."""
        if not self.config.training or not is_url(self.manifest.directory):
            return 1
        order = self.plan.order
        return min(order.turns_per_run * max(order.lanes * order.turn_records // self.plan.share, 1), _MOST_RUN_STEPS)

    def _start_reads(self, epoch: int, numbers: IntArray, readers: ThreadPoolExecutor) -> _StartedReads:
        """Lets threads read the records of a step, a few records each."""
        parts = [numbers[at : at + _RECORDS_PER_READ].tolist() for at in range(0, len(numbers), _RECORDS_PER_READ)]
        return _StartedReads(epoch, numbers, [readers.submit(self._read_payloads, part) for part in parts])

    def _finish(self, started: _StartedReads, run: Run) -> Batch:
        return self._make_batch(started.epoch, started.numbers, started.get_payload, run)

    def _read_payloads(self, numbers: list[int]) -> list[bytes]:
        return [self._reader.read_payload(number) for number in numbers]

    def _make_batch(self, epoch: int, numbers: IntArray, get_payload: Callable[[int], bytes], run: Run) -> Batch:
        """Makes a batch of the payloads of its records."""
        features: list[dict[str, Feature]] = [{} for _ in numbers]

        def read_features(row: int) -> None:
            features[row] = self._reader.decode(int(numbers[row]), get_payload(row))

        if not self.plan.source.has_images:
            for _ in run(read_features, range(len(numbers))):
                pass
            return self._collect_features(features)
        draws = _RandomDraws(self.plan, epoch, numbers)
        of_record = self.plan.num_images or 1
        images: Any = np.zeros((self.batch_size * of_record, *self.config.size, 3), np.uint8)
        if self._transform is not None:
            images = [None] * (len(numbers) * of_record)
        native = self._transform is None and self.plan.decoder == "native"
        masks = self._make_empty_masks()

        def read_row(row: int) -> None:
            read_features(row)
            number = int(numbers[row])
            for k, (place, record) in enumerate(self._choose_records(number, features[row], draws, row)):
                at = row * of_record + k
                out = images[at] if native else None
                image = self._make_image(number, record, draws, draws.find(row, place), place, out)
                if out is None or image is not out:
                    images[at] = image
            for name, column in masks.items():
                column[row] = self._make_mask(name, int(numbers[row]), features[row], draws, row)

        for _ in run(read_row, range(len(numbers))):
            pass
        if self.plan.num_images is not None and self._transform is None:
            images = images.reshape(self.batch_size, of_record, *images.shape[1:])
        return {"image": images, **masks, **self._collect_features(features)}

    def _choose_records(
        self, number: int, features: dict[str, Any], draws: _RandomDraws, row: int
    ) -> list[tuple[int, dict[str, Any]]]:
        """Chooses the images of a record: the place of each, and the features of a record with this image alone."""
        counts, key = self.plan.source.per_record, self.manifest.image_key
        if counts is None or key is None:
            return [(0, features)]
        stored, chosen = features.get(key), self.plan.num_images or 1
        count = len(stored) if isinstance(stored, list) else 0
        lists = {name: features[name] for name in (key, IMAGE_HEIGHT, IMAGE_WIDTH) if features.get(name) is not None}
        if count < chosen or any(len(values) != count for values in lists.values()):
            raise FormatError(
                f"Record {number} of {self.split!r} must have {chosen} images or more, and the size of each, got "
                f"{count} images."
            )
        places = draws.choose_images(row, count, chosen)
        return [(place, {name: values[place : place + 1] for name, values in lists.items()}) for place in places]

    def _make_image(
        self,
        number: int,
        features: dict[str, Feature],
        draws: _RandomDraws,
        row: int,
        place: int,
        out: NDArray[np.uint8] | None = None,
    ) -> Any:
        """Makes an image of a record. It lies in `out` if that is given and the native library can decode the record.

        What the native library refuses is left to Pillow, whose error then says why. `row` is that of the image among
        the random numbers, and `place` its place in the record.
        """
        from tfpipe.images.decode import decode_crop, decode_pixels, make_image, mirror

        stored = self._get_stored_image(number, features)
        try:
            if self._transform is not None:
                return self._transform(make_image(decode_pixels(stored, self.form)), draws.get_seed(row))
            crop_box = self._choose_crop_box(stored, features, draws, row)
            ratio = _choose_ratio(crop_box, self.config.size) if self.config.dct_scaling else 1
            if out is not None and self._decode_natively(stored, crop_box, ratio, draws.flips[row], out):
                return out
            seeks = self.plan.source.images.seekable
            image = decode_crop(stored, self.form, crop_box, ratio, seeks)
        except BadImage as error:
            several = self.plan.source.per_record is not None
            raise self.name_bad_image(number, error, place if several else None) from None
        image = mirror(image) if draws.flips[row] else image
        return self._resize(image, self.config.size, self.config.augment_options.antialias)

    def _make_empty_masks(self) -> dict[str, NDArray[np.int32]]:
        return {name: np.zeros((self.batch_size, *self.config.size), np.int32) for name in self.plan.masks}

    def _make_mask(
        self, name: str, number: int, features: dict[str, Any], draws: _RandomDraws, row: int
    ) -> NDArray[np.integer[Any]]:
        """Makes the mask of a record, cropped and mirrored as its image."""
        from tfpipe.images.masks import crop_nearest, read_mask

        image = self._get_stored_image(number, features)
        height, width = self._read_stored_size(image, features)[1]
        try:
            classes = read_mask(self.manifest.schema[name].check_stored(features), height * width)
            if classes.shape != (height, width):
                raise BadImage(f"it has {classes.shape[1]} x {classes.shape[0]} pixels, the image {width} x {height}")
        except BadImage as error:
            raise FormatError(f"Record {number} of {self.split!r}: {name!r} cannot be used, {error}.") from None
        crop_box = self._choose_crop_box(image, features, draws, row)
        mask = crop_nearest(classes, crop_box, self.config.size)
        return mask[:, ::-1] if draws.flips[row] else mask

    def _decode_natively(
        self, encoded: bytes, crop_box: numpy_crops.CropBox, ratio: int, flip: bool, out: NDArray[np.uint8]
    ) -> bool:
        try:
            jpeg.decode(encoded, crop_box, out, ratio=ratio, flip=flip, max_pixels=self.form.max_pixels)
        except jpeg.BadJpeg:
            return False
        return True

    def _choose_crop_box(
        self, encoded: Any, features: dict[str, Any], draws: _RandomDraws, row: int
    ) -> numpy_crops.CropBox:
        config = self.config
        size, stored = self._read_stored_size(encoded, features)
        if config.augment == "none":
            return (0, 0, *stored)
        if not config.training:
            return numpy_crops.center_crop_box(size, stored, config.size, config.augment_options.crop_fraction)
        return numpy_crops.squeeze_crop_box(draws.sample_crop_box(row, size), size, stored)

    def _read_stored_size(self, encoded: Any, features: dict[str, Any]) -> tuple[numpy_crops.Size, numpy_crops.Size]:
        """Returns the size of the original, in whose shape crops are drawn, and that of the stored image."""
        from tfpipe.images.image_header import read_image_header

        squeezed = self.plan.source.images.size
        size = _read_recorded_size(features) if self.plan.source.has_sizes else squeezed
        if size is None:
            header = read_image_header(bytes(encoded))
            size = header.height, header.width
        return size, squeezed or size

    def _collect_features(self, features: list[dict[str, Feature]]) -> Batch:
        """Collects all parts of a batch but the images."""
        config, source, filled = self.config, self.plan.source, self.batch_size - len(features)
        batch: Batch = {}
        if source.label_key is not None:
            labels = [get_label(record, self.manifest) for record in features]
            if None in labels:
                raise FormatError(f"Every record of {self.split!r} must have one {source.label_key}.")
            batch["label"] = np.array([*labels, *[0] * filled], np.int64)
            if config.one_hot:
                classes = np.arange(source.num_classes or 0)
                batch["label"] = (batch["label"][:, None] == classes).astype(np.float32)
                batch["label"][len(features) :] = 0
        for feature in self.plan.features:
            if feature.name in self.plan.masks:
                continue  # made with the image
            batch |= make_columns(feature, features, config.max_boxes, filled)
        if not config.training:
            mask = np.arange(self.batch_size) < len(features)
            batch["mask"] = mask.astype(np.float32) if config.as_supervised else mask
        return batch


class _ReadStep(NamedTuple):
    """The records of a step that are read.

    Attributes:
        epoch: The epoch.
        numbers: The number of each record, int64 [n].
        features: The features of each record.
    """

    epoch: int
    numbers: IntArray
    features: list[dict[str, Any]]


def _map_ahead(function: Callable[[_Item], _Result], items: Generator[_Item], name: str) -> Generator[_Result]:
    """Yields what a function makes of each item, in their order. Threads work on the next ones meanwhile."""
    threads, started = ThreadPoolExecutor(_STEPS_AHEAD, name), deque[Future[_Result]]()
    try:
        for item in items:
            started.append(threads.submit(function, item))
            if len(started) > _STEPS_AHEAD:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
    finally:  # the trainer may have left early
        _let_end(threads)
        items.close()


def _let_end(threads: ThreadPoolExecutor) -> None:
    """Lets threads end with what they do now.

    Nobody waits: Python may close a forgotten generator in any thread, also in one that these have just begun to start.
    """
    threads.shutdown(wait=False, cancel_futures=True)


class _StartedReads(NamedTuple):
    """The records of a step that threads read.

    Attributes:
        epoch: The epoch.
        numbers: The number of each record, int64 [n].
        parts: The payloads of `_RECORDS_PER_READ` records each.
    """

    epoch: int
    numbers: IntArray
    parts: list[Future[list[bytes]]]

    def get_payload(self, row: int) -> bytes:
        """Returns the payload of a record as soon as it is read."""
        return self.parts[row // _RECORDS_PER_READ].result()[row % _RECORDS_PER_READ]


class _RandomDraws:
    """The random numbers of a batch: a row for each image that may be in it.

    Where images are drawn among more, there is a row for each image that a record may have, 2 us each.
    """

    def __init__(self, plan: ReadPlan, epoch: int, numbers: IntArray) -> None:
        config, counts = plan.config, plan.source.per_record
        self._options = config.augment_options
        draws = config.training and config.augment == "host"
        seeds = numpy_crops.make_seeds(config.seed, epoch, numbers)
        self._choices = None
        self._rows_of_record = plan.num_images or 1
        if plan.draws_images and counts is not None:
            self._choices = numpy_crops.draw_choices(seeds, counts.largest)
            self._rows_of_record = counts.largest
        self._seeds = numpy_crops.make_image_seeds(seeds, self._rows_of_record).reshape(-1, 2)
        self._numbers = numpy_crops.draw_first_numbers(self._seeds) if draws else []
        flips = draws and self._options.flip
        self.flips = numpy_crops.sample_flips(self._seeds) if flips else [False] * len(self._seeds)

    def find(self, row: int, place: int) -> int:
        """Returns the row of the image at a place of a record."""
        return row * self._rows_of_record + place

    def choose_images(self, row: int, count: int, number: int) -> list[int]:
        """Chooses images of a record that has `count`, by their places: drawn, or the first ones."""
        if self._choices is None:
            return list(range(number))
        return numpy_crops.choose_images(self._choices[row, :count], number)

    def get_seed(self, row: int) -> int:
        return int(self._seeds[row : row + 1].astype("<i4").view("<u8")[0, 0])

    def sample_crop_box(self, row: int, original: numpy_crops.Size) -> numpy_crops.CropBox:
        return numpy_crops.sample_crop_box(self._seeds[row], self._numbers[row], original, self._options)


def form_batch(batch: Batch, config: PipelineConfig) -> Any:
    """Returns a batch in the trainer's form: a dictionary, or (image, label[, mask]) with `as_supervised`.

    The features in `extra_features` then join the image in a dictionary.
    """
    if not config.as_supervised:
        return batch
    inputs = {name: batch[name] for name in ("image", *config.extra_features)}
    first = inputs if config.extra_features else inputs["image"]
    return (first, batch["label"], batch["mask"]) if "mask" in batch else (first, batch["label"])


def _check_config(config: PipelineConfig) -> None:
    for name, option in get_options(config).items():
        value = getattr(config, name)
        if option.without_tensorflow is not None and value not in option.without_tensorflow:
            raise ConfigError(
                f"`{name}` {value!r} is for the TensorFlow pipeline only: here records are read one by one, in exact "
                "order. Leave it out."
            )


def _read_recorded_size(features: dict[str, Feature]) -> numpy_crops.Size:
    height, width = (features.get(key) for key in (IMAGE_HEIGHT, IMAGE_WIDTH))
    if not (isinstance(height, np.ndarray) and isinstance(width, np.ndarray) and height.size == width.size == 1):
        raise FormatError(f"Every record must have one {IMAGE_HEIGHT} and one {IMAGE_WIDTH}.")
    return int(height[0]), int(width[0])


def _choose_ratio(crop_box: numpy_crops.CropBox, out_size: numpy_crops.Size) -> int:
    """Returns the largest reduction while decoding that leaves a crop no smaller than the output."""
    return max(
        ratio
        for ratio in (1, 2, 4, 8)
        if ratio == 1 or all(side >= ratio * out for side, out in zip(crop_box[2:], out_size, strict=True))
    )


def _make_absolute(directory: str) -> str:
    return directory if is_url(directory) else os.path.abspath(directory)
