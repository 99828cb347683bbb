"""Writes the undamaged records of one shard as a clean shard. This is the work of a repair's worker process."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import BinaryIO

from tfpipe.errors import FormatError
from tfpipe.format.example import Feature
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.shard_stats import ShardStats
from tfpipe.images.errors import BadImage
from tfpipe.images.seekable import is_seekable
from tfpipe.integrity.check_file import Counters, FileJob, FileReport, Progress, load_places, scan_content
from tfpipe.integrity.check_record import Content, ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.storage.file_io import open_file, write_file
from tfpipe.writer.count_record import count_record
from tfpipe.writer.shard_folder import ShardFolder
from tfpipe.writer.written_shard import WrittenShard


class RepairFolder(ShardFolder):
    """The working folder of a repair; the digests are the SHA-256 of each image's source."""

    ending = ".tfpipe-repair"


def repair_shard(content: ContentCheck, staging: RepairFolder, counters: Counters, job: FileJob) -> FileReport:
    """Writes the clean shard, its index, digests and row, or keeps those that an earlier run wrote.

    Returns:
        The report about the records that were read and lost.

    Raises:
        OSError: The output cannot be written. Damage in the source is reported and never raised.
    """
    report = FileReport(job)
    written = staging.find_finished(job.name)
    if written is None:
        written = _write_shard(content, staging, Progress(counters), report)
    report.records = written.info.records
    return report


def _write_shard(content: ContentCheck, staging: RepairFolder, progress: Progress, report: FileReport) -> WrittenShard:
    job, lost = report.job, report.damaged
    count, digests = partial(_count, content, job.seekable), bytearray()
    with staging.new_shard(job.name, count) as writer:
        if (source := _open(job, lost)) is not None:
            with source:
                for payload, record in _good_records(source, content, progress, report):
                    writer.add(record.features, payload)
                    digests += record.digest
        writer.left_out = [damage.to_json() for damage in lost if damage.kind != "index"]
        write_file(staging.digests_path(job.name), bytes(digests))
    progress.done(report)
    return writer.describe_shard(job.name)


def _good_records(
    source: BinaryIO, content: ContentCheck, progress: Progress, report: FileReport
) -> Iterator[tuple[bytes, Content]]:
    """Yields the payload and the content of every undamaged record, and adds the damages to `report.damaged`."""
    job, lost = report.job, report.damaged
    places = load_places(job, lost)
    reader = HashedReader(source)
    report.bytes = reader.size
    try:
        for item, record in scan_content(reader, report, content, places, progress):
            assert record is not None
            if record.faults:
                kind, text = record.faults[0]
                lost.append(Damage(job.name, kind, text, item.number, item.offset, record.key))
            else:
                yield reader.payload(item.offset, item.size), record
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


def _count(content: ContentCheck, seekable: bool, stats: ShardStats, features: Mapping[str, Feature]) -> None:
    assert content.schema is not None  # a repair has a manifest
    tells = is_seekable if seekable else None
    try:
        count_record(stats, features, schema=content.schema, max_pixels=content.form.max_pixels, is_seekable=tells)
    except BadImage:  # only where images are not decoded as a check
        masks = {spec.name for spec in content.schema.masks}
        others = {name: value for name, value in features.items() if name not in masks}
        count_record(stats, others, schema=content.schema, is_seekable=tells)
