"""Writes the undamaged records of one shard as a clean shard. This is the work of a repair's worker process."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import DataError, FormatError
from tfpipe.format.example import Feature, encode_example
from tfpipe.format.manifest import Manifest
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.shard_stats import ShardStats
from tfpipe.images.errors import BadImage
from tfpipe.images.seekable import is_seekable
from tfpipe.integrity.check_file import (
    FRAMING_KINDS,
    Counters,
    FileJob,
    FileReport,
    Tally,
    add_fault,
    load_places,
    scan_content,
)
from tfpipe.integrity.check_record import Content, ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.storage.file_io import open_file, write_file
from tfpipe.writer.count_record import count_record
from tfpipe.writer.record_facts import RecordFacts
from tfpipe.writer.shard_folder import ShardFolder
from tfpipe.writer.written_shard import WrittenShard

_MAY_BE_HIDDEN = "without the index of the shard nobody knows whether it was deleted"


class RepairFolder(ShardFolder):
    """The working folder of a repair; the digests are the SHA-256 of each image's source."""

    ending = ".tfpipe-repair"


def repair_shard(
    content: ContentCheck, manifest: Manifest, staging: RepairFolder, counters: Counters, job: FileJob
) -> WrittenShard:
    """Writes the clean shard and what belongs to it, or keeps those of an earlier run; damage is only reported."""
    written = staging.find_finished(get_staged_name(job))
    if written is None:
        written = _write_shard(content, _ColumnValues(manifest, job), staging, Tally(counters), FileReport(job))
    return written


def get_staged_name(job: FileJob) -> str:
    """Returns the name of a repaired shard in the working folder, where those of layers lie beside the others."""
    return job.name.replace("/", "-")


def _write_shard(
    content: ContentCheck, columns: "_ColumnValues", staging: RepairFolder, progress: Tally, report: FileReport
) -> WrittenShard:
    job, lost = report.job, report.damaged
    count, digests = partial(_count, replace(content, schema=columns.schema), job.seekable), bytearray()
    name = get_staged_name(job)
    facts = RecordFacts.of_new_shard(columns.schema, content.label_names)
    with staging.new_shard(name, count, facts) as writer:
        for payload, record in _good_records(content, columns, progress, report):
            writer.add(record.features, payload)
            digests += record.digest
        writer.left_out = [damage.to_json() for damage in lost if damage.kind != "index"]
        write_file(staging.digests_path(name), bytes(digests))
    progress.step(report.bytes, report.records, len(report.damaged), at_end=True)
    return writer.describe_shard(name)


def _good_records(
    content: ContentCheck, columns: "_ColumnValues", progress: Tally, report: FileReport
) -> Iterator[tuple[bytes, Content]]:
    """Yields the payload and the content of every undamaged record, and adds the damages to `report.damaged`."""
    job, lost = report.job, report.damaged
    try:
        with open_file(job.path) as file:
            reader, places = HashedReader(file), load_places(job, lost)
            report.bytes = reader.size
            for item, record in scan_content(reader, report, content, places, progress):
                assert record is not None
                is_sure = not any(damage.kind in FRAMING_KINDS for damage in lost)
                if places is not None:
                    is_sure = item.number < len(places) and int(places[item.number, 1]) == item.size
                if columns.hides(item.number, is_sure):
                    if not is_sure:
                        lost.append(Damage(job.name, "layer", _MAY_BE_HIDDEN, item.number, item.offset))
                elif record.faults:
                    kind, text = record.faults[0]
                    lost.append(Damage(job.name, kind, text, item.number, item.offset, record.key))
                else:
                    try:
                        yield columns.join(item.number, reader.payload(item.offset, item.size), record, is_sure)
                    except _NoValue as error:
                        lost.append(Damage(job.name, "column", str(error), item.number, item.offset, record.key))
    except (OSError, FormatError) as error:
        add_fault(report, error)


class _NoValue(Exception):
    """The error for a record of which a column has no value that can be used."""


class _ColumnValues:
    """The values that columns have of the records of a shard, and which of these are hidden."""

    def __init__(self, manifest: Manifest, job: FileJob) -> None:
        assert job.shard is not None
        self.schema, self._records = manifest.full_schema, job.shard.records
        shards, chosen = manifest.splits[job.split].shards, manifest.splits[job.split].chosen
        self._first = sum(shard.records for shard in shards[: [shard.file for shard in shards].index(job.name)])
        rows = range(self._records) if chosen is None else chosen.list_rows(self._first, self._records).tolist()
        self._hidden = frozenset(range(self._records)) - frozenset(rows)
        self._columns = [
            (ContentCheck.from_manifest(column), RecordReader(column.directory, column, job.split))
            for column in manifest.columns
        ]

    def hides(self, number: int, is_sure: bool) -> bool:
        """Returns whether a record was deleted, or may be; arguments as for `join`."""
        return number in self._hidden if is_sure else bool(self._hidden)

    def join(self, number: int, payload: bytes, record: Content, is_sure: bool) -> tuple[bytes, Content]:
        """Returns payload and content of a record with the values of all columns, if its number can be told."""
        if not self._columns:
            return payload, record
        if not is_sure or number >= self._records:
            raise _NoValue("without the index of the shard nobody knows which values of the columns belong to it")
        features = dict(record.features)
        for check, reader in self._columns:
            try:
                found = check.check(reader.read_payload(self._first + number))
            except (FormatError, DataError) as error:
                raise _NoValue(str(error).rstrip(".")) from None
            if found.faults:
                raise _NoValue(found.faults[0][1])
            features |= found.features
        return encode_example(features), replace(record, features=features)


def _count(content: ContentCheck, seekable: bool, stats: ShardStats, features: Mapping[str, Feature]) -> None:
    assert content.schema is not None  # a repair has a manifest
    tells = is_seekable if seekable else None
    try:
        count_record(stats, features, schema=content.schema, max_pixels=content.form.max_pixels, is_seekable=tells)
    except BadImage:  # only where images are not decoded as a check
        masks = {spec.name for spec in content.schema.masks}
        others = {name: value for name, value in features.items() if name not in masks}
        count_record(stats, others, schema=content.schema, is_seekable=tells)
