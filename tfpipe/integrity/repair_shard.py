"""The undamaged records of one shard, written as a clean one: what a worker process of a repair does."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from tfpipe.errors import FormatError
from tfpipe.format import file_names
from tfpipe.format import schema as keys
from tfpipe.format.example import Feature
from tfpipe.format.record_index import decode_index, encode_index
from tfpipe.format.recovery.hashed_reader import BUFFER_BYTES, HashedReader
from tfpipe.format.recovery.scan import Intact, scan
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tfrecord import record_footer, record_header
from tfpipe.integrity.check_file import Counters, FileJob, FileReport, Progress, check_content, describe, load_places
from tfpipe.integrity.check_record import Content, ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.system.file_io import new_file, open_file, write_file

DIGEST_BYTES = 32


@dataclass(slots=True)
class Rescued:
    """What became of one shard."""

    file: str
    """Its name in the source."""
    split: str
    records: int = 0
    bytes: int = 0
    sha256: str = ""
    stats: ShardStats = field(default_factory=ShardStats)
    lost: list[dict[str, Any]] = field(default_factory=list)
    """As `Damage.to_json`."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        fields = {name: getattr(self, name) for name in ("file", "split", "records", "bytes", "sha256", "lost")}
        counts = self.stats.to_json()
        return fields | {"formats": counts["formats"], "classes": counts["labels"], "pixels": counts["sizes"]}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Rescued":
        """Returns what `to_json` gave; raises KeyError, TypeError, ValueError or AttributeError for anything else."""
        counts = {"formats": fields["formats"], "labels": fields["classes"], "sizes": fields["pixels"]}
        names = ("file", "split", "records", "bytes", "sha256", "lost")
        stats = ShardStats.from_json({**counts, "changed": {}, "noticed": {}}, fields["records"])
        return cls(**{name: fields[name] for name in names}, stats=stats)


@dataclass(frozen=True, slots=True)
class Staging:
    """Folder of an unfinished repair.

    ```
    OUTPUT.tfpipe-repair/
      plan.json             what is repaired, by its identity
      shards/NAME, *.idx    clean shards under their names in the source
      rows/NAME.json        one for each of them, written after it
      digests/NAME          32 bytes a record: SHA-256 of the image's source
      data/                 the dataset, put together at the end and then renamed to OUTPUT
      lock                  held by the process that writes
    ```
    """

    base: str

    def path(self, *parts: str) -> str:
        """A path in it."""
        return os.path.join(self.base, *parts)

    def shard(self, name: str) -> str:
        """A clean shard."""
        return self.path("shards", name)

    def index(self, name: str) -> str:
        """Its index."""
        return self.path("shards", f"{name}.idx")

    def row(self, name: str) -> Rescued | None:
        """What an earlier run made of a shard, if that is still there as it was."""
        try:
            with open(self.path("rows", f"{name}.json"), "rb") as file:
                row = Rescued.from_json(json.load(file))
            with open(self.index(name), "rb") as file:
                decode_index(file.read(), row.bytes, row.records)
            same = os.stat(self.shard(name)).st_size == row.bytes and _sha256(self.shard(name)) == row.sha256
            return row if same else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):  # not there, or cut off: made again
            return None


def rescue_file(content: ContentCheck, staging: Staging, counters: Counters, job: FileJob) -> FileReport:
    """Writes the clean shard, its index, digests and row, or keeps what an earlier run wrote.

    Returns:
      How much was read, and what is lost.

    Raises:
      OSError: It cannot be written. What is wrong with the source never raises.
    """
    report = FileReport(job)
    row = staging.row(job.name)
    if row is None:
        row = _rescue(content, staging, Progress(counters), report)
    report.records = row.records
    return report


def _rescue(content: ContentCheck, staging: Staging, progress: Progress, report: FileReport) -> Rescued:
    job, lost = report.job, report.damaged
    row = Rescued(job.name, job.split)
    sizes: list[int] = []
    digests, digest = bytearray(), hashlib.sha256()
    with new_file(staging.shard(job.name)) as out:
        source = _open(job, lost)
        if source is not None:
            with source:
                report.bytes = os.fstat(source.fileno()).st_size
                for payload, looked in _good_records(source, content, progress, report):
                    parts = record_header(len(payload)), payload, record_footer(payload)
                    for part in parts:
                        out.write(part)
                        digest.update(part)
                    sizes.append(sum(map(len, parts)))
                    digests += _source_digest(looked)
                    _count(row.stats, looked.features)
    row.records, row.bytes, row.sha256 = len(sizes), sum(sizes), digest.hexdigest()
    row.lost = [one.to_json() for one in lost if one.kind != "index"]
    write_file(staging.index(job.name), encode_index(sizes))
    write_file(staging.path("digests", job.name), bytes(digests))
    write_file(staging.path("rows", f"{job.name}.json"), json.dumps(row.to_json()).encode())
    progress.done(report)
    return row


def _good_records(
    source: BinaryIO, content: ContentCheck, progress: Progress, report: FileReport
) -> Iterator[tuple[bytes, Content]]:
    """Yields payload and content of every undamaged record; the rest goes to `report.damaged`."""
    job, lost = report.job, report.damaged
    places = load_places(job, lost)
    reader = HashedReader(source)
    try:
        for one in scan(reader, places):
            if not isinstance(one, Intact):
                lost.append(describe(job.name, reader, one))
                continue
            looked = check_content(reader, one, content)
            if looked.faults:
                kind, text = looked.faults[0]
                lost.append(Damage(job.name, kind, text, one.number, one.offset, looked.key))
                continue
            report.records += 1
            yield reader.payload(one.offset, one.size), looked
            progress.step(one.offset + one.size, report.records, len(lost))
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


def _count(stats: ShardStats, features: Mapping[str, Feature]) -> None:
    """Adds the image of one record, as far as the record describes it."""
    texts = features.get(keys.IMAGE_FORMAT)
    image_format = texts[0].decode("ascii", "replace") if isinstance(texts, list) and len(texts) == 1 else None
    height, width = (_get_number(features, key) for key in (keys.IMAGE_HEIGHT, keys.IMAGE_WIDTH))
    stats.add(
        image_format,
        None if height is None else max(0, height),
        None if width is None else max(0, width),
        _get_number(features, keys.CLASS_LABEL),
    )


def _get_number(features: Mapping[str, Feature], key: str) -> int | None:
    value = features.get(key)
    return int(value[0]) if isinstance(value, np.ndarray) and value.size == 1 else None


def _source_digest(looked: Content) -> bytes:
    """SHA-256 of the image's source, by the record's word; of what is stored where it gives none."""
    value = looked.features.get(keys.IMAGE_SHA256)
    if isinstance(value, list) and len(value) == 1 and len(value[0]) == 2 * DIGEST_BYTES:
        try:
            return bytes.fromhex(value[0].decode())
        except ValueError:
            pass
    stored = looked.features.get(keys.IMAGE_ENCODED)
    return hashlib.sha256(b"".join(stored) if isinstance(stored, list) else b"").digest()


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(BUFFER_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def final_names(rows: list[Rescued]) -> list[tuple[Rescued, str]]:
    """The shards that have records, with their names among these: in the same order, and without gaps."""
    full = [row for row in rows if row.records]
    count, seen = Counter(row.split for row in full), Counter[str]()
    names = []
    for row in full:
        names.append((row, file_names.shard_name(row.split, seen[row.split], count[row.split])))
        seen[row.split] += 1
    return names
