"""Reads one file of foreign records once from end to end. This is the work of a worker process of `index.py`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfpipe.errors import DataError, FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.example import Feature, decode_example, has_feature_lists
from tfpipe.format.manifest import Compression
from tfpipe.format.record_index import MAX_RECORDS, encode_index
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Search
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tensors.tensor_type import TensorType, read_tensor_proto
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES
from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import read_image_header
from tfpipe.images.seekable import is_seekable
from tfpipe.integrity.check_file import FileJob, FileReport, Progress
from tfpipe.storage import file_io
from tfpipe.system.budget import FOREIGN_RECORD

OTHER = "OTHER"
"""The format under which values are counted that are not image files, or whose header cannot be read."""

_MAX_FEATURES = 1_000  # over all records; with more names than this the names are data
_MAX_LABELS = 1_000_000


@dataclass(frozen=True, slots=True)
class Keys:
    """The features that hold the image, the class and the class name."""

    image: str | None  # the feature with the bytes of the image file
    label: str | None = None  # with the class
    text: str | None = None  # with the name of the class


@dataclass(slots=True)
class FeatureStats:
    """The values of one feature in the records of a file."""

    records: int = 0  # that have the feature
    kinds: set[str] = field(default_factory=set)  # bytes, int64, float; empty without a value
    min_values: int = 2**62
    max_values: int = 0
    holds_tensors: bool = True  # whether every value is one of one dtype and rank
    tensor: TensorType | None = None  # with unknown sizes only; None before the first
    tensor_stats: TensorStats = field(default_factory=TensorStats)

    def add(self, value: Feature) -> None:
        """Adds the value of one record."""
        count = 0 if value is None else len(value)
        self.records += 1
        self.min_values, self.max_values = min(self.min_values, count), max(self.max_values, count)
        if isinstance(value, list):
            self.kinds.add("bytes")
            for data in value if self.holds_tensors else ():
                self._add_tensor(data)
        elif value is not None:
            self.kinds.add("float" if value.dtype.kind == "f" else "int64")

    def _add_tensor(self, data: bytes) -> None:
        proto = read_tensor_proto(data)
        if proto is not None and self.tensor is None:
            self.tensor = TensorType(proto.dtype, (None,) * len(proto.shape), "proto")
        self.holds_tensors = proto is not None and self.tensor is not None and self.tensor.admits(proto)
        if self.holds_tensors and self.tensor is not None:
            self.tensor_stats.add(self.tensor, self.tensor.read_bits(data))

    def merge(self, other: "FeatureStats") -> None:
        """Adds the values of another file."""
        self.tensor = self.tensor or other.tensor
        self.holds_tensors &= other.holds_tensors and other.tensor in (None, self.tensor)
        if self.holds_tensors:
            self.tensor_stats.merge(other.tensor_stats)
        self.records += other.records
        self.kinds |= other.kinds
        self.min_values = min(self.min_values, other.min_values)
        self.max_values = max(self.max_values, other.max_values)


@dataclass(slots=True)
class FileScan:
    """The content of a file, or after `merge` of several files."""

    records: int = 0
    file_bytes: int = 0
    sha256: str = ""  # without meaning after `merge`
    index: bytes = b""  # empty for a compressed file, without meaning after `merge`
    features: dict[str, FeatureStats] = field(default_factory=dict)
    stats: ShardStats = field(default_factory=ShardStats)
    texts: dict[int, set[bytes]] = field(default_factory=dict)  # the class names with each label, at most two

    def add(self, keys: Keys, features: Mapping[str, Feature], name: str) -> None:
        """Adds a record, which an error calls `name`."""
        self.records += 1
        for key, value in features.items():
            feature_stats = self.features.get(key)
            if feature_stats is None:
                feature_stats = self.features[key] = FeatureStats()
                if len(self.features) > _MAX_FEATURES:
                    raise FormatError(
                        f"{name}: the records must have at most {_MAX_FEATURES:,} features of different names"
                    )
            feature_stats.add(value)
        if keys.image is not None:
            _add_image(self, features.get(keys.image))
        if keys.label is not None:
            _add_label(self, features.get(keys.label), features.get(keys.text or ""))

    def merge(self, other: "FileScan") -> None:
        """Adds the content of another file. The SHA-256 then has no meaning."""
        self.records += other.records
        self.file_bytes += other.file_bytes
        for name, feature_stats in other.features.items():
            self.features.setdefault(name, FeatureStats()).merge(feature_stats)
        self.stats.merge(other.stats)
        for label, texts in other.texts.items():
            self.add_texts(label, texts)

    def add_texts(self, label: int, texts: set[bytes]) -> None:
        """Adds class names that came with a label."""
        label_texts = self.texts.setdefault(label, set())
        if len(label_texts) < 2:
            label_texts |= texts


def scan_file(keys: Keys, counters: Any, job: FileJob) -> FileScan:
    """Reads one file."""
    scan, progress = FileScan(), Progress(counters)
    try:
        with file_io.open_file(job.path) as file:
            reader, sizes = HashedReader(file, hashed=True), []
            scan.file_bytes = reader.size
            for name, payload in iterate_payloads(reader, job.compression):
                scan.add(keys, decode_foreign(payload, job.path, name), name)
                sizes.append(len(payload) + FRAME_BYTES)
                if len(sizes) > MAX_RECORDS and not job.compression:
                    raise FormatError(f"it must have at most {MAX_RECORDS:,} records for its index to be read")
                progress.step(reader.done, scan.records, 0)
            scan.sha256 = reader.sha256()
            scan.index = b"" if job.compression else encode_index(sizes)
    except FormatError as error:
        raise FormatError(describe_failure(job.path, str(error))) from None
    except OSError as error:
        raise DataError(f"{job.path} cannot be read: {error.strerror or error}.") from None
    progress.done(FileReport(job, scan.records, scan.file_bytes))
    return scan


def describe_failure(path: str, reason: str) -> str:
    """Returns the message about a file that cannot be indexed."""
    reason = reason.removeprefix(f"{path} ").rstrip(".")
    reason = reason[:1].lower() + reason[1:]
    advice = "`tfpipe verify` lists the damage, `tfpipe repair` saves the rest."
    return f"{path} cannot be indexed: {reason}. {advice}"


def iterate_payloads(reader: HashedReader, compression: Compression) -> Iterator[tuple[str, bytes]]:
    """Yields the name of every record for messages, and its payload, after a check of its checksums."""
    if compression:
        for number, payload in enumerate(scan_compressed(reader.as_file(), compression)):
            yield f"record {number}", payload
        return
    at = number = 0
    while at < reader.size:
        name = f"record {number} at byte {at}"
        size = _record_at(reader, at, number, name)
        yield name, reader.payload(at, size)
        at, number = at + size, number + 1


def _record_at(reader: HashedReader, at: int, number: int, name: str) -> int:
    size = reader.record_at(at)
    if size - FRAME_BYTES > FOREIGN_RECORD.bytes:
        raise FormatError(f"{name} must have at most {FOREIGN_RECORD.bytes:,} bytes, got {size - FRAME_BYTES:,}.")
    if not size:
        search, left = Search(reader), reader.size - at
        length = search.length_at(at) if left >= HEADER_BYTES else None
        detail = search.describe(number, at, left if length is None else min(length + FRAME_BYTES, left)).detail
        what = "it holds no TFRecords, or" if not number and length is None else ""
        raise FormatError(f"{what} {name} is damaged: {detail}.".strip())
    return size


def decode_foreign(payload: bytes, path: str, name: str) -> dict[str, Feature]:
    """Decodes a record, and refuses a `tf.train.SequenceExample`: its context would pass for an Example."""
    if has_feature_lists(payload):
        raise DataError(
            f"{path} holds tf.train.SequenceExample ({name} has lists of features), which tfpipe does not read. Write "
            "each step as an Example of its own, for instance by `tfpipe.write`."
        )
    try:
        return decode_example(payload)
    except FormatError as error:
        raise FormatError(f"{name} is not a tf.train.Example: {error}") from None


def _add_image(scan: FileScan, value: Feature) -> None:
    if not isinstance(value, list) or len(value) != 1:
        return  # the statistics of the feature show that the image is missing
    try:
        header = read_image_header(value[0])
    except BadImage:
        scan.stats.formats[OTHER] += 1
        return
    scan.stats.add(header.format, header.height, header.width)
    scan.stats.noticed.update(header.noticed)
    if header.format == "JPEG":
        scan.stats.seekable_jpegs += is_seekable(value[0])


def _add_label(scan: FileScan, value: Feature, text: Feature) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.size != 1:
        return
    label = int(value[0])
    labels = scan.stats.labels
    if label in labels or len(labels) < _MAX_LABELS:
        labels[label] += 1
        if isinstance(text, list) and len(text) == 1:
            scan.add_texts(label, {text[0]})
