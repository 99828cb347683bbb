"""The source of a pipeline: its files, the properties of their records, and the form of their images."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.compressed import detect_compression, scan_compressed
from tfpipe.format.example import decode_example
from tfpipe.format.file_names import leave_out_sidecars
from tfpipe.format.manifest import Compression, ImagesPerRecord, Manifest
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, DType, FeatureSpec, Schema
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, decode_header, scan_records
from tfpipe.format.view import ViewSplit
from tfpipe.storage import file_io
from tfpipe.system.arguments import check_path
from tfpipe.system.budget import FOREIGN_RECORD
from tfpipe.system.units import human_bytes, human_count

_IMAGE_KEYS = (IMAGE_ENCODED, "image")
_LABEL_KEYS = (CLASS_LABEL, "label")
_FIRST_COMPRESSED_BYTES = 2**25  # of a compressed file, read for its first record


@dataclass(frozen=True)
class StoredImages:
    """The properties of a split's images that are known before an image is read."""

    formats: frozenset[str] = frozenset()  # "JPEG", "PNG" or "RAW"; empty if other formats occur, or if nobody looked
    size: tuple[int, int] | None = None  # height and width, if all images were squeezed to one size
    seekable: bool = False  # whether all JPEGs have restart markers

    def __post_init__(self) -> None:
        if unknown := self.formats - {"JPEG", "PNG", "RAW"}:
            raise ConfigError(f"`formats` must be of JPEG, PNG and RAW, got {', '.join(sorted(unknown))}.")
        if "RAW" in self.formats and (self.size is None or len(self.formats) > 1):
            got = f"{', '.join(sorted(self.formats))} of size {self.size}"
            raise ConfigError(f"Raw images need a fixed `size` and no other format beside them, got {got}.")

    @classmethod
    def from_manifest(cls, manifest: Manifest, split: str) -> StoredImages:
        """Returns the properties of a split's images from its manifest."""
        info = manifest.splits[split]
        if manifest.foreign is None:
            square = manifest.image.get("square")
            size = (square, square) if isinstance(square, int) else None
            return cls(frozenset(info.formats), size, info.seekable)
        # These come from the headers of all images, if each header could be read.
        formats, sizes = frozenset(kind for kind, count in info.formats.items() if count), info.sizes
        if not formats or not formats <= {"JPEG", "PNG"}:
            return cls()
        largest, smallest = (sizes.max_height, sizes.max_width), (sizes.min_height, sizes.min_width)
        return cls(formats, largest if largest == smallest else None, info.seekable)


@dataclass(frozen=True)
class Source:
    """The files of records that a pipeline reads."""

    name: str  # in messages: "'train' of /data/flowers"
    files: tuple[str, ...]
    schema: Schema
    images: StoredImages
    record_bytes: float  # the mean size of a record in its file, or unpacked if each can be unpacked on its own
    total_bytes: int
    shard_records: tuple[int, ...] | None = None  # the records that are read; None if no record is found by its number
    counted_records: int | None = None  # in all files, also where a record cannot be found by its number
    compression: Compression = ""  # of every file; empty for none
    num_classes: int | None = None
    image_key: str | None = IMAGE_ENCODED  # None if the records have no image
    label_key: str | None = CLASS_LABEL
    label_base: int = 0  # the stored value of class 0; batches count from 0
    has_sizes: bool = False  # whether every record has the height and width of its image
    per_record: ImagesPerRecord | None = None  # the numbers of images in a record; None if each has one, or none
    more_images: tuple[str, ...] = ()  # further features with an image of the record
    value_key: str | None = None  # a feature of floats that every batch holds, as the label of a regression
    is_indexed: bool = False  # whether `tfpipe index` described the files of another program
    manifest: Manifest | None = field(default=None, repr=False, compare=False)
    split: str | None = field(default=None, compare=False)
    file_bytes: tuple[int, ...] = field(default=(), repr=False)  # the size of each file, if a manifest says so
    chosen: ViewSplit | None = field(default=None, repr=False, compare=False)  # the records of a view; None for all

    @classmethod
    def from_manifest(cls, manifest: Manifest, split: str) -> Source:
        """Makes the source of a split of a dataset that `load_manifest` opened."""
        info = manifest.get_split(split)
        if not manifest.directory:
            raise ConfigError(
                "The manifest must come from `tfpipe.load_manifest`, so that it knows where its shards lie."
            )
        if not info.records:
            raise DataError(f"{split!r} of {manifest.address} has no records.")
        random_access = manifest.random_access
        root, records = manifest.shard_directory(manifest.directory), info.records_per_shard
        return cls(
            name=f"{split!r} of {manifest.address}",
            files=tuple(file_io.join_names(root, (shard.file for shard in info.shards))),
            schema=manifest.full_schema,
            images=StoredImages.from_manifest(manifest, split),
            record_bytes=info.memory_bytes / info.records,
            total_bytes=info.bytes,
            shard_records=records if random_access else None,
            counted_records=None if random_access else sum(records),
            compression=manifest.compression,
            num_classes=len(manifest.label_names) if manifest.label_key is not None else None,
            image_key=manifest.image_key,
            label_key=manifest.label_key,
            label_base=manifest.label_base,
            has_sizes=manifest.foreign is None and manifest.image_key is not None,
            per_record=info.images_per_record,
            more_images=manifest.image_keys[1:],
            value_key=manifest.value_key,
            is_indexed=manifest.foreign is not None,
            manifest=manifest,
            split=split,
            file_bytes=tuple(shard.bytes for shard in info.shards),
            chosen=info.chosen,
        )

    def __repr__(self) -> str:
        return f"<{self.name}: {human_count(len(self.files), 'file')}, {human_bytes(self.total_bytes)}>"

    @property
    def is_split(self) -> bool:
        """Whether the files are those of a split of the dataset of `manifest`, and not other files."""
        if self.manifest is None or self.split is None:
            return False
        root = self.manifest.shard_directory(self.manifest.directory or "")
        shards = self.manifest.splits[self.split].shards
        return self.files == tuple(file_io.join_names(root, (shard.file for shard in shards)))

    @cached_property
    def has_images(self) -> bool:
        """Whether every record has at least one image."""
        return self.image_key is not None

    @property
    def unit(self) -> str:
        """The noun for the items of a batch: "images", or "records" if records have no image or several."""
        return "images" if self.has_images and self.per_record is None else "records"

    @property
    def num_records(self) -> int | None:
        """The number of records in all files, or of those that a view reads; None if nobody counted them."""
        return self.counted_records if self.shard_records is None else sum(self.shard_records)

    @property
    def epoch_records(self) -> int | None:
        """The number of records that an epoch of training reads, which differs where records have weights."""
        return self.num_records if self.chosen is None else self.chosen.epoch_records

    @cached_property
    def bases(self) -> NDArray[np.int64]:
        """The number of each file's first record, counted through all files, and the end: int64 [files + 1]."""
        return np.concatenate([[0], np.cumsum(self.shard_records or ())]).astype(np.int64)

    def check(self) -> None:
        """Checks that all files exist with the sizes in the manifest."""
        try:
            file_io.check_files(self.files[: len(self.file_bytes)], self.file_bytes)
        except FormatError as error:
            if not self.is_indexed:
                raise
            raise FormatError(f"{error} If it was changed on purpose, run `tfpipe index` again.") from None

    @property
    def why_sequential(self) -> str:
        """The reason why records cannot be found by their number, as the end of a sentence."""
        if self.compression:
            return f"the files of {self.name} are {self.compression} compressed, and are read from their beginning only"
        return f"{self.name} are files without a manifest"


def tfrecord_files(
    pattern: str | os.PathLike[str], schema: Schema | None = None, num_classes: int | None = None
) -> Source:
    """Opens TFRecord files of `tf.train.Example`s that something else wrote.

    The image is the feature `image/encoded` or `image`. The class, if there is one, is `image/class/label` or `label`,
    and keeps its stored value. Files may be compressed as a whole (GZIP, ZLIB), all in the same way. `tfpipe index`
    turns such files into a dataset: labels count from 0, the order is exact, and a run can be resumed.

    Args:
        pattern: A pattern such as "/data/train-*" or "gs://bucket/train*.tfrecord".
        schema: The features of every record. By default they are read from the first record: a feature with one value
            there has one value everywhere, and any other feature is a list of any length.
        num_classes: The number of classes, for one-hot labels.

    Raises:
        DataError: No file matches the pattern, or none has a record.
        FormatError: The first record is damaged, or has no image.
    """
    check_path("pattern", pattern)
    pattern = os.fspath(pattern)
    files = leave_out_sidecars(file_io.find(pattern), pattern)
    if not files:
        raise DataError(f"No file fits {pattern}. Check the path and the pattern.")
    first_file, compression, payload = _find_first_record(files)
    features = decode_example(payload)
    if schema is None:
        specs = []
        for name, value in sorted(features.items()):
            numbers: DType = "float" if isinstance(value, np.ndarray) and value.dtype.kind == "f" else "int64"
            kind = numbers if isinstance(value, np.ndarray) else "bytes"
            specs.append(FeatureSpec(name, kind, () if value is not None and len(value) == 1 else None))
        schema = Schema(tuple(specs))
    single = {spec.name: spec.dtype for spec in schema.features if spec.shape == ()}
    image_key = next((key for key in _IMAGE_KEYS if single.get(key) == "bytes"), None)
    if image_key is None:
        raise FormatError(
            f"A record must have an image under one of {', '.join(_IMAGE_KEYS)}; the first of {first_file} has "
            f"{', '.join(sorted(features)) or 'nothing'}."
        )
    label_key = next((key for key in _LABEL_KEYS if single.get(key) == "int64"), None)
    return Source(
        name=pattern,
        files=tuple(files),
        schema=schema,
        images=StoredImages(frozenset(), None),
        record_bytes=float(len(payload) + FRAME_BYTES),
        total_bytes=file_io.total_bytes(files),
        compression=compression,
        num_classes=num_classes,
        image_key=image_key,
        label_key=label_key,
    )


def get_source(data: Manifest | Source, split: str | None) -> Source:
    """Returns the source for the data that `build_dataset` takes."""
    if isinstance(data, Source):
        if split is not None:
            raise ConfigError(f"Files found by a pattern have no splits: give None for the split, got {split!r}.")
        return data
    if split is None:
        raise ConfigError(f"Say which split to read: {', '.join(data.splits)}.")
    return Source.from_manifest(data, split)


def _find_first_record(files: list[str]) -> tuple[str, Compression, bytes]:
    """Finds the first file that has a record, and returns its path, its compression and the record."""
    for path in files:
        header = file_io.read_start(path, HEADER_BYTES)
        if not header:
            continue
        compression = detect_compression(header)
        try:
            if not compression and not file_io.is_url(path):
                with file_io.open_file(path) as file:
                    return path, compression, next(scan_records(file))[1]
            # A compressed record may be a little larger than its content, or much smaller.
            length = (decode_header(header) if len(header) == HEADER_BYTES else None) or 0
            size = min(length, FOREIGN_RECORD.bytes) + FRAME_BYTES if not compression else _FIRST_COMPRESSED_BYTES
            start = io.BytesIO(file_io.read_start(path, size))
            if not compression:
                return path, compression, next(scan_records(start))[1]
            if (payload := next(scan_compressed(start, compression), None)) is not None:
                return path, compression, payload
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
    raise DataError(f"None of {len(files)} files, from {files[0]} on, has a record.")
