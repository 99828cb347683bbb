"""What a pipeline reads: files, what is known of their records, and how their images are stored.

A split of a tfpipe dataset knows everything: how many records each shard has and where each begins. Files found by
a pattern, written by somebody else, are known by their first record only.
"""

import io
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from tfpipe import storage
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import naming
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.index import MAX_LINE_BYTES, decode_index
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.format.record import FRAME_BYTES, HEADER_BYTES, scan_records
from tfpipe.format.schema import CLASS_LABEL, IMAGE_ENCODED, DType, FeatureSpec, Schema
from tfpipe.pipeline.stored import StoredImages

_IMAGE_KEYS = (IMAGE_ENCODED, "image")
_LABEL_KEYS = (CLASS_LABEL, "label")
_MAX_RECORD_BYTES = 2**28  # a larger first record is no image


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
    """Records in each file; None where nobody counted them."""
    num_classes: int | None = None
    image_key: str = IMAGE_ENCODED
    label_key: str | None = CLASS_LABEL
    index_files: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    """Path of each file's index, and the size of the file that it indexes."""

    @property
    def num_records(self) -> int | None:
        """Records of all files, if they were counted."""
        return None if self.shard_records is None else sum(self.shard_records)

    @cached_property
    def bases(self) -> NDArray[np.int64]:
        """Number of each file's first record, counted through all files, and the end: int64 [files + 1]."""
        return np.concatenate([[0], np.cumsum(self.shard_records or ())]).astype(np.int64)

    def check(self) -> None:
        """Looks whether all counted files are there, with the size that the manifest says; errors as `offsets`."""
        if self.shard_records is not None:
            storage.check_files(self.files, [num_bytes for _, num_bytes in self.index_files])

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
    labelled = CLASS_LABEL in manifest.schema
    return Source(
        name=f"{split!r} of {directory}",
        files=tuple(storage.join(directory, shard.file) for shard in info.shards),
        schema=manifest.schema,
        images=StoredImages.of(manifest, split),
        record_bytes=info.bytes / info.records,
        total_bytes=info.bytes,
        shard_records=tuple(shard.records for shard in info.shards),
        num_classes=len(manifest.label_names) if labelled else None,
        label_key=CLASS_LABEL if labelled else None,
        index_files=tuple(
            (storage.join(directory, naming.index_name(shard.file)), shard.bytes) for shard in info.shards
        ),
    )


def foreign_files(pattern: str, schema: Schema | None = None, num_classes: int | None = None) -> Source:
    """TFRecord files of `tf.train.Example`s that something else wrote.

    The image is `image/encoded` or `image`, the class `image/class/label` or `label`, where there is one.

    Args:
      pattern: Such as "/data/train-*" or "gs://bucket/train*.tfrecord".
      schema: Of every record. By default that of the first one, in which a feature with one value is taken to
        have one value everywhere, and any other to be a list of any length.
      num_classes: Number of classes, for one-hot labels.

    Raises:
      DataError: No file fits the pattern, or none has a record.
      FormatError: The first record is damaged, or has no image.
    """
    files = storage.find(pattern)
    if not files:
        raise DataError(f"No file fits {pattern}. Check the path and the pattern.")
    first_file, payload = _first_record(files)
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
        total_bytes=storage.total_bytes(files),
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
    paths = [path for path, _ in index_files]
    try:
        texts = storage.read_all(paths, [records * MAX_LINE_BYTES for records in shard_records])
    except FileNotFoundError as error:
        raise FormatError(f"{error.filename or error} is missing. Copy the dataset again.") from None
    parts = [np.empty(0, np.int64)]
    for path, text, (_, num_bytes), records in zip(paths, texts, index_files, shard_records, strict=True):
        try:
            parts.append(decode_index(text, num_bytes, records)[:, 0])
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
    return np.concatenate(parts)


def _first_record(files: list[str]) -> tuple[str, bytes]:
    for path in files:
        header = storage.read_start(path, HEADER_BYTES)
        if not header:
            continue
        length = min(int.from_bytes(header[:8], "little"), _MAX_RECORD_BYTES)
        try:
            start = io.BytesIO(storage.read_start(path, length + FRAME_BYTES))
            return path, next(scan_records(start))[1]
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
