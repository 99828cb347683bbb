"""Whether every byte of a dataset, or of TFRecord files from anywhere, is what it must be."""

import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.digest_groups import equal_rows
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest, SplitInfo
from tfpipe.integrity.check_file import FileJob, FileReport, check_file
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.damage_kinds import Damage
from tfpipe.integrity.progress import shared_counters
from tfpipe.open_dataset import check_local, load_manifest
from tfpipe.system import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.process_pool import Workers
from tfpipe.system.progress import Observer

WORKERS = Workers(
    preload=["tfpipe.integrity.check_file"],
    death="A worker process died: it was killed, memory ran out, or a library crashed on what it was given. Try again "
    "with `workers` 1, which needs the least memory, or with `quick`, which decodes nothing.",
)


@dataclass(frozen=True)
class VerifyOptions:
    """What to look at.

    Attributes:
      quick: Framing, checksums and the manifest only; no Example is parsed and no image decoded.
      allow_duplicates: An image in two splits is no fault.
      workers: Processes; None: one a core; 0: none, the files are read in this process.
    """

    quick: bool = False
    allow_duplicates: bool = False
    workers: int | None = None


@dataclass
class VerifyReport:
    """What was found."""

    files: int = 0
    records: int = 0
    """Intact ones, as far as they were looked at."""
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)


def verify(target: str, options: VerifyOptions, observer: Observer | None = None) -> VerifyReport:
    """Looks at all of a dataset, or of the files that a pattern names.

    Args:
      target: A dataset's directory, a file, or a pattern such as `/data/train-*`.
      options: What to look at.
      observer: The object that is told how far it is.

    Raises:
      ConfigError: `target` is a URL.
      DataError: There is nothing to look at, or a worker process died.
    """
    check_local(target)
    report = VerifyReport()
    if os.path.isdir(target):
        manifest = _open_manifest(target, report)
        jobs = dataset_jobs(target, manifest) if manifest is not None else _nameless_jobs(target)
        content = ContentCheck() if manifest is None else _content(manifest, report)
    else:
        manifest, jobs, content = None, _foreign_jobs(target), ContentCheck()
    reports = list(_check_all(jobs, None if options.quick else content, options.workers, observer or Observer()))
    report.files, report.records = len(jobs), sum(one.records for one in reports)
    report.bytes = sum(one.bytes for one in reports)
    for one in reports:
        report.damaged += one.damaged
    if manifest is not None:
        report.damaged += _strangers(target, manifest)
        if not options.quick:
            report.damaged += _counts(manifest, reports)
            report.damaged += [] if options.allow_duplicates else _duplicates(reports)
    return report


def dataset_jobs(directory: str, manifest: Manifest) -> list[FileJob]:
    """One for each shard, in the manifest's order."""
    root, compression = manifest.shard_directory(directory), manifest.compression
    return [
        FileJob(
            path=os.path.join(root, shard.file),
            name=shard.file,
            split=name,
            shard=shard,
            index=None if compression else os.path.join(directory, file_names.index_name(shard.file)),
            compression=compression,
        )
        for name, split in manifest.splits.items()
        for shard in split.shards
    ]


def shard_files(directory: str) -> list[str]:
    """Names of the files in a directory that are named like shards, in their order."""
    names = sorted(os.listdir(directory))
    return [name for name in names if _is_shard(name)]


def run_jobs(
    function: Callable[..., FileReport], jobs: Sequence[FileJob], shared: tuple[object, ...], workers: int | None
) -> Iterator[FileReport]:
    """Calls `function(*shared, job)` for each job in worker processes; results come in any order."""
    count = min(usable_cpus() if workers is None else workers, len(jobs))
    if not count:
        yield from (function(*shared, job) for job in jobs)
        return
    # The largest first, so that the last to finish is a small one.
    ordered = sorted(jobs, key=lambda job: -_size(job.path))
    yield from WORKERS.map_unordered(function, ordered, count, shared=shared)


def total_bytes(jobs: Iterable[FileJob]) -> int:
    """Of all files, as far as they can be asked."""
    return sum(_size(job.path) for job in jobs)


def _check_all(
    jobs: Sequence[FileJob],
    content: ContentCheck | None,
    workers: int | None,
    observer: Observer,
) -> Iterator[FileReport]:
    """The reports in the order of the jobs."""
    order = {job.path: k for k, job in enumerate(jobs)}
    with shared_counters(total_bytes(jobs), observer) as counters:
        reports = list(run_jobs(check_file, jobs, (content, counters), workers))
    yield from sorted(reports, key=lambda report: order[report.job.path])


def _open_manifest(directory: str, report: VerifyReport) -> Manifest | None:
    """None where it cannot be used, which is damage as long as there are shards."""
    try:
        return load_manifest(directory)
    except (FormatError, DataError) as error:
        if not shard_files(directory):
            raise
        report.damaged.append(Damage(file_names.MANIFEST, "manifest", str(error).rstrip(".")))
        return None


def _content(manifest: Manifest, report: VerifyReport) -> ContentCheck:
    try:
        return ContentCheck.from_manifest(manifest)
    except FormatError as error:
        report.damaged.append(Damage(file_names.MANIFEST, "manifest", str(error).rstrip(".")))
        return ContentCheck(manifest.schema, ImageForm(), manifest.label_names, False, manifest.foreign)


def _nameless_jobs(directory: str) -> list[FileJob]:
    """Shards without a manifest, with an index where there is one."""
    jobs = []
    for name in shard_files(directory):
        index = os.path.join(directory, file_names.index_name(name))
        jobs.append(FileJob(os.path.join(directory, name), name, index=index if os.path.exists(index) else None))
    return jobs


def _foreign_jobs(target: str) -> list[FileJob]:
    paths = [target] if os.path.lexists(target) else file_io.find(target)
    if not paths:
        what = "No file fits" if glob.has_magic(target) else "There is no"
        raise DataError(
            f"{what} {target}: give the directory of a dataset, a file, or a pattern such as /data/train-*."
        )
    return [FileJob(path, path) for path in paths]


def _strangers(directory: str, manifest: Manifest) -> Iterator[Damage]:
    """Files that should be there and are not, and the other way round; beside foreign shards anything may lie."""
    if manifest.foreign is not None:
        return
    known = {shard.file for split in manifest.splits.values() for shard in split.shards}
    for name in shard_files(directory):
        if name not in known:
            yield Damage(name, "extra", "the manifest knows no such shard")
    indexes = {file_names.index_name(name) for name in known}
    folder = os.path.join(directory, file_names.INDEX_DIR)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".idx") and f"{file_names.INDEX_DIR}/{name}" not in indexes:
            yield Damage(f"{file_names.INDEX_DIR}/{name}", "extra", "the manifest knows no such index")
    duplicates = bool(manifest.duplicates.within or manifest.duplicates.across)
    promised = {file_names.TFDS_INFO: True, file_names.TFDS_FEATURES: True}
    promised |= {file_names.QUARANTINE: manifest.quarantined > 0, file_names.DUPLICATES: duplicates}
    for name, is_promised in promised.items():
        if is_promised and not os.path.exists(os.path.join(directory, name)):
            yield Damage(name, "missing", "the file is missing")


def _counts(manifest: Manifest, reports: Sequence[FileReport]) -> Iterator[Damage]:
    """Splits whose classes or formats are others than the manifest counts, where no damaged record explains it."""
    for name, split in manifest.splits.items():
        mine = [report for report in reports if report.job.split == name]
        if any(one.kind != "index" for report in mine for one in report.damaged):
            continue
        yield from _compare_counts(split, mine, formats=manifest.foreign is None)


def _compare_counts(split: SplitInfo, reports: Sequence[FileReport], formats: bool) -> Iterator[Damage]:
    classes = sum((report.classes for report in reports), Counter())
    found = sum((report.formats for report in reports), Counter())
    for k, said in enumerate(split.class_counts):
        if classes[k] != said:
            text = f"split {split.name!r} has {classes[k]:,} records of class {k}, the manifest says {said:,}"
            yield Damage(file_names.MANIFEST, "count", text)
    for kind in sorted(found.keys() | split.formats.keys()) if formats else ():
        if found[kind] != split.formats.get(kind, 0):
            said = split.formats.get(kind, 0)
            text = f"split {split.name!r} has {found[kind]:,} images of format {kind}, the manifest says {said:,}"
            yield Damage(file_names.MANIFEST, "count", text)


def _duplicates(reports: Sequence[FileReport]) -> Iterator[Damage]:
    """Images that occur in another split earlier in the manifest; 40 bytes of memory a record."""
    if not reports:
        return
    starts = np.cumsum([0, *(len(report.places) for report in reports)])[:-1]
    for group in equal_rows(np.concatenate([report.identities for report in reports])):
        files = [int(np.searchsorted(starts, at, side="right")) - 1 for at in group]
        first = reports[files[0]]
        for at, k in zip(group, files, strict=True):
            if reports[k].job.split != first.job.split:
                number, offset = reports[k].places[at - starts[k]].tolist()
                offset = None if reports[k].job.compression else offset
                other = int(first.places[group[0] - starts[files[0]], 0])
                text = f"it is record {other} of {first.job.name} too, in split {first.job.split!r}"
                yield Damage(reports[k].job.name, "duplicate", text, number, offset)


def _is_shard(name: str) -> bool:
    try:
        file_names.parse_shard_name(name)
    except FormatError:
        return False
    return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
