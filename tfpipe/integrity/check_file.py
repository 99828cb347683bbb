"""Checks one file from end to end. This is the work of a worker process."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.compressed import MAX_MEMBER_BYTES, detect_compression, scan_compressed, scan_members, unpack_member
from tfpipe.format.example import decode_example
from tfpipe.format.manifest import Compression, ShardInfo
from tfpipe.format.record_index import MAX_RECORDS, decode_index, max_index_bytes
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Gap
from tfpipe.format.recovery.scan import IndexTable, Intact, scan
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, MAX_PAYLOAD_BYTES
from tfpipe.integrity.check_record import IDENTITY_BYTES, Content, ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.storage.file_io import open_file, read_bytes

FRAMING_KINDS = ("length_crc", "payload_crc", "truncated", "garbage", "missing", "compressed")
_REPORT_EVERY_S = 0.2
_MAX_KEY_BYTES = 16 << 20  # the path of the image is not read from a larger payload


@dataclass(frozen=True, slots=True)
class FileJob:
    """A file to check."""

    path: str
    name: str  # of the file in reports
    split: str = ""  # empty without a manifest
    shard: ShardInfo | None = None  # the manifest's entry
    index: str | None = None  # its path; None without one
    compression: Compression = ""  # without a manifest it is detected
    seekable: bool = False  # whether the manifest says that all JPEGs are


@dataclass(slots=True)
class FileReport:
    """The result of checking one file."""

    job: FileJob
    records: int = 0  # the intact ones
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    classes: Counter[int] = field(default_factory=Counter)  # of intact records
    formats: Counter[str] = field(default_factory=Counter)  # of intact records
    # For each record whose content was checked: a hash of its image [records, 16], its number and offset [records, 2].
    identities: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, IDENTITY_BYTES), np.uint8))
    positions: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))


_Records: TypeAlias = Iterator[tuple[int, int | None, int | None, Content | None]]
"""The number, the offset, the size and the content of each record. One that shares a gzip member has no size."""
Counters: TypeAlias = Any
"""The sums over all workers: bytes, records and damages, in a `multiprocessing` array of three int64."""


def check_file(content: ContentCheck | None, counters: Counters, job: FileJob) -> FileReport:
    """Checks a file's framing, index and manifest entry, and with `content` its records; damage raises no error."""
    report, progress = FileReport(job), Tally(counters)
    try:
        with open_file(job.path) as file:
            reader = HashedReader(file, hashed=job.shard is not None)
            report.bytes = reader.size
            index = load_index(job, report.damaged) if job.index is not None else None
            compression = job.compression if job.shard is not None else detect_compression(reader.peek(0, HEADER_BYTES))
            if compression:
                records = (
                    (number, offset, size, None if content is None else content.check(payload))
                    for number, offset, size, payload in _unpack_records(reader, report, compression, index)
                )
            else:
                scanned = scan_content(reader, report, content, index)
                records = ((item.number, item.offset, item.size, record) for item, record in scanned)
            identities, positions, fits_index = bytearray(), [], True
            for number, offset, size, record in records:
                if fits_index and index is not None:
                    fits_index = number < len(index) and index[number, 1] == size
                if content is not None and record is not None:
                    _add_record(report, record, content, number, offset)
                    identities += record.identity
                    positions.append((number, offset or 0))
                report.records += 1
                progress.step(reader.done, report.records, len(report.damaged))
            report.identities = np.frombuffer(bytes(identities), np.uint8).reshape(-1, IDENTITY_BYTES)
            report.positions = np.array(positions, np.int64).reshape(-1, 2)
            if not fits_index and not any(damage.kind == "index" for damage in report.damaged):
                text = "it belongs to another file: records have other sizes"
                report.damaged.append(Damage(file_names.index_name(job.name), "index", text))
            if job.shard is not None:
                _compare(report, job.shard, reader)
    except (OSError, FormatError) as error:
        add_fault(report, error)
    progress.step(report.bytes, report.records, len(report.damaged), at_end=True)
    return report


def add_fault(report: FileReport, error: OSError | FormatError) -> None:
    """Adds the damage of a file that cannot be opened, or cannot be read to its end."""
    job, kind, text = report.job, "unreadable", str(error).rstrip(".")
    if isinstance(error, FileNotFoundError):
        kind, text = "missing", "the file is missing"
    elif isinstance(error, OSError):
        text = f"it cannot be read{' on' if report.bytes else ''}: {error.strerror or error}"
    elif report.bytes:
        kind = "changed"
    if not report.bytes and job.shard is not None and job.shard.records:
        text += f", with {job.shard.records:,} records"
    report.damaged.append(Damage(job.name, kind, text))  # type: ignore[arg-type]


def load_index(job: FileJob, damaged: list[Damage]) -> IndexTable | None:
    """Reads a file's index, or returns None if it cannot be used; adds the index's damage to `damaged`."""
    assert job.index is not None
    name = file_names.index_name(job.name)
    try:
        num_bytes, records = (2**62, MAX_RECORDS) if job.shard is None else (job.shard.bytes, job.shard.records)
        data = read_bytes(job.index, max_index_bytes(num_bytes, records))
    except (FileNotFoundError, DataError, FormatError) as error:
        text = "the index is missing" if isinstance(error, FileNotFoundError) else str(error).rstrip(".")
        damaged.append(Damage(name, "index", text))
        return None
    try:
        if job.shard is not None:
            return decode_index(data, job.shard.bytes, job.shard.records, is_packed=bool(job.compression))
    except FormatError as error:
        damaged.append(Damage(name, "index", str(error).split(". ")[0].rstrip(".")))
    # Read without the manifest the index may still tell where records are, and `scan` drops a wrong one.
    with contextlib.suppress(FormatError, ValueError):
        last = data.rstrip(b"\n").rpartition(b"\n")[2].split()
        return decode_index(data, sum(map(int, last)), data.count(b"\n")) if len(last) == 2 and data else None
    return None


class Tally:
    """A worker's counters, flushed now and then: taking the lock costs as much as checking a small record."""

    def __init__(self, counters: Counters) -> None:
        self._counters, self._next, self._reported = counters, 0.0, (0, 0, 0)

    def step(self, num_bytes: int, records: int, damaged: int = 0, *, at_end: bool = False) -> None:
        """Adds the file's bytes, records and damage so far to the counters, every 0.2 s and at the file's end."""
        if (now := time.monotonic()) < self._next and not at_end:
            return
        self._next, sums = now + _REPORT_EVERY_S, (num_bytes, records, damaged)
        with self._counters.get_lock():
            for k in range(3):
                self._counters[k] += sums[k] - self._reported[k]
        self._reported = sums


def _unpack_records(
    reader: HashedReader, report: FileReport, compression: Compression, index: IndexTable | None
) -> Iterator[tuple[int, int | None, int | None, bytes]]:
    """Yields number, offset, size and payload of each record of a compressed file; adds its damage to the report.

    Records after a damage are read only if an index tells where they are.
    """
    name, number = report.job.name, 0
    table: list[list[int]] = [] if index is None else index.tolist()
    offsets = dict(enumerate(offset for offset, _ in table))
    try:
        records = ((payload, None) for payload in scan_compressed(reader, compression))
        for payload, size in records if index is None else scan_members(reader):
            yield number, offsets.get(number), size, payload
            number += 1
    except FormatError as error:
        text = str(error).rstrip(".") + ("; what follows cannot be read" if index is None else "")
        report.damaged.append(Damage(name, "compressed", text, number, offsets.get(number)))
        for later, (offset, size) in enumerate(table[number + 1 :], start=number + 1):
            try:
                yield later, offset, size, unpack_member(reader.peek(offset, min(size, MAX_MEMBER_BYTES)))
            except FormatError as error:
                report.damaged.append(Damage(name, "compressed", str(error).rstrip("."), later, offset))


def _add_record(report: FileReport, record: Content, content: ContentCheck, number: int, offset: int | None) -> None:
    name = report.job.name
    report.damaged += [Damage(name, kind, text, number, offset, record.key) for kind, text in record.faults]
    if report.job.seekable and not record.faults and record.find_markers() is False:
        text = "the manifest says that all JPEGs have restart markers that divide a row, but this one has not"
        report.damaged.append(Damage(name, "image", text, number, offset, record.key))
    if not record.faults:
        label, kind = content.get_label(record.features), record.features.get(keys.IMAGE_FORMAT)
        if label is not None:
            report.classes[label] += 1
        if isinstance(kind, list):
            report.formats.update(one.decode("ascii", "replace") for one in kind)


def scan_content(
    reader: HashedReader, report: FileReport, content: ContentCheck | None, index: IndexTable | None
) -> Iterator[tuple[Intact, Content | None]]:
    """Yields every record with correct checksums, and its content if checked; adds damage to `report`."""
    for item in scan(reader, index):
        if isinstance(item, Gap):
            report.damaged.append(_describe(report.job.name, reader, item))
        elif content is not None and item.size > MAX_PAYLOAD_BYTES:
            text = f"it has {item.size:,} bytes, more than a protocol buffer can have"
            yield item, Content((("example", text),), {})
        else:
            yield item, None if content is None else content.check(reader.payload(item.offset, item.size))


def _describe(name: str, reader: HashedReader, damage: Gap) -> Damage:
    """Describes damage to the framing, with the image's path if the damaged payload still holds it."""
    key = ""
    if damage.kind == "payload_crc" and FRAME_BYTES < damage.size <= _MAX_KEY_BYTES:
        with contextlib.suppress(FormatError):
            payload = reader.peek(damage.offset + HEADER_BYTES, damage.size - FRAME_BYTES)
            key = Content((), decode_example(payload)).key
    return Damage(name, damage.kind, damage.detail, damage.number, damage.offset, key)


def _compare(report: FileReport, shard: ShardInfo, reader: HashedReader) -> None:
    """Compares the file with its entry in the manifest, unless a damaged record explains every difference."""
    if any(damage.record is not None and damage.kind in FRAMING_KINDS for damage in report.damaged):
        return
    name, add = report.job.name, report.damaged.append
    if report.bytes != shard.bytes:
        add(Damage(name, "size", f"the file has {report.bytes:,} bytes, the manifest says {shard.bytes:,}"))
    elif reader.sha256() != shard.sha256:
        add(Damage(name, "sha256", "the file's SHA-256 is not the manifest's"))
    if report.records != shard.records:
        add(Damage(name, "count", f"the file has {report.records:,} records, the manifest says {shard.records:,}"))
