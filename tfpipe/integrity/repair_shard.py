"""Writes the undamaged records of one shard as a clean shard. This is the work of a repair's worker process."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from tfpipe.errors import FormatError
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature, encode_example
from tfpipe.format.record_index import decode_index
from tfpipe.format.record_writer import RecordWriter
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.recovery.scan import Intact, scan
from tfpipe.format.shard_stats import ShardStats
from tfpipe.images.errors import BadImage
from tfpipe.integrity.check_file import Counters, FileJob, FileReport, Progress, check_content, describe, load_places
from tfpipe.integrity.check_record import Content, ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.system.file_io import hash_file, new_file, open_file, write_file
from tfpipe.system.working_folder import WorkingFolder
from tfpipe.writer.count_record import count_record

DIGEST_BYTES = 32

_OPTIONAL = ("label_counts", "seekable_jpegs", "tensors", "masks", "per_record")


@dataclass(slots=True)
class RepairedShard:
    """A clean shard, and the records that were lost.

    Attributes:
        file: The name of the shard in the source.
        split: The split.
        records: The number of records.
        bytes: The size of the clean shard.
        sha256: The SHA-256 of the clean shard.
        stats: The counts of its images.
        lost: The damages, as `Damage.to_json` returns them.
    """

    file: str
    split: str
    records: int = 0
    bytes: int = 0
    sha256: str = ""
    stats: ShardStats = field(default_factory=ShardStats)
    lost: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        fields = {name: getattr(self, name) for name in ("file", "split", "records", "bytes", "sha256", "lost")}
        counts = self.stats.to_json()
        names = {"formats": "formats", "labels": "classes", "sizes": "pixels"}
        names |= {name: name for name in _OPTIONAL}
        return fields | {name: counts[key] for key, name in names.items() if key in counts}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "RepairedShard":
        """Inverts `to_json`. Raises KeyError, TypeError, ValueError or AttributeError for any other value."""
        counts = {"formats": fields["formats"], "labels": fields["classes"], "sizes": fields["pixels"]}
        counts |= {name: fields[name] for name in _OPTIONAL if name in fields}
        names = ("file", "split", "records", "bytes", "sha256", "lost")
        stats = ShardStats.from_json({**counts, "changed": {}, "noticed": {}}, fields["records"])
        return cls(**{name: fields[name] for name in names}, stats=stats)


class Staging(WorkingFolder):
    """The working folder of an unfinished repair.

    ```
    OUTPUT.tfpipe-repair/
      plan.json             the identity of the repair
      shards/NAME, *.idx    clean shards under their names in the source
      rows/NAME.json        the description of each clean shard, written after it
      digests/NAME          32 bytes for each record: the SHA-256 of the image's source
      data/                 the dataset, put together at the end and then renamed to OUTPUT
      lock                  held by the process that writes
    ```
    """

    def shard(self, name: str) -> str:
        """Returns the path of a clean shard."""
        return self.path("shards", name)

    def index(self, name: str) -> str:
        """Returns the path of a clean shard's index."""
        return self.path("shards", f"{name}.idx")

    def read_row(self, name: str) -> RepairedShard | None:
        """Returns the clean shard that an earlier run wrote, or None if it does not exist unchanged."""
        try:
            with open(self.path("rows", f"{name}.json"), "rb") as file:
                row = RepairedShard.from_json(json.load(file))
            with open(self.index(name), "rb") as file:
                decode_index(file.read(), row.bytes, row.records)
            is_same = os.stat(self.shard(name)).st_size == row.bytes and hash_file(self.shard(name)) == row.sha256
            return row if is_same else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # missing or cut off: written again
            return None


def repair_shard(content: ContentCheck, staging: Staging, counters: Counters, job: FileJob) -> FileReport:
    """Writes the clean shard, its index, digests and row, or keeps those that an earlier run wrote.

    Returns:
        The report about the records that were read and lost.

    Raises:
        OSError: The output cannot be written. Damage in the source is reported and never raised.
    """
    report = FileReport(job)
    row = staging.read_row(job.name)
    if row is None:
        row = _write_shard(content, staging, Progress(counters), report)
    report.records = row.records
    return report


def _write_shard(content: ContentCheck, staging: Staging, progress: Progress, report: FileReport) -> RepairedShard:
    job, lost = report.job, report.damaged
    row = RepairedShard(job.name, job.split)
    digests = bytearray()
    with new_file(staging.shard(job.name)) as out:
        writer, source = RecordWriter(out), _open(job, lost)
        if source is not None:
            with source:
                report.bytes = os.fstat(source.fileno()).st_size
                for payload, record in _good_records(source, content, progress, report):
                    writer.write(payload)
                    digests += _source_digest(record)
                    _count(row.stats, content, record.features, job.seekable)
    info = writer.describe(job.name)
    row.records, row.bytes, row.sha256 = info.records, info.bytes, info.sha256
    row.lost = [damage.to_json() for damage in lost if damage.kind != "index"]
    write_file(staging.index(job.name), writer.index)
    write_file(staging.path("digests", job.name), bytes(digests))
    write_file(staging.path("rows", f"{job.name}.json"), json.dumps(row.to_json()).encode())
    progress.done(report)
    return row


def _good_records(
    source: BinaryIO, content: ContentCheck, progress: Progress, report: FileReport
) -> Iterator[tuple[bytes, Content]]:
    """Yields the payload and the content of every undamaged record, and adds the damages to `report.damaged`."""
    job, lost = report.job, report.damaged
    places = load_places(job, lost)
    reader = HashedReader(source)
    try:
        for item in scan(reader, places):
            if not isinstance(item, Intact):
                lost.append(describe(job.name, reader, item))
                continue
            record = check_content(reader, item, content)
            if record.faults:
                kind, text = record.faults[0]
                lost.append(Damage(job.name, kind, text, item.number, item.offset, record.key))
                continue
            report.records += 1
            yield reader.payload(item.offset, item.size), record
            progress.step(item.offset + item.size, report.records, len(lost))
    except FormatError as error:
        lost.append(Damage(job.name, "changed", str(error).rstrip(".")))
    except OSError as error:
        lost.append(Damage(job.name, "unreadable", f"it cannot be read on: {error.strerror or error}"))


def _open(job: FileJob, lost: list[Damage]) -> BinaryIO | None:
    records = f", with {job.shard.records:,} records" if job.shard is not None and job.shard.records else ""
    try:
        return open_file(job.path)
    except FileNotFoundError:
        lost.append(Damage(job.name, "missing", f"the file is missing{records}"))
    except (OSError, FormatError) as error:
        text = f"it cannot be read: {getattr(error, 'strerror', None) or error}"
        lost.append(Damage(job.name, "unreadable", f"{text.rstrip('.')}{records}"))
    return None


def _count(stats: ShardStats, content: ContentCheck, features: Mapping[str, Feature], seekable: bool) -> None:
    assert content.schema is not None  # a repair has a manifest
    try:
        count_record(stats, content.schema, features, max_pixels=content.form.max_pixels, seekable=seekable)
    except BadImage:  # only where images are not decoded as a check
        masks = {spec.name for spec in content.schema.masks}
        others = {name: value for name, value in features.items() if name not in masks}
        count_record(stats, content.schema, others, seekable=seekable)


def _source_digest(record: Content) -> bytes:
    """Returns the SHA-256 of the image's source if the record gives it, else that of the stored bytes.

    Without an image it is that of all features, of several images that of their digests.
    """
    value = record.features.get(keys.IMAGE_SHA256)
    if isinstance(value, list) and len(value) == 1 and len(value[0]) == 2 * DIGEST_BYTES:
        try:
            return bytes.fromhex(value[0].decode())
        except ValueError:
            pass
    if isinstance(value, list) and len(value) > 1:
        return hashlib.sha256(b"".join(value)).digest()
    if record.image_key is None:
        return hashlib.sha256(encode_example(record.features)).digest()
    stored = record.features.get(keys.IMAGE_ENCODED)
    return hashlib.sha256(b"".join(stored) if isinstance(stored, list) else b"").digest()


def final_names(shards: list[RepairedShard]) -> list[tuple[RepairedShard, str]]:
    """Returns the shards that have records, each with its new name. The order stays, and the numbers have no gaps."""
    full_shards = [shard for shard in shards if shard.records]
    num_shards, next_index = Counter(shard.split for shard in full_shards), Counter[str]()
    names = []
    for shard in full_shards:
        names.append((shard, file_names.shard_name(shard.split, next_index[shard.split], num_shards[shard.split])))
        next_index[shard.split] += 1
    return names
