"""Writes a dataset in the format of another tool, as a whole or not at all; the same call completes a killed run."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import IO, Literal, TypeAlias, TypeVar, get_args

from tfpipe._version import __version__
from tfpipe.dataset.load import load_manifest
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError
from tfpipe.export import parquet, webdataset
from tfpipe.export.samples import ShardJob, list_columns, read_payloads, read_samples
from tfpipe.format import file_names, tfds_metadata
from tfpipe.format.json_reader import to_json
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.check_file import Counters, Tally
from tfpipe.integrity.progress import run_on_files
from tfpipe.storage import file_io
from tfpipe.system.extras import check_installed
from tfpipe.system.options import Choice, Count, Unchecked, check_options, option
from tfpipe.system.process_pool import WorkerPool
from tfpipe.system.progress import Observer
from tfpipe.writer.working_folder import WorkingFolder, check_output, hash_values

Record = TypeVar("Record")
Format: TypeAlias = Literal["webdataset", "parquet", "arrayrecord"]
_ENDINGS: Mapping[Format, str] = {"webdataset": "tar", "parquet": "parquet", "arrayrecord": "array_record"}
_PACKAGES: Mapping[Format, str] = {"parquet": "pyarrow", "arrayrecord": "array_record"}
REPORT = "export.json"  # the file that every export has
LABELS = "labels.txt"  # the names of the classes, one a line, in the order of their numbers

_WORKERS = WorkerPool(
    preload=["tfpipe.export.run", "tfpipe.images.decode"],
    death="A worker process died: it was killed, or memory ran out. Run the same command again, with fewer `workers`.",
)


@dataclass(frozen=True)
class ExportConfig:
    """The options of `export`.

    Attributes:
        dataset: The directory of the dataset, or its URL in a bucket. Required.
        output: The directory that appears when everything in it is complete, or a URL, where export.json appears then.
            Required.
        to: The format that is written. "webdataset", "parquet" or "arrayrecord". Required.
        splits: The names of the splits to write. Empty: all. Default: ().
        workers: The number of worker processes. 0: this process does the work. None: one for each core. At least 0.
            Default: None.

    Raises:
        ConfigError: A value cannot be used.
    """

    dataset: str
    output: str
    to: Format = option(Choice(get_args(Format)))
    splits: tuple[str, ...] = option(Unchecked(), (), flag="--split", metavar="NAME")
    workers: int | None = option(Count(0), None)

    def __post_init__(self) -> None:
        check_options(self)


class Workshop(WorkingFolder):
    """The working folder of an unfinished export; `unfinished/` holds the files that are being written."""

    ending = ".tfpipe-export"
    folders = ("unfinished", "rows", "data")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export."""

    to: str
    splits: Mapping[str, Mapping[str, int]]  # records, files and bytes of each
    notes: tuple[str, ...] = ()  # sentences that the user should know


def export(config: ExportConfig, observer: Observer | None = None) -> ExportReport:
    """Writes a dataset in the format of another tool, several shards at once."""
    file_io.check_stores([config.dataset, config.output])
    if (package := _PACKAGES.get(config.to)) is not None:
        check_installed(package, f"An export to {config.to}", package, "tfpipe[export]")
    manifest = load_manifest(config.dataset)
    for name in config.splits:
        if name not in manifest.splits:
            raise ConfigError(f"`splits` must be among {', '.join(manifest.splits)}, got {name!r}.")
    splits = tuple(name for name in manifest.splits if not config.splits or name in config.splits)
    for name in splits:
        RecordReader(manifest.directory, manifest, name)  # refuses files that are compressed as a whole
    # What is read lies outside of the manifest's folder if `tfpipe index` described it there.
    sources = {manifest.directory, manifest.shard_directory(manifest.directory)}
    workshop = Workshop(check_output(config.output, sources, {REPORT, Workshop.ending}.__contains__))
    identity = _identify(config, manifest, splits)
    if (document := workshop.find_report(REPORT, identity)) is not None:
        workshop.remove()
        return ExportReport(document["to"], document["splits"], tuple(document["notes"]))
    jobs = list_jobs(manifest, splits)
    with workshop.open(identity, f"exports into {config.output}"):
        sized = [(job, job.num_bytes) for job in jobs]
        shared = (config.to, manifest, workshop)
        written = run_on_files(_WORKERS, _export_shard, sized, shared, workers=config.workers, observer=observer)
        sums = {name: {"records": 0, "files": 0, "bytes": 0} for name in splits}
        for job, num_bytes in zip(jobs, written, strict=True):
            of_split = sums[job.split]
            of_split["records"] += len(job.rows)
            of_split["files"] += 1
            of_split["bytes"] += num_bytes
        report = _finish(config, manifest, sums, workshop, identity)
        workshop.publish()
    return report


def list_jobs(manifest: Manifest, splits: Sequence[str]) -> list[ShardJob]:
    """Returns a job for each shard of some splits, in the manifest's order."""
    jobs = []
    for name in splits:
        shards = manifest.splits[name].shards
        bounds = list(accumulate(manifest.splits[name].records_per_shard, initial=0))
        for number, (shard, begin, end) in enumerate(zip(shards, bounds, bounds[1:], strict=False)):
            stem = file_names.shard_name(name, number, len(shards)).removesuffix(".tfrecord")
            jobs.append(ShardJob(name, stem, range(begin, end), shard.bytes))
    return jobs


def _identify(config: ExportConfig, manifest: Manifest, splits: Sequence[str]) -> str:
    """Returns a hash of everything that decides the result, so that an export of a changed dataset begins anew."""
    return hash_values(
        *(__version__, config.to, {name: manifest.splits[name].fingerprint for name in splits}),
        *(manifest.name, manifest.label_names, manifest.full_schema.to_json(), dict(manifest.image)),
        [column.splits[name].fingerprint for column in manifest.columns for name in splits],
        to_json(manifest.foreign),
    )


def _finish(
    config: ExportConfig, manifest: Manifest, splits: dict[str, dict[str, int]], workshop: Workshop, identity: str
) -> ExportReport:
    """Writes the files beside the shards, the report last."""
    files: dict[str, bytes] = {}
    if config.to == "arrayrecord" and manifest.foreign is None:  # TFDS cannot nest other programs' feature names
        written = replace(
            manifest, schema=manifest.full_schema, splits={name: manifest.splits[name] for name in splits}
        )
        files = {name: text.encode() for name, text in tfds_metadata.make_files(written, _ENDINGS[config.to]).items()}
    notes = []
    if config.to == "webdataset" and (captions := webdataset.describe_captions(list_columns(manifest))):
        notes.append(captions)
    if manifest.label_names:
        letters = "".join(manifest.label_names).encode("utf-8", "surrogateescape").decode("utf-8", "ignore")
        if letters.isprintable() and all(name and name == name.strip() for name in manifest.label_names):
            files[LABELS] = "\n".join([*manifest.label_names, ""]).encode("utf-8", "surrogateescape")
        else:
            notes.append(f"{LABELS} is left out, because a class's name does not fit on a line; {REPORT} lists them.")
    for name, text in files.items():
        file_io.write_file(workshop.result(name), text)
    document = {
        "version": 1,
        "tool_version": __version__,
        "identity": identity,
        "name": manifest.name,
        "to": config.to,
        "splits": splits,
        "label_names": manifest.label_names,
        "notes": notes,
    }
    file_io.write_file(workshop.result(REPORT), json.dumps(document, indent=1).encode() + b"\n")
    return ExportReport(config.to, splits, tuple(notes))


def _export_shard(to: Format, manifest: Manifest, workshop: Workshop, counters: Counters | None, job: ShardJob) -> int:
    """Writes a shard and then the number of its bytes, unless an earlier run did, and returns the number."""
    progress, row = Tally(counters), workshop.path("rows", f"{job.name}.json")
    if not file_io.exists(row):
        with file_io.explain_os_errors(f"export {job.name} into {workshop.output}"):
            file_io.write_file(row, str(_write(to, manifest, workshop, progress, job)).encode())
    progress.step(job.num_bytes, len(job.rows), at_end=True)
    return int(file_io.read_whole(row))


def _write(to: Format, manifest: Manifest, workshop: Workshop, progress: Tally, job: ShardJob) -> int:
    """Writes a shard, and returns the bytes of its file."""
    target, temporary = workshop.result(f"{job.name}.{_ENDINGS[to]}"), workshop.path("unfinished", f"{job.name}.tmp")
    with file_io.create(target, temporary) as file:
        if to == "arrayrecord":
            _write_array_record(file, _count(read_payloads(job, manifest), job, progress))
        else:
            write = webdataset.write_webdataset if to == "webdataset" else parquet.write_parquet
            write(file, _count(read_samples(job, manifest), job, progress), manifest)
        return file.tell()


def _count(records: Iterable[Record], job: ShardJob, progress: Tally) -> Iterator[Record]:
    """Yields the records of a shard, and counts them as progress."""
    for done, record in enumerate(records, 1):
        yield record
        progress.step(job.num_bytes * done // len(job.rows), done)


def _write_array_record(file: IO[bytes], payloads: Iterable[bytes]) -> None:
    """Writes an ArrayRecord file in which each record can be read alone. Its library writes to a local path only."""
    from array_record.python import array_record_module

    with tempfile.NamedTemporaryFile() as made:
        writer = array_record_module.ArrayRecordWriter(made.name, "group_size:1")
        try:
            for payload in payloads:
                writer.write(payload)
        finally:
            writer.close()
        shutil.copyfileobj(made, file)
