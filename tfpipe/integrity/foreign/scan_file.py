"""Reads one file of foreign records once from end to end. This is the work of a worker process of `index.py`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import DataError, FormatError
from tfpipe.format.compressed import scan_members
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import Compression, list_images
from tfpipe.format.record_index import MAX_RECORDS, encode_index
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Search
from tfpipe.format.schema import FeatureSpec
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tensors.tensor_type import TensorType, read_tensor_proto
from tfpipe.format.tfrecord import FRAME_BYTES
from tfpipe.images.decode import read_image_header
from tfpipe.images.errors import BadImage
from tfpipe.images.seekable import is_seekable
from tfpipe.integrity.check_file import FileJob, Tally
from tfpipe.storage import file_io
from tfpipe.system.budget import FOREIGN_RECORD

OTHER = "OTHER"
"""The format under which values are counted that are not image files, or whose header cannot be read."""

_MAX_FEATURES = 1_000  # over all records; with more names than this the names are data
_MAX_LABELS = 1_000_000
_PROBED_RECORDS = 16  # of a file, after which the scan ends if no decoder knows any image


@dataclass(frozen=True, slots=True)
class Keys:
    """The features that hold the images, the class, the class name, and tensors of a type that the user named."""

    images: tuple[str, ...] = ()  # features with an image file, or a list of these
    label: str | None = None  # the feature with the class
    text: str | None = None  # the feature with the name of the class
    tensors: tuple[FeatureSpec, ...] = ()


@dataclass(slots=True)
class FeatureStats:
    """The statistics of one feature's values in the records of a file."""

    records: int = 0  # records that have the feature
    kinds: set[str] = field(default_factory=set)  # bytes, int64, float; empty without a value
    min_values: int = 2**62
    max_values: int = 0
    width: int | None = None  # the values of each step of lists of steps, -1 if these differ; None for no such list
    tensor: TensorType | None = None  # the type of every value: with unknown sizes only, or steps of one width
    may_be_tensor: bool = True  # False from the first value that is no tensor of that type

    def add(self, value: Feature, width: int | None) -> NDArray[Any] | None:
        """Adds the value of one record, and the width of its steps; returns the array if the value is a tensor."""
        count = 0 if value is None else len(value)
        self.records += 1
        self.min_values, self.max_values = min(self.min_values, count), max(self.max_values, count)
        self._add_width(width)
        if value is not None:
            self.kinds.add("bytes" if isinstance(value, list) else "float" if value.dtype.kind == "f" else "int64")
        if self.may_be_tensor and value is not None and count:
            bits = self._read_proto(value[0]) if isinstance(value, list) else self._read_steps(value)
            if bits is not None:
                return bits
            self.may_be_tensor, self.tensor = False, None
        return None

    def _add_width(self, width: int | None) -> None:
        if width is not None and self.width != width:
            self.width = -1 if self.width and width else self.width or width

    def _read_steps(self, values: NDArray[Any]) -> NDArray[Any] | None:
        if self.width is None or self.width < 2:
            return None
        self.tensor = self.tensor or TensorType(values.dtype.name, (None, self.width), "list")
        return values.reshape(-1, self.width)

    def _read_proto(self, data: bytes) -> NDArray[Any] | None:
        proto = read_tensor_proto(data)
        if proto is None:
            return None
        self.tensor = self.tensor or TensorType(proto.dtype, (None,) * len(proto.shape), "proto")
        return self.tensor.read_bits(data) if self.tensor.admits(proto) else None

    def merge(self, other: "FeatureStats") -> None:
        """Adds the values of another file."""
        self.tensor = self.tensor or other.tensor
        self.may_be_tensor &= other.may_be_tensor and other.tensor in (None, self.tensor)
        if not self.may_be_tensor:
            self.tensor = None
        self._add_width(other.width)
        self.records += other.records
        self.kinds |= other.kinds
        self.min_values = min(self.min_values, other.min_values)
        self.max_values = max(self.max_values, other.max_values)


@dataclass(slots=True)
class FileScan:
    """The statistics of the records of a file, or after `merge` of several files."""

    job: FileJob = field(default_factory=lambda: FileJob("", ""))
    records: int = 0
    file_bytes: int = 0
    sha256: str = ""  # meaningless after `merge`
    index: bytes | None = b""  # None without one, as of a file that is one compressed stream; no meaning after `merge`
    unpacked_bytes: int = 0  # of the records, framing included
    features: dict[str, FeatureStats] = field(default_factory=dict)
    stats: ShardStats = field(default_factory=ShardStats)
    texts: dict[int, set[bytes]] = field(default_factory=dict)  # class names found with each label; two are enough

    def add(self, keys: Keys, name: str, features: Mapping[str, Feature], widths: Mapping[str, int]) -> None:
        """Adds a record; errors call it `name`, and `widths` has the number of values per step of each of its lists."""
        self.records += 1
        for key, value in features.items():
            feature_stats = self.features.get(key)
            if feature_stats is None:
                is_named = any(spec.name == key for spec in keys.tensors)
                feature_stats = self.features[key] = FeatureStats(may_be_tensor=not is_named)
                if len(self.features) > _MAX_FEATURES:
                    raise FormatError(
                        f"{name}: the records must have at most {_MAX_FEATURES:,} features of different names."
                    )
            bits = feature_stats.add(value, widths.get(key))
            if bits is not None and feature_stats.tensor is not None:
                self.stats.tensors.setdefault(key, TensorStats()).add(feature_stats.tensor, bits)
        for spec in keys.tensors:
            assert spec.tensor is not None
            try:
                bits = spec.check_stored(features)
            except FormatError as error:
                raise DataError(f"{name}: {error} Give the type with `tensors` anew.") from None
            self.stats.tensors.setdefault(spec.name, TensorStats()).add(spec.tensor, bits)
        if keys.images:
            _add_images(self.stats, list_images(features, keys.images))
            if self.records == _PROBED_RECORDS:
                check_formats(self.stats, keys, name)
        if keys.label is not None:
            value, text = features.get(keys.label), features.get(keys.text or "")
            if isinstance(value, np.ndarray) and value.dtype == np.int64 and value.size == 1:
                label, labels = int(value[0]), self.stats.labels
                if label in labels or len(labels) < _MAX_LABELS:
                    labels[label] += 1
                    if isinstance(text, list) and len(text) == 1:
                        self._add_texts(label, {text[0]})

    def merge(self, other: "FileScan") -> None:
        """Adds the statistics of another file."""
        self.records += other.records
        for name, feature_stats in other.features.items():
            self.features.setdefault(name, FeatureStats()).merge(feature_stats)
        self.stats.merge(other.stats)
        for label, texts in other.texts.items():
            self._add_texts(label, texts)

    def _add_texts(self, label: int, texts: set[bytes]) -> None:
        label_texts = self.texts.setdefault(label, set())
        if len(label_texts) < 2:
            label_texts |= texts


def scan_file(keys: Keys, counters: Any, job: FileJob) -> FileScan:
    """Reads all records of one file, and returns their statistics and the file's index."""
    scan, progress, sizes = FileScan(job), Tally(counters), list[int]()
    with file_io.explain_reading(job.path), file_io.open_file(job.path) as file:
        reader = HashedReader(file, hashed=True)
        scan.file_bytes = reader.size
        for name, features, widths, unpacked_bytes, size in read_records(job.path, reader, job.compression):
            scan.add(keys, name, features, widths)
            scan.unpacked_bytes += unpacked_bytes
            sizes.append(size)
            if len(sizes) > MAX_RECORDS and not job.compression:
                raise FormatError(f"{job.path} must have at most {MAX_RECORDS:,} records for its index to be read.")
            progress.step(reader.done, scan.records)
        scan.sha256 = reader.sha256()
        is_seekable_file = len(sizes) <= MAX_RECORDS and (sum(sizes) == reader.size or not sizes)
        scan.index = encode_index(sizes) if is_seekable_file else None
    progress.step(scan.file_bytes, scan.records, at_end=True)
    return scan


ForeignRecord: TypeAlias = tuple[str, dict[str, Feature], dict[str, int], int, int]
"""A record: its name for messages, its features, the values of each step of its lists of steps, its bytes once unpacked
with framing, and its bytes in the file, which are 0 if it cannot be unpacked on its own."""


def read_records(path: str, reader: HashedReader, compression: Compression) -> Iterator[ForeignRecord]:
    """Reads and decodes the records of a file, and checks their checksums."""
    number, advice = -1, "`tfpipe verify` lists the damage, `tfpipe repair` saves the rest."
    try:
        for number, (name, payload, size) in enumerate(_iterate_records(reader, compression)):
            widths: dict[str, int] = {}
            try:
                features = decode_example(payload, widths)
            except FormatError as error:
                if not number:
                    advice = "`tfpipe reshard --opaque` shuffles records of any content."
                raise FormatError(f"{name} is {str(error)[:1].lower()}{str(error)[1:]}") from None
            yield f"{path}, {name}", features, widths, len(payload) + FRAME_BYTES, size
    except FormatError as error:
        reason = str(error).removeprefix(f"{path} ").rstrip(".")
        raise FormatError(f"{path} cannot be indexed: {reason[:1].lower()}{reason[1:]}. {advice}") from None


def _iterate_records(reader: HashedReader, compression: Compression) -> Iterator[tuple[str, bytes, int]]:
    """Yields each record's name for errors, payload and size in the file, which is 0 if it cannot be unpacked alone."""
    if compression:
        for number, (payload, size) in enumerate(scan_members(reader, compression)):
            yield f"record {number}", payload, size or 0
        return
    at = number = 0
    while at < reader.size:
        name, size = f"record {number} at byte {at}", reader.record_at(at)
        if size - FRAME_BYTES > FOREIGN_RECORD.bytes:
            raise FormatError(f"{name} must have at most {FOREIGN_RECORD.bytes:,} bytes, got {size - FRAME_BYTES:,}.")
        if not size:
            search = Search(reader)
            what = "it holds no TFRecords, or " if not number and search.length_at(at) is None else ""
            raise FormatError(f"{what}{name} is damaged: {search.describe(number, at).detail}.")
        yield name, reader.payload(at, size), size
        at, number = at + size, number + 1


def check_formats(stats: ShardStats, keys: Keys, where: str) -> None:
    """Refuses a dataset if no decoder knows the format of any image."""
    if stats.formats.keys() == {OTHER}:
        key = keys.images[0]
        raise DataError(
            f"{where}: no decoder knows the bytes of {key!r}. If they are raw values, give their type with `tensors`, "
            f"as in {key}=uint8[100,221,6], or {key}=uint8[image/shape] if 'image/shape' holds the shape. Otherwise "
            "name the image with `image_key`."
        )


def _add_images(stats: ShardStats, images: Sequence[bytes]) -> None:
    stats.per_record.add(len(images))
    for image in images:
        try:
            header = read_image_header(image)
        except BadImage:
            stats.formats[OTHER] += 1
            continue
        stats.add(header.format, header.height, header.width)
        stats.noticed.update(header.noticed)
        if header.format == "JPEG":
            stats.seekable_jpegs += is_seekable(image)
