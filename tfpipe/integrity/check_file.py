"""One file looked at from end to end: what a worker process does."""

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import FormatError
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.compressed import detect_compression, scan_compressed
from tfpipe.format.example import decode_example
from tfpipe.format.manifest import Compression, ShardInfo
from tfpipe.format.record_index import MAX_RECORDS, decode_index, max_index_bytes
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.resync import Damage as FrameDamage
from tfpipe.format.recovery.scan import Intact, Places, scan
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES
from tfpipe.integrity.check_record import IDENTITY_BYTES, Content, ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.system.file_io import open_file

_OF_FRAMING = ("length_crc", "payload_crc", "truncated", "garbage", "missing", "compressed")
_LEAST_LINE_BYTES = len("0 16\n")
_REPORT_EVERY_S = 0.2
_MAX_PAYLOAD_BYTES = 2**31  # a protocol buffer cannot be larger
_MAX_KEY_BYTES = 16 << 20  # a larger payload is not looked into for its name


@dataclass(frozen=True, slots=True)
class FileJob:
    """One file to look at."""

    path: str
    name: str
    """What it is called in reports."""
    split: str = ""
    shard: ShardInfo | None = None
    """What the manifest says of it."""
    index: str | None = None
    """Path of its index; None: it has none."""
    compression: Compression = ""
    """As the manifest says; without a manifest it is found out."""


@dataclass(slots=True)
class FileReport:
    """What was found in one file."""

    job: FileJob
    records: int = 0
    """Intact ones."""
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    classes: Counter[int] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    identities: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, IDENTITY_BYTES), np.uint8))
    """Of each intact record, in order, where content was looked at: [records, 16]."""
    places: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Number and offset of each of these."""


Counters: TypeAlias = Any
"""How far all workers are together: bytes, records, damages, in a `multiprocessing` array of three int64."""


def check_file(content: ContentCheck | None, counters: Counters | None, job: FileJob) -> FileReport:
    """Looks at framing and checksums, at the content unless `content` is None, at the index and the manifest's word.

    Never raises for what is in a file.
    """
    report, progress = FileReport(job), Progress(counters)
    try:
        with open_file(job.path) as file:
            report.bytes = os.fstat(file.fileno()).st_size
            places = load_places(job, report.damaged) if job.index is not None else None
            reader = HashedReader(file, hashed=job.shard is not None)
            compression = job.compression if job.shard is not None else detect_compression(reader.peek(0, HEADER_BYTES))
            if compression:
                _check_compressed(reader, report, content, compression, progress)
            else:
                _check_records(reader, report, content, places, progress)
            if job.shard is not None:
                _compare(report, job.shard, reader)
    except FileNotFoundError:
        report.damaged.append(Damage(job.name, "missing", "the file is missing"))
    except OSError as error:
        report.damaged.append(Damage(job.name, "unreadable", f"it cannot be read: {error.strerror or error}"))
    except FormatError as error:
        kind = "changed" if report.bytes else "unreadable"
        report.damaged.append(Damage(job.name, kind, str(error).rstrip(".")))  # type: ignore[arg-type]
    progress.done(report)
    return report


def load_places(job: FileJob, damaged: list[Damage]) -> Places | None:
    """The index of a file as far as it can be used; what is wrong with it goes to `damaged`."""
    assert job.index is not None
    name = file_names.index_name(job.name)
    try:
        with open_file(job.index) as file:
            size = os.fstat(file.fileno()).st_size
            records = min(size // _LEAST_LINE_BYTES, MAX_RECORDS) if job.shard is None else job.shard.records
            most = max_index_bytes(2**62 if job.shard is None else job.shard.bytes, records)
            if size > most:
                damaged.append(Damage(name, "index", f"it has {size:,} bytes, more than {records:,} records can need"))
                return None
            data = file.read(size)
    except FileNotFoundError:
        damaged.append(Damage(name, "index", "the index is missing"))
        return None
    except (OSError, FormatError) as error:
        damaged.append(Damage(name, "index", f"it cannot be read: {getattr(error, 'strerror', None) or error}"))
        return None
    try:
        if job.shard is not None:
            return decode_index(data, job.shard.bytes, job.shard.records)
    except FormatError as error:
        damaged.append(Damage(name, "index", str(error).split(". ")[0].rstrip(".")))
    try:  # by its own word: it may still tell where records are, and `scan` leaves one that is wrong
        last = data.rstrip(b"\n").rpartition(b"\n")[2].split()
        return decode_index(data, sum(map(int, last)), data.count(b"\n")) if len(last) == 2 and data else None
    except (FormatError, ValueError):
        return None


class Progress:
    """One worker's part in the counters, told now and then: their lock costs as much as a small record."""

    def __init__(self, counters: Counters | None) -> None:
        self._counters, self._next = counters, 0.0
        self._told = (0, 0, 0)

    def step(self, num_bytes: int, records: int, damaged: int) -> None:
        """How far this file is."""
        if self._counters is not None and (now := time.monotonic()) >= self._next:
            self._next = now + _REPORT_EVERY_S
            self._tell((num_bytes, records, damaged))

    def done(self, report: FileReport) -> None:
        """At the end of the file."""
        if self._counters is not None:
            self._tell((report.bytes, report.records, len(report.damaged)))

    def _tell(self, now: tuple[int, int, int]) -> None:
        assert self._counters is not None
        with self._counters.get_lock():
            for k in range(3):
                self._counters[k] += now[k] - self._told[k]
        self._told = now


def _check_records(
    reader: HashedReader, report: FileReport, content: ContentCheck | None, places: Places | None, progress: Progress
) -> None:
    name, damaged = report.job.name, report.damaged
    identities, found = bytearray(), []
    follows = places is not None
    for one in scan(reader, places):
        if not isinstance(one, Intact):
            damaged.append(describe(name, reader, one))
            continue
        report.records += 1
        if follows:
            assert places is not None
            follows = one.number < len(places) and places[one.number, 1] == one.size
        if content is not None:
            looked = check_content(reader, one, content)
            _take_in(report, looked, content, one.number, one.offset)
            identities += looked.identity
            found.append((one.number, one.offset))
        progress.step(one.offset + one.size, report.records, len(damaged))
    report.identities = np.frombuffer(bytes(identities), np.uint8).reshape(-1, IDENTITY_BYTES)
    report.places = np.array(found, np.int64).reshape(-1, 2)
    if places is not None and not follows and not any(one.kind == "index" for one in damaged):
        damaged.append(Damage(file_names.index_name(name), "index", "it is of another file: records have other sizes"))


def _check_compressed(
    reader: HashedReader, report: FileReport, content: ContentCheck | None, compression: Compression, progress: Progress
) -> None:
    """As `_check_records`; nothing can be found again behind damage, and records have no place of their own."""
    identities, at = bytearray(), 0

    def read(piece: bytes) -> None:
        nonlocal at
        at += len(piece)

    try:
        for payload in scan_compressed(reader.as_file(), compression, read):
            if content is not None:
                looked = content.check(payload)
                _take_in(report, looked, content, report.records, None)
                identities += looked.identity
            report.records += 1
            progress.step(at, report.records, len(report.damaged))
    except FormatError as error:
        text = f"{str(error).rstrip('.')}; what follows cannot be read"
        report.damaged.append(Damage(report.job.name, "compressed", text, report.records))
    report.identities = np.frombuffer(bytes(identities), np.uint8).reshape(-1, IDENTITY_BYTES)
    report.places = np.stack([np.arange(len(report.identities)), np.zeros(len(report.identities), np.int64)], axis=1)


def _take_in(report: FileReport, looked: Content, content: ContentCheck, number: int, offset: int | None) -> None:
    name = report.job.name
    report.damaged += [Damage(name, kind, text, number, offset, looked.key) for kind, text in looked.faults]
    if not looked.faults:
        label, kind = content.get_label(looked.features), looked.features.get(keys.IMAGE_FORMAT)
        if label is not None:
            report.classes[label] += 1
        if isinstance(kind, list) and kind:
            report.formats[kind[0].decode("ascii", "replace")] += 1


def check_content(reader: HashedReader, one: Intact, content: ContentCheck) -> Content:
    """Checks the content of a record that `scan` just found."""
    if one.size > _MAX_PAYLOAD_BYTES:
        return Content((("example", f"it has {one.size:,} bytes, more than a protocol buffer can have"),), {})
    return content.check(reader.payload(one.offset, one.size))


def describe(name: str, reader: HashedReader, one: FrameDamage) -> Damage:
    """A damage of the framing; with the image's path where a damaged payload still tells it."""
    key = ""
    if one.kind == "payload_crc" and FRAME_BYTES < one.size <= _MAX_KEY_BYTES:
        with contextlib.suppress(FormatError):
            payload = reader.peek(one.offset + HEADER_BYTES, one.size - FRAME_BYTES)
            key = Content((), decode_example(payload)).key
    return Damage(name, one.kind, one.detail, one.number, one.offset, key)


def _compare(report: FileReport, shard: ShardInfo, reader: HashedReader) -> None:
    """What the manifest says of the file, where no damaged record explains the difference."""
    if any(_is_of_framing(one) for one in report.damaged):
        return
    name, say = report.job.name, report.damaged.append
    if report.bytes != shard.bytes:
        say(Damage(name, "size", f"the file has {report.bytes:,} bytes, the manifest says {shard.bytes:,}"))
    elif reader.sha256() != shard.sha256:
        say(Damage(name, "sha256", "the file's SHA-256 is not the manifest's"))
    if report.records != shard.records:
        say(Damage(name, "count", f"the file has {report.records:,} records, the manifest says {shard.records:,}"))


def _is_of_framing(one: Damage) -> bool:
    return one.record is not None and one.kind in _OF_FRAMING
