"""One file of foreign records, read once from end to end: what a worker of `indexing.py` does."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfpipe.errors import DataError, FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import Compression
from tfpipe.format.record_index import MAX_RECORDS, encode_index
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Search
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES
from tfpipe.images.errors import BadImage
from tfpipe.images.image_header import read_image_header
from tfpipe.integrity.check_file import FileJob, FileReport, Progress
from tfpipe.system import file_io

OTHER = "OTHER"
"""Counted among the formats: what is no image file, or one whose header cannot be read."""

_MAX_FEATURES = 1_000  # of all records together: beyond that their names are data
_MAX_LABELS = 1_000_000
_MAX_RECORD_BYTES = 2**28  # a larger one is no image


@dataclass(frozen=True, slots=True)
class Keys:
    """Under which names image, class and class name lie."""

    image: str
    label: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SurveyJob:
    """One file to read."""

    path: str
    name: str
    split: str
    compression: Compression
    index: str
    """Where its index is written; that of a compressed file is not."""


@dataclass(slots=True)
class FeatureTally:
    """One feature in the records of a file."""

    records: int = 0
    """That have it."""
    kinds: set[str] = field(default_factory=set)
    """bytes, int64, float; none for a feature without values of any kind."""
    fewest: int = 2**62
    """Values, where it is there."""
    most: int = 0

    def add(self, value: Feature) -> None:
        """One record's."""
        count = 0 if value is None else len(value)
        self.records += 1
        self.fewest, self.most = min(self.fewest, count), max(self.most, count)
        if isinstance(value, list):
            self.kinds.add("bytes")
        elif value is not None:
            self.kinds.add("float" if value.dtype.kind == "f" else "int64")

    def merge(self, other: "FeatureTally") -> None:
        """Those of another file."""
        self.records += other.records
        self.kinds |= other.kinds
        self.fewest, self.most = min(self.fewest, other.fewest), max(self.most, other.most)


@dataclass(slots=True)
class Survey:
    """What was found in a file, or with `merge` in several."""

    records: int = 0
    file_bytes: int = 0
    sha256: str = ""
    payload_bytes: int = 0
    features: dict[str, FeatureTally] = field(default_factory=dict)
    stats: ShardStats = field(default_factory=ShardStats)
    texts: dict[int, set[bytes]] = field(default_factory=dict)
    """The class names that come with a label: two, where there are more."""

    def merge(self, other: "Survey") -> None:
        """Adds what was found in another file; the checksum is nobody's then."""
        self.records += other.records
        self.file_bytes += other.file_bytes
        self.payload_bytes += other.payload_bytes
        for name, tally in other.features.items():
            self.features.setdefault(name, FeatureTally()).merge(tally)
        self.stats.merge(other.stats)
        for label, texts in other.texts.items():
            self.add_texts(label, texts)

    def add_texts(self, label: int, texts: set[bytes]) -> None:
        """Names that came with a label."""
        known = self.texts.setdefault(label, set())
        if len(known) < 2:
            known |= texts


def survey_file(keys: Keys, counters: Any, job: SurveyJob) -> Survey:
    """Reads one file and writes its index.

    Args:
        keys: Where image and label lie.
        counters: The sums of `integrity.progress.shared_counters`.
        job: The file.

    Raises:
        FormatError: It is damaged, or its records are no Examples; with file, record and byte.
        DataError: It cannot be read.
    """
    survey, progress = Survey(), Progress(counters)
    try:
        with file_io.open_file(job.path) as file:
            survey.file_bytes = os.fstat(file.fileno()).st_size
            if job.compression:
                digest = hashlib.sha256()
                for number, payload in enumerate(scan_compressed(file, job.compression, digest.update)):
                    _add(survey, keys, payload, f"record {number}")
                    progress.step(file.tell(), survey.records, 0)
                survey.sha256 = digest.hexdigest()
            else:
                reader, sizes = HashedReader(file, hashed=True), []
                for at, size in records_of(reader):
                    _add(survey, keys, reader.payload(at, size), f"record {survey.records} at byte {at}")
                    sizes.append(size)
                    if len(sizes) > MAX_RECORDS:
                        raise FormatError(f"it must have at most {MAX_RECORDS:,} records for its index to be read")
                    progress.step(at + size, survey.records, 0)
                survey.sha256 = reader.sha256()
                file_io.write_file(job.index, encode_index(sizes))
    except FormatError as error:
        raise FormatError(damaged(job.path, str(error))) from None
    except OSError as error:
        raise DataError(f"{error.filename or job.path} cannot be read or written: {error.strerror or error}.") from None
    progress.done(FileReport(FileJob(job.path, job.name), survey.records, survey.file_bytes))
    return survey


def damaged(path: str, reason: str) -> str:
    """The sentence for a file that cannot be indexed."""
    reason = reason.removeprefix(f"{path} ").rstrip(".")
    reason = reason[:1].lower() + reason[1:]
    advice = "`tfpipe verify` lists all that is damaged, `tfpipe repair` saves the rest."
    return f"{path} cannot be indexed: {reason}. {advice}"


def records_of(reader: HashedReader) -> Iterator[tuple[int, int]]:
    """Place and size of every record, checked.

    Raises:
        FormatError: One is damaged, or larger than any image.
    """
    at = number = 0
    while at < reader.size:
        size = _record_at(reader, at, number)
        yield at, size
        at, number = at + size, number + 1


def _record_at(reader: HashedReader, at: int, number: int) -> int:
    size = reader.record_at(at)
    name = f"record {number} at byte {at}"
    if size - FRAME_BYTES > _MAX_RECORD_BYTES:
        raise FormatError(f"{name} must have at most {_MAX_RECORD_BYTES:,} bytes, got {size - FRAME_BYTES:,}.")
    if not size:
        search, left = Search(reader), reader.size - at
        length = search.length_at(at) if left >= HEADER_BYTES else None
        detail = search.describe(number, at, left if length is None else min(length + FRAME_BYTES, left)).detail
        what = "it holds no TFRecords, or" if not number and length is None else ""
        raise FormatError(f"{what} {name} is damaged: {detail}.".strip())
    return size


def _add(survey: Survey, keys: Keys, payload: bytes, name: str) -> None:
    try:
        features = decode_example(payload)
    except FormatError as error:
        raise FormatError(f"{name} is no tf.train.Example: {error}") from None
    survey.records += 1
    survey.payload_bytes += len(payload)
    for key, value in features.items():
        tally = survey.features.get(key)
        if tally is None:
            tally = survey.features[key] = FeatureTally()
            if len(survey.features) > _MAX_FEATURES:
                raise FormatError(
                    f"{name}: the records must have at most {_MAX_FEATURES:,} features of different names"
                )
        tally.add(value)
    _add_image(survey, features.get(keys.image))
    if keys.label is not None:
        _add_label(survey, features.get(keys.label), features.get(keys.text or ""))


def _add_image(survey: Survey, value: Feature) -> None:
    if not isinstance(value, list) or len(value) != 1:
        return  # that it is missing, the tally of its feature says
    try:
        header = read_image_header(value[0])
    except BadImage:
        survey.stats.formats[OTHER] += 1
        return
    survey.stats.add(header.format, header.height, header.width)
    survey.stats.noticed.update(header.noticed)


def _add_label(survey: Survey, value: Feature, text: Feature) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != np.int64 or value.size != 1:
        return
    label = int(value[0])
    labels = survey.stats.labels
    if label in labels or len(labels) < _MAX_LABELS:
        labels[label] += 1
        if isinstance(text, list) and len(text) == 1:
            survey.add_texts(label, {text[0]})
