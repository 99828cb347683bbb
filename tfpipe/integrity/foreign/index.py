"""TFRecords that something else wrote become a dataset: they are read once, described, and left as they are.

Every file is read from end to end: the manifest vouches for its SHA-256, for every checksum, for the labels and for the
form of the images, and none of that is to be had from headers alone.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from tfpipe._version import __version__
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format.compressed import detect_compression, scan_compressed
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import Compression, Duplicates, Foreign, Manifest, ShardInfo, SplitInfo
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.shard_stats import merge_stats, sort_counts
from tfpipe.format.tfrecord import HEADER_BYTES
from tfpipe.integrity.foreign import infer_schema
from tfpipe.integrity.foreign.find_files import ForeignFiles, describe_missing_files, find_files, group_by_split
from tfpipe.integrity.foreign.infer_schema import LabelBase, Labels
from tfpipe.integrity.foreign.metadata_files import Metadata, read_metadata
from tfpipe.integrity.foreign.scan_file import Keys, Survey, SurveyJob, damaged, records_of, survey_file
from tfpipe.integrity.foreign.write_index import Export, IndexOutput, open_output
from tfpipe.integrity.progress import shared_counters
from tfpipe.system import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.process_pool import Workers
from tfpipe.system.progress import Observer

WORKERS = Workers(
    preload=["tfpipe.integrity.foreign.scan_file"],
    death="A worker process died: it was killed, memory ran out, or a library crashed on what it was given. Nothing "
    "was written; run the same command again.",
)

_ALONE_BYTES = 64 << 20  # what is smaller is read before worker processes have started


@dataclass(frozen=True)
class IndexOptions:
    """What to index, and what is known of it.

    Attributes:
      target: A directory, a file, or a pattern such as `/data/train-*`.
      output: Directory for manifest and indexes; None: that of the files.
      split: Of all files; None: by their names.
      image_key: The feature that holds the image; None: found by name and content.
      label_key: The feature that holds the class; None: found by name.
      label_base: What is stored for class 0: "0", "1", or "auto", by the smallest label.
      export: Of which readers the index files are written, too.
    """

    target: str
    output: str | None = None
    split: str | None = None
    image_key: str | None = None
    label_key: str | None = None
    label_base: LabelBase = "auto"
    export: tuple[Export, ...] = ()

    def __post_init__(self) -> None:
        """Checks the choices."""
        if self.label_base not in get_args(LabelBase):
            raise ConfigError(f"`label_base` must be auto, 0 or 1, got {self.label_base!r}.")
        if unknown := set(self.export) - set(get_args(Export)):
            raise ConfigError(f"`export` must be of {' and '.join(get_args(Export))}, got {sorted(unknown)}.")


@dataclass(frozen=True)
class IndexReport:
    """What was written, and what somebody should know about it."""

    directory: str
    """Where the manifest lies."""
    manifest: Manifest
    notes: tuple[str, ...] = field(default=())
    """Sentences."""


def index(options: IndexOptions, observer: Observer | None = None) -> IndexReport:
    """Describes foreign TFRecords by a manifest, and by an index of every file that is not compressed.

    Nothing is written unless all of it can be, and the manifest comes last. One of an earlier call is replaced.

    Args:
      options: What to index.
      observer: The object that is told how far it is.

    Raises:
      ConfigError: An option cannot be used, or tfpipe itself wrote the dataset.
      DataError: There are no records, a file cannot be read, or the output not be written.
      FormatError: A file is damaged; with record and byte.
    """
    files = find_files(options.target)
    told = read_metadata(files.root)
    splits = group_by_split(files, told.file_splits, options.split)
    notes = [*told.notes, *describe_missing_files(files.names)]
    with open_output(options.output or files.root, options.export) as output:
        heads = {name: file_io.read_start(files.path(name), HEADER_BYTES) for name in files.names}
        compression = _compression(files, heads)
        _check_export(options, compression)
        first = _first_record(files, [name for name in files.names if heads[name]], compression)
        asked = Keys(options.image_key or "", options.label_key)
        keys = infer_schema.choose_keys(first, asked, told)
        jobs = [
            SurveyJob(files.path(name), name, split, compression, output.pending_index(name))
            for split, names in splits.items()
            for name in names
        ]
        surveys = _survey_all(keys, jobs, observer or Observer())
        manifest = _manifest(_Found(options, files, told, keys, jobs, surveys, compression), output, notes)
        output.commit(manifest)
    return IndexReport(output.directory, manifest, tuple(notes))


def _compression(files: ForeignFiles, heads: Mapping[str, bytes]) -> Compression:
    by_kind = {detect_compression(head): name for name, head in heads.items() if head}
    if len(by_kind) > 1:
        found = ", ".join(f"{files.path(name)} is {kind or 'not'}" for kind, name in sorted(by_kind.items()))
        raise ConfigError(f"All files of a dataset must be compressed in one way: {found}. Index them apart.")
    return next(iter(by_kind), "")


def _check_export(options: IndexOptions, compression: Compression) -> None:
    if options.export and compression:
        raise ConfigError(
            f"`export` needs files in which records can be found by their place, and these are {compression} "
            "compressed. Leave it out."
        )


def _first_record(files: ForeignFiles, names: Sequence[str], compression: Compression) -> dict[str, Feature]:
    """The features of the first record of all."""
    for name in names:
        path = files.path(name)
        try:
            with file_io.open_file(path) as file:
                if compression:
                    payload = next(scan_compressed(file, compression), None)
                else:
                    reader = HashedReader(file)
                    place = next(records_of(reader), None)
                    payload = None if place is None else reader.payload(*place)
            if payload is not None:
                return decode_example(payload)
        except FormatError as error:
            raise FormatError(damaged(path, str(error))) from None
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    more = len(files.names) - 1
    raise DataError(f"There is no record in {files.path(files.names[0])}{f' and {more:,} more files' if more else ''}.")


def _survey_all(keys: Keys, jobs: Sequence[SurveyJob], observer: Observer) -> list[Survey]:
    """One of each file, in their order; whatever is damaged ends it at once."""
    sizes = [file_io.total_bytes([job.path]) for job in jobs]
    workers = min(usable_cpus(), len(jobs))
    with shared_counters(sum(sizes), observer) as counters:
        if workers < 2 or sum(sizes) < _ALONE_BYTES:
            return [survey_file(keys, counters, job) for job in jobs]
        # The largest first, so that the last to finish is a small one.
        order = sorted(range(len(jobs)), key=lambda k: -sizes[k])
        numbered = ((k, jobs[k]) for k in order)
        found = dict(WORKERS.map_unordered(_numbered, numbered, workers, shared=(keys, counters)))
    return [found[k] for k in range(len(jobs))]


def _numbered(keys: Keys, counters: object, item: tuple[int, SurveyJob]) -> tuple[int, Survey]:
    return item[0], survey_file(keys, counters, item[1])


@dataclass(frozen=True)
class _Found:
    """All that a manifest is made of."""

    options: IndexOptions
    files: ForeignFiles
    told: Metadata
    keys: Keys
    jobs: Sequence[SurveyJob]
    surveys: Sequence[Survey]
    compression: Compression

    def of(self, split: str) -> Iterator[tuple[SurveyJob, Survey]]:
        """The files of a split."""
        return ((job, survey) for job, survey in zip(self.jobs, self.surveys, strict=True) if job.split == split)


def _manifest(found: _Found, output: IndexOutput, notes: list[str]) -> Manifest:
    seen, keys, options = Survey(), found.keys, found.options
    for survey in found.surveys:
        seen.merge(survey)
    schema = infer_schema.infer_schema(seen, notes)
    infer_schema.check_images(schema, keys.image, seen.records)
    labels = infer_schema.infer_labels(schema, seen, keys, options.label_base, found.told, notes)
    if labels.key is None and options.label_key is not None:
        raise DataError(f"{options.label_key!r} holds no labels. {notes[-1]} Leave `label_key` out.")
    notes += _unlike_told(found)
    formats = seen.stats.formats
    if other := sum(count for kind, count in formats.items() if kind not in ("JPEG", "PNG", "GIF", "BMP")):
        notes.append(f"{other:,} images are of formats that TensorFlow does not decode: {_counted(formats)}.")
    splits = {split: _split(found, split, labels) for split in dict.fromkeys(job.split for job in found.jobs)}
    digest = hashlib.sha256(b"".join(survey.sha256.encode() for survey in found.surveys))
    return Manifest(
        name=found.told.name or os.path.basename(found.files.root) or "dataset",
        splits=splits,
        label_names=labels.names,
        schema=schema,
        seed=0,
        changed={},
        noticed=sort_counts(seen.stats.noticed),
        skipped={},
        quarantined=0,
        duplicates=Duplicates({}, 0, 0),
        image={},
        fingerprint=digest.hexdigest(),
        tool_version=__version__,
        foreign=Foreign(output.get_root(found.files), keys.image, labels.key, labels.base, found.compression),
        directory=output.directory,
    )


def _split(found: _Found, split: str, labels: Labels) -> SplitInfo:
    files = list(found.of(split))
    shards = [ShardInfo(job.name, survey.records, survey.file_bytes, survey.sha256) for job, survey in files]
    num_classes = len(labels.names) if labels.key is not None else 0
    stats = merge_stats(survey.stats for _, survey in files)
    return stats.to_split_info(split, shards, num_classes, labels.base)


def _unlike_told(found: _Found) -> Iterator[str]:
    """Where TFDS' own count is another one."""
    for job, survey in zip(found.jobs, found.surveys, strict=True):
        told = found.told.file_records.get(os.path.basename(job.name))
        if told is not None and told != survey.records:
            yield f"{job.name} has {survey.records:,} records where dataset_info.json says {told:,}."


def _counted(formats: Counter[str]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(formats.items()))
