"""Makes records of image files: each file is read, checked, brought into the stored form, and described by features.

The rows of a table without images become records here too.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from beam_jobs.inputs import parquet_images, parquet_tensors
from beam_jobs.inputs.annotations.segmentation import draw_mask
from beam_jobs.inputs.read_image import UnreadableError, read_image
from beam_jobs.plan.image_ref import PlannedImage, get_mask, list_files
from beam_jobs.shards.record import NewRecord, RejectedImage, check_source_size, make_list_features, rejecting
from beam_jobs.shards.work_dir import PlanHeader
from tfpipe.errors import ConfigError
from tfpipe.format import schema as keys
from tfpipe.format.example import encode_example
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image
from tfpipe.storage import file_io

_BLOCK_BYTES = 128 << 20  # of images in Parquet files: the size of a default shard, which so reads a row group once
_MAX_BLOCK_IMAGES = 10_000
_FETCHED_AHEAD = 16  # images on other machines: a store answers in tens of milliseconds


_Fetched = tuple[Sequence[bytes], bytes | None, bytes]
"""The bytes of each of a record's images, the bytes of its mask or None, and the packed bytes of its tensors."""


_Planned = tuple[PlannedImage, Callable[[], NewRecord]]
"""A planned image, and the function that makes its record."""


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The images of a folder, an archive or a table, from which records are made."""

    header: PlanHeader
    _copies: dict[str, parquet_images.CopiedRows] = field(default_factory=dict, repr=False, compare=False)

    def read_all(self, planned: Iterable[PlannedImage]) -> Iterator[_Planned]:
        """Yields each image with the function that makes its record.

        Images on other machines are fetched ahead, and those in Parquet files are read many at a time.
        """
        for in_rows, images in groupby(planned, key=lambda image: image.location.row_group >= 0):
            read = self._read_blocks if in_rows else self._read_files
            yield from read(images)

    def _read_blocks(self, planned: Iterable[PlannedImage]) -> Iterator[_Planned]:
        for images in _cut_blocks(planned):
            block = _Block(self.header, parquet_images.list_cells(images, masks=True), self._copies)
            position = 0
            for image in images:
                yield image, partial(self._make_from_block, image, block, position)
                position += 1 if parquet_images.get_row_mask(image) is None else 2

    def _make_from_block(self, planned: PlannedImage, block: "_Block", position: int) -> NewRecord:
        """Makes the record of the image at a position in a block; a mask in a Parquet row is at the next position."""
        with rejecting():
            data = block.take(position)
        if keys.IMAGE_ENCODED not in self.header.schema:
            return self._make_row(planned, data)
        data, tensors = parquet_tensors.unpack(data) if self.header.schema.tensors else (data, b"")
        if self.header.schema.has_several_images:
            return self._make_record(planned, (parquet_tensors.unpack(data), None, tensors))
        if parquet_images.get_row_mask(planned) is None:
            return self._make_record(planned, ([data], self._fetch_mask(planned), tensors))
        with rejecting("its mask: "):
            mask = block.take(position + 1)
        return self._make_record(planned, ([data], mask, tensors))

    def _read_files(self, planned: Iterable[PlannedImage]) -> Iterator[_Planned]:
        waiting = deque[_Planned]()
        pool, is_root_remote = ThreadPoolExecutor(_FETCHED_AHEAD), file_io.is_url(self.header.root)
        try:
            for image in planned:
                path = image.location.file or image.path
                is_remote = file_io.is_url(file_io.join(self.header.root, path) if is_root_remote else path)
                fetched = pool.submit(self._fetch, image) if is_remote else None
                waiting.append((image, partial(self._make_fetched, image, fetched)))
                while len(waiting) > (_FETCHED_AHEAD if is_remote else 0):
                    yield waiting.popleft()
            yield from waiting
        finally:
            pool.shutdown(cancel_futures=True)

    def _make_fetched(self, planned: PlannedImage, fetched: Future[_Fetched] | None) -> NewRecord:
        """Makes the record of an image file, which is read now unless a thread fetches it."""
        return self._make_record(planned, self._fetch(planned) if fetched is None else fetched.result())

    def _fetch(self, planned: PlannedImage) -> _Fetched:
        """Reads an image and its mask, or several images."""
        check_source_size(planned)
        images: list[bytes] = []
        for file in list_files(planned) if planned.images else (planned,):
            with rejecting(f"image {len(images)}: " if planned.images else ""):
                images.append(read_image(self.header.root, file, self.header.unpacked))
        return images, self._fetch_mask(planned), b""

    def _fetch_mask(self, planned: PlannedImage) -> bytes | None:
        if keys.IMAGE_MASK not in self.header.schema:
            return None
        mask = get_mask(planned)
        if mask is None:
            raise RejectedImage("bad", "it has no mask, and other images have one")
        if mask.drawn:
            with rejecting("its mask: "):
                return draw_mask(mask.drawn, self.header.form.max_pixels)
        file = mask.as_image
        check_source_size(file)
        with rejecting(f"its mask {file.path} "):
            return read_image(self.header.root, file, self.header.unpacked)

    def _make_record(self, planned: PlannedImage, fetched: _Fetched) -> NewRecord:
        header, several = self.header, self.header.schema.has_several_images
        encoded, mask, tensors = fetched
        names = [planned.path] if not several else _name_images(header.schema, planned, len(encoded))
        images: list[PreparedImage] = []
        for data, name in zip(encoded, names, strict=True):
            try:
                boxes, frame = planned.boxes, planned.frame
                image = prepare_image(data, header.form, filename=name, boxes=boxes, frame=frame, mask=mask)
            except BadImage as error:
                which = f"image {len(images)}: " if several else ""
                raise RejectedImage("bad", f"{which}{error.reason}", data) from error
            images.append(image)
        digests = [hashlib.sha256(data) for data in encoded]
        sha256 = [digest.hexdigest() for digest in digests]
        values = _make_features(header, planned, images, names, sha256)
        if tensors:
            values |= self._make_tensors(tensors)
        features = header.schema.check(values)
        digest = digests[0] if len(digests) == 1 else hashlib.sha256("".join(sha256).encode())
        return NewRecord(encode_example(features), features, tuple(images), digest.digest(), planned.path)

    def _make_row(self, planned: PlannedImage, cell: bytes) -> NewRecord:
        """Makes the record of a row without an image."""
        header = self.header
        values = _make_class_features(header, planned) | self._make_tensors(cell)
        features = header.schema.check(values | _make_extra_features(header, planned))
        return NewRecord(encode_example(features), features, (), hashlib.sha256(cell).digest(), planned.path)

    def _make_tensors(self, packed: bytes) -> dict[str, Any]:
        specs, dtypes = self.header.schema.tensors, self.header.tensor_dtypes
        try:
            return dict(parquet_tensors.fit_tensors(specs, dtypes, parquet_tensors.unpack_tensors(packed)))
        except ConfigError as error:
            reason = str(error).rstrip(".")
            raise RejectedImage("bad", f"{reason[0].lower()}{reason[1:]}") from error


def _cut_blocks(planned: Iterable[PlannedImage]) -> Iterator[list[PlannedImage]]:
    """Yields lists of consecutive images, of at most `_BLOCK_BYTES` and `_MAX_BLOCK_IMAGES` each."""
    block: list[PlannedImage] = []
    num_bytes = 0
    for image in planned:
        if block and (num_bytes + image.size > _BLOCK_BYTES or len(block) == _MAX_BLOCK_IMAGES):
            yield block
            block, num_bytes = [], 0
        block.append(image)
        num_bytes += image.size
    if block:
        yield block


@dataclass(slots=True)
class _Block:
    """Some images and masks in Parquet files, which are read together when the first of them is taken."""

    header: PlanHeader
    cells: list[parquet_images.Cell]  # of images, each followed by that of its mask if it has one
    copies: dict[str, parquet_images.CopiedRows]  # by the location of the Parquet file
    data: dict[int, bytes | UnreadableError] = field(default_factory=dict)  # read and not taken yet, by position

    def take(self, position: int) -> bytes:
        """Returns the bytes of a cell, which the block then drops."""
        cell = self.cells[position]
        path = self.header.unpacked.get(cell.file)
        if path is not None:
            try:
                if cell.file not in self.copies:
                    self.copies[cell.file] = parquet_images.CopiedRows(path)
                copied = self.copies[cell.file].read(cell)
            except OSError as error:
                raise UnreadableError(f"cannot be read: {error.strerror or error}") from error
            if copied is not None:
                return copied
        if position not in self.data:
            self._read(range(position, len(self.cells)))
        if position not in self.data:  # the cells before it in their files were much larger than planned
            self._read(range(position, position + 1))
        data = self.data.pop(position)
        if isinstance(data, UnreadableError):
            raise data
        return data

    def _read(self, positions: range) -> None:
        # From a file with a copy, only a cell that the copy lacks is read, and only once it is taken.
        wanted = [k for k in positions if k == positions.start or self.cells[k].file not in self.header.unpacked]
        num_bytes = 0
        cells = [self.cells[k] for k in wanted]
        for k, data in parquet_images.read_cells(self.header.root, self.header.columns, cells):
            self.data[wanted[k]] = data if isinstance(data, UnreadableError) else bytes(data)
            num_bytes += 0 if isinstance(data, UnreadableError) else len(data)
            if num_bytes > 2 * _BLOCK_BYTES:
                return


def _name_images(schema: keys.Schema, planned: PlannedImage, count: int) -> list[str]:
    """Returns the names of a record's several images, after a check of their number."""
    if count > keys.MAX_IMAGES:
        raise RejectedImage("bad", f"it has {count:,} images, and a record has at most {keys.MAX_IMAGES:,}")
    shape = schema[keys.IMAGE_ENCODED].shape
    if shape is not None and shape != (count,):  # the input has changed since it was listed
        raise RejectedImage("bad", f"it has {count:,} images, and other records have {shape[0]:,}")
    if planned.images:
        return [file.path for file in list_files(planned)]
    return [f"{planned.path}/{number}" for number in range(count)]


def _make_features(
    header: PlanHeader, planned: PlannedImage, images: Sequence[PreparedImage], names: Sequence[str], sha256: list[str]
) -> dict[str, Any]:
    """Returns one record's values by feature name, for the features of the schema."""
    schema, image = header.schema, images[0]
    values: dict[str, Any] = make_list_features(images)
    values |= {keys.IMAGE_FILENAME: list(map(_to_bytes, names)), keys.IMAGE_SHA256: sha256}
    if not schema.has_several_images:
        values = {name: value for name, (value,) in values.items()}
    values |= _make_class_features(header, planned)
    if keys.BBOX_XMIN in schema:
        for k, name in enumerate((keys.BBOX_XMIN, keys.BBOX_YMIN, keys.BBOX_XMAX, keys.BBOX_YMAX)):
            values[name] = np.array([box[k] for box in image.boxes], np.float32)
    if keys.BBOX_LABEL in schema:
        values[keys.BBOX_LABEL] = np.array(planned.box_labels, np.int64)
    if keys.BBOX_TEXT in schema:
        values[keys.BBOX_TEXT] = [header.box_names[label] for label in planned.box_labels]
    if keys.IMAGE_MASK in schema:
        values[keys.IMAGE_MASK] = image.mask
    return values | _make_extra_features(header, planned)


def _make_class_features(header: PlanHeader, planned: PlannedImage) -> dict[str, Any]:
    if keys.CLASS_LABEL not in header.schema:
        return {}
    return {keys.CLASS_LABEL: planned.label, keys.CLASS_TEXT: _to_bytes(header.label_names[planned.label])}


def _make_extra_features(header: PlanHeader, planned: PlannedImage) -> dict[str, Any]:
    extra: Sequence[Any] = planned.extra
    specs, values = header.schema.features[-len(extra) :] if extra else (), dict[str, Any]()
    for spec, value in zip(specs, extra, strict=True):
        if spec.dtype == "bytes":
            value = _to_bytes(value) if isinstance(value, str) else [_to_bytes(str(text)) for text in value]
        elif spec.shape != ():
            value = np.array(value, np.int64 if spec.dtype == "int64" else np.float32)
        values[spec.name] = value
    return values


def _to_bytes(text: str) -> bytes:
    """Returns text as UTF-8; bytes of a file name or column that were not UTF-8 come back as they were."""
    return text.encode("utf-8", "surrogateescape")
