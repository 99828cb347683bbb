"""What a pipeline reads: files, what is known of their records, and how their images are stored.

A split of a dataset knows everything: how many records each shard has and where each begins; of compressed shards only
how many. Files found by a pattern, written by somebody else, are known by their first record only.
"""

import io
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.compressed import detect_compression, scan_compressed
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import Compression, Manifest, SplitInfo
from tfpipe.format.record_index import decode_index, max_index_bytes
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, DType, FeatureSpec, Schema
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, MAX_PAYLOAD_BYTES, decode_header, scan_records
from tfpipe.pipeline.plan.stored_images import StoredImages
from tfpipe.system import file_io

_IMAGE_KEYS = (IMAGE_ENCODED, "image")
_LABEL_KEYS = (CLASS_LABEL, "label")
_MAX_RECORD_BYTES = 2**28  # a larger first record is no image
_FIRST_PACKED_BYTES = 2**25  # of a compressed file, read for its first record


@dataclass(frozen=True)
class Source:
    """Files of records."""

    name: str
    """For messages: "'train' of /data/flowers"."""
    files: tuple[str, ...]
    schema: Schema
    images: StoredImages
    record_bytes: float
    """Mean size of a record in its file."""
    total_bytes: int
    """Size of all files."""
    shard_records: tuple[int, ...] | None = None
    """Records in each file; None where nobody counted them, or where none can be found by its number."""
    counted_records: int | None = None
    """Of all files, where they were counted and none can be found by its number."""
    compression: Compression = ""
    """Of every file."""
    num_classes: int | None = None
    image_key: str = IMAGE_ENCODED
    label_key: str | None = CLASS_LABEL
    label_base: int = 0
    """What is stored for class 0; labels are handed out counted from 0."""
    has_sizes: bool = False
    """Every record has the height and width of its image."""
    file_bytes: tuple[int, ...] = field(default=(), repr=False)
    """Size of each file, where a manifest says it."""
    index_files: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    """Path of each file's index, and the size of the file that it indexes."""

    @property
    def num_records(self) -> int | None:
        """Records of all files, if they were counted."""
        return self.counted_records if self.shard_records is None else sum(self.shard_records)

    @cached_property
    def bases(self) -> NDArray[np.int64]:
        """Number of each file's first record, counted through all files, and the end: int64 [files + 1]."""
        return np.concatenate([[0], np.cumsum(self.shard_records or ())]).astype(np.int64)

    def check(self) -> None:
        """Looks whether all files are there, with the size that a manifest says; errors as `offsets`."""
        try:
            file_io.check_files(self.files[: len(self.file_bytes)], self.file_bytes)
        except FormatError as error:
            if self.has_sizes:
                raise
            raise FormatError(f"{error} If it was changed on purpose, run `tfpipe index` again.") from None

    @property
    def unplaced(self) -> str:
        """Why records cannot be found by their number, to follow "since"."""
        if self.compression:
            return f"the files of {self.name} are {self.compression} compressed, and are read from their beginning only"
        return f"{self.name} are files without a manifest"

    def offsets(self) -> NDArray[np.int64]:
        """Where each record begins in its file, in bytes: int64 [num_records], 8 bytes a record in memory.

        Raises:
          FormatError: An index is missing, damaged, or of another file.
          DataError: One cannot be read.
        """
        return _offsets(self.index_files, self.shard_records or ())


def from_manifest(manifest: Manifest, split: str) -> Source:
    """A split of a dataset that `load_manifest` opened.

    Raises:
      ConfigError: There is no such split, or the manifest does not say where it lies.
    """
    info = _split(manifest, split)
    directory = manifest.directory
    if not directory:
        raise ConfigError("The manifest must come from `tfpipe.load_manifest`, so that it knows where its shards lie.")
    if not info.records:
        raise DataError(f"{split!r} of {directory} has no records.")
    root, records = manifest.shard_directory(directory), tuple(shard.records for shard in info.shards)
    placed = not manifest.compression
    return Source(
        name=f"{split!r} of {directory}",
        files=tuple(file_io.join(root, shard.file) for shard in info.shards),
        schema=manifest.schema,
        images=StoredImages.of(manifest, split),
        record_bytes=info.bytes / info.records,
        total_bytes=info.bytes,
        shard_records=records if placed else None,
        counted_records=None if placed else sum(records),
        compression=manifest.compression,
        num_classes=len(manifest.label_names) if manifest.label_key is not None else None,
        image_key=manifest.image_key,
        label_key=manifest.label_key,
        label_base=manifest.label_base,
        has_sizes=manifest.foreign is None,
        file_bytes=tuple(shard.bytes for shard in info.shards),
        index_files=tuple(
            (file_io.join(directory, file_names.index_name(shard.file)), shard.bytes) for shard in info.shards if placed
        ),
    )


def tfrecord_files(pattern: str, schema: Schema | None = None, num_classes: int | None = None) -> Source:
    """TFRecord files of `tf.train.Example`s that something else wrote.

    The image is `image/encoded` or `image`, the class `image/class/label` or `label`, where there is one; labels are
    handed out as they are stored. Files may be compressed as a whole (GZIP, ZLIB), all in the same way. `tfpipe index`
    makes more of such files: a dataset with labels from 0, an exact order and runs that can be resumed.

    Args:
      pattern: Such as "/data/train-*" or "gs://bucket/train*.tfrecord".
      schema: Of every record. By default that of the first one, in which a feature with one value is taken to
        have one value everywhere, and any other to be a list of any length.
      num_classes: Number of classes, for one-hot labels.

    Raises:
      DataError: No file fits the pattern, or none has a record.
      FormatError: The first record is damaged, or has no image.
    """
    files = file_io.find(pattern)
    if not files:
        raise DataError(f"No file fits {pattern}. Check the path and the pattern.")
    first_file, compression, payload = _first_record(files)
    features = decode_example(payload)
    if schema is None:
        schema = Schema(tuple(_spec_of(name, value) for name, value in sorted(features.items())))
    image_key = next((key for key in _IMAGE_KEYS if _is_one(schema, key, "bytes")), None)
    if image_key is None:
        raise FormatError(
            f"A record must have an image under one of {', '.join(_IMAGE_KEYS)}; the first of {first_file} has "
            f"{', '.join(sorted(features)) or 'nothing'}."
        )
    label_key = next((key for key in _LABEL_KEYS if _is_one(schema, key, "int64")), None)
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


def as_source(data: Manifest | Source, split: str | None) -> Source:
    """What `build_dataset` was given, as a source."""
    if isinstance(data, Source):
        if split is not None:
            raise ConfigError(f"Files found by a pattern have no splits: give None for the split, got {split!r}.")
        return data
    if split is None:
        raise ConfigError(f"Say which split to read: {', '.join(data.splits)}.")
    return from_manifest(data, split)


def _split(manifest: Manifest, split: str) -> SplitInfo:
    if split not in manifest.splits:
        raise ConfigError(f"The dataset has no split {split!r}; it has {', '.join(manifest.splits)}.")
    return manifest.splits[split]


@lru_cache(maxsize=4)  # several hosts' or stages' pipelines over one split
def _offsets(index_files: tuple[tuple[str, int], ...], shard_records: tuple[int, ...]) -> NDArray[np.int64]:
    most = [max_index_bytes(*shard) for shard in zip((size for _, size in index_files), shard_records, strict=True)]
    texts = file_io.read_all([path for path, _ in index_files], most)
    parts = [np.empty(0, np.int64)]
    try:
        for text, (path, num_bytes), records in zip(texts, index_files, shard_records, strict=True):
            try:
                table = decode_index(text, num_bytes, records)
                _check_sizes(table[:, 1])
                parts.append(table[:, 0].copy())
            except FormatError as error:
                raise FormatError(f"{path}: {error}") from None
    except FileNotFoundError as error:
        raise FormatError(f"{error.filename or error} is missing. Copy the dataset again.") from None
    return np.concatenate(parts)


def _check_sizes(sizes: NDArray[np.int64]) -> None:
    """TensorFlow takes memory for as much as a record promises, and dies of what it cannot get."""
    if sizes.size and (largest := int(sizes.max())) > MAX_PAYLOAD_BYTES + FRAME_BYTES:
        raise FormatError(f"A record must have at most {MAX_PAYLOAD_BYTES:,} bytes, the index has one of {largest:,}.")


def _first_record(files: list[str]) -> tuple[str, Compression, bytes]:
    """The first file that has a record, how it is compressed, and the record."""
    for path in files:
        header = file_io.read_start(path, HEADER_BYTES)
        if not header:
            continue
        compression = detect_compression(header)
        try:
            if not compression and not file_io.is_url(path):
                with file_io.open_file(path) as file:
                    return path, compression, next(scan_records(file))[1]
            # Packed, a record may be a little larger; what unpacks to it may be much smaller.
            length = (decode_header(header) if len(header) == HEADER_BYTES else None) or 0
            size = min(length, _MAX_RECORD_BYTES) + FRAME_BYTES if not compression else _FIRST_PACKED_BYTES
            start = io.BytesIO(file_io.read_start(path, size))
            if not compression:
                return path, compression, next(scan_records(start))[1]
            if (payload := next(scan_compressed(start, compression), None)) is not None:
                return path, compression, payload
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
    raise DataError(f"None of {len(files)} files, {files[0]} and on, has a record.")


def _is_one(schema: Schema, key: str, dtype: DType) -> bool:
    return key in schema and schema[key].dtype == dtype and schema[key].shape == ()


def _spec_of(name: str, value: Feature) -> FeatureSpec:
    kind: DType = "bytes"
    if isinstance(value, np.ndarray):
        kind = "float" if value.dtype.kind == "f" else "int64"
    return FeatureSpec(name, kind, () if value is not None and len(value) == 1 else None)
