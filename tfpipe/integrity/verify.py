"""Checks every byte of a dataset, or of TFRecord files from any program."""

import glob
import importlib.util
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tfpipe.dataset.dataset_files import list_unnamed, load_column, load_own_manifest
from tfpipe.dataset.history import History
from tfpipe.dataset.load import split_address
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, tfds_metadata
from tfpipe.format.catalog import Entry
from tfpipe.format.digest_groups import equal_rows
from tfpipe.format.manifest import Manifest
from tfpipe.integrity.check_file import FileJob, FileReport, check_file
from tfpipe.integrity.check_record import ContentCheck
from tfpipe.integrity.damage_kinds import Damage, Kind
from tfpipe.integrity.progress import run_on_files
from tfpipe.storage import file_io
from tfpipe.system.options import Count, Flag, check_options, option
from tfpipe.system.process_pool import WorkerPool
from tfpipe.system.progress import Observer
from tfpipe.system.units import human_count
from tfpipe.writer.record_info import RecordInfo
from tfpipe.writer.write import WriteFolder

WORKERS = WorkerPool(
    preload=["tfpipe.integrity.check_file"],
    death="A worker process died: it was killed, memory ran out, or a library crashed on its input. Try again with "
    "`workers` 1, which needs the least memory, or with `quick`, which decodes nothing.",
)


@dataclass(frozen=True)
class VerifyConfig:
    """The options of `verify`.

    Attributes:
        quick: Whether to check the framing, the checksums and the manifest only. Then no Example is parsed and no
            image is decoded. Default: False.
        allow_duplicates: Whether an image may be in two splits. Default: False.
        workers: The number of worker processes. 0: this process reads the files. None: one for each core. At least 0.
            Default: None.

    Raises:
        ConfigError: A value cannot be used.
    """

    quick: bool = option(Flag(), False)
    allow_duplicates: bool = option(Flag(), False)
    workers: int | None = option(Count(0), None)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass
class VerifyReport:
    """The result of a verification."""

    files: int = 0
    records: int = 0  # the intact ones, by the checks that were made
    bytes: int = 0
    damaged: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # sentences about files that are intact
    checked: list[FileReport] = field(default_factory=list, repr=False, compare=False)  # of each shard, also of layers


def verify(target: str, options: VerifyConfig, observer: Observer | None = None) -> VerifyReport:
    """Checks a whole dataset, a file, or the files that match a pattern such as `/data/train-*`."""
    file_io.check_stores([target])
    report, listing = VerifyReport(), list_files(target)
    manifest: Manifest | None = None
    content: ContentCheck | None = ContentCheck()
    if listing is None:
        jobs = _foreign_jobs(target)
    elif file_names.OPAQUE in listing and file_names.MANIFEST not in listing:
        content = None
        jobs = [FileJob(file_io.join(target, name), name) for name in sorted(listing) if ".tfrecord" in name]
    else:
        try:
            found = load_own_manifest(target)
            content, manifest = ContentCheck.from_manifest(found), found
        except (FormatError, DataError) as error:  # a damage if there are shards
            if not shard_files(listing):
                raise
            report.damaged.append(Damage(file_names.MANIFEST, "manifest", str(error).rstrip(".")))
        jobs = dataset_jobs(target, manifest) if manifest is not None else _nameless_jobs(target, listing)
    shared = (None if options.quick else content,)
    sized = measure(jobs, target, listing)
    reports = run_on_files(WORKERS, check_file, sized, shared, workers=options.workers, observer=observer)
    report.files, report.records = len(jobs), sum(file.records for file in reports)
    report.bytes = sum(file.bytes for file in reports)
    report.checked += reports
    _add_damages(report, of_others=listing is None)
    if manifest is None or listing is None:
        return report
    # A column has no layers, columns or views of its own.
    history = None if manifest.stands_on else _check_changes(manifest, listing, options, report, observer)
    report.damaged += _find_extra_and_missing(listing, manifest)
    if not options.quick:
        report.damaged += [*_check_info(target, listing, manifest), *_check_counts(manifest, reports)]
        shown = report.checked if history is None else _leave_out_hidden(report.checked, history)
        report.damaged += [] if options.allow_duplicates else _find_duplicates(shown)
    return report


def _add_damages(report: VerifyReport, of_others: bool) -> None:
    """Adds the damage of all files. If no record of another program's file is an Example, adds a note instead."""
    no_examples = []
    for file in report.checked:
        rest = [damage for damage in file.damaged if damage.kind != "example"]
        is_whole = of_others and 0 < file.records == len(file.damaged) - len(rest)
        no_examples += [file.job.name] if is_whole else []
        report.damaged += rest if is_whole else file.damaged
    if no_examples:
        more = len(no_examples) - 1
        hold = f"and {human_count(more, 'more file')} hold" if more else "holds"
        report.notes.append(
            f"{no_examples[0]} {hold} no tf.train.Examples, so only the frames and the checksums are checked. "
            "`tfpipe reshard --opaque` shuffles records of any content."
        )


def dataset_jobs(directory: str, manifest: Manifest) -> list[FileJob]:
    """Returns a job for each shard, in the manifest's order."""
    root = manifest.shard_directory(directory)
    return [
        FileJob(
            path=file_io.join(root, shard.file),
            name=shard.file,
            split=name,
            shard=shard,
            index=file_io.join(directory, file_names.index_name(shard.file)) if manifest.random_access else None,
            compression=manifest.compression,
            seekable=split.seekable,
        )
        for name, split in manifest.splits.items()
        for shard in split.shards
    ]


def list_files(directory: str) -> dict[str, int] | None:
    """Returns the size of each file in the folders of a dataset; None if `directory` is not a directory."""
    if file_io.is_url(directory):
        return dict(file_io.list_tree(directory)) or None
    if not os.path.isdir(directory):
        return None
    folders = ("", file_names.INDEX_DIR, file_names.QUARANTINE_DIR)
    found = {folder: file_io.list_names(os.path.join(directory, folder)) for folder in folders}
    names = (os.path.join(folder, name) for folder in folders for name in found[folder])
    return {name: max(0, file_io.get_size(os.path.join(directory, name))) for name in names}


def shard_files(listing: Mapping[str, int]) -> list[str]:
    """Returns the files that are named like shards, sorted."""
    return sorted(filter(file_names.is_shard_name, listing))


def measure(jobs: Sequence[FileJob], directory: str, listing: Mapping[str, int] | None) -> list[tuple[FileJob, int]]:
    """Returns the jobs, each with the bytes of its file, and 0 for one that cannot be read."""
    if listing is not None and all(job.path == file_io.join(directory, job.name) for job in jobs):
        return [(job, listing.get(job.name, 0)) for job in jobs]
    return [(job, max(0, size)) for job, size in zip(jobs, file_io.get_sizes([job.path for job in jobs]), strict=True)]


def _nameless_jobs(directory: str, listing: Mapping[str, int]) -> list[FileJob]:
    """Returns a job for each shard of a directory without a manifest, with its index if it has one."""
    indexes = {name: file_names.index_name(name) for name in shard_files(listing)}
    paths = {name: file_io.join(directory, index) for name, index in indexes.items() if index in listing}
    return [FileJob(file_io.join(directory, name), name, index=paths.get(name)) for name in indexes]


def _foreign_jobs(target: str) -> list[FileJob]:
    paths = [target] if os.path.lexists(target) else file_names.leave_out_sidecars(file_io.find(target), target)
    if not paths:
        directory, view = split_address(target)
        if view and os.path.isdir(directory):
            raise ConfigError(f"All records are checked, with all views of them, got {target!r}. Give {directory}.")
        what = "No file fits" if glob.has_magic(target) else "There is no"
        raise DataError(
            f"{what} {target}. Give the directory of a dataset, a file, or a pattern such as /data/train-*."
        )
    return [FileJob(path, path) for path in paths]


def _find_extra_and_missing(listing: Mapping[str, int], manifest: Manifest) -> Iterator[Damage]:
    """Yields a damage for each unknown or missing file. Any file may lie beside another program's shards."""
    if manifest.foreign is not None:
        return
    shards = {shard.file for split in manifest.splits.values() for shard in split.shards}
    for name in shard_files(listing):
        if name not in shards:
            yield Damage(name, "extra", "the manifest knows no such shard")
    indexes = {of(name) for name in shards for of in (file_names.index_name, file_names.info_name)}
    for name in sorted(listing):
        if name.startswith(f"{file_names.INDEX_DIR}/") and name.endswith((".idx", ".parquet")) and name not in indexes:
            yield Damage(name, "extra", "the manifest knows no such index")
    tfds = [file_names.TFDS_INFO, file_names.TFDS_FEATURES] if tfds_metadata.can_represent(manifest) else []
    for name in (*tfds, *manifest.promised_lists):
        if name not in listing:
            yield Damage(name, "missing", "the file is missing")


def _check_info(target: str, listing: Mapping[str, int], manifest: Manifest) -> Iterator[Damage]:
    """Yields the damaged Parquet files of record info. They are checked only with PyArrow, which reads them."""
    if importlib.util.find_spec("pyarrow") is None:
        return
    info = RecordInfo(manifest)
    for shard in (shard for split in manifest.splits.values() for shard in split.shards):
        name = file_names.info_name(shard.file)
        if name in listing:
            fault = info.find_fault(file_io.read_whole(file_io.join(target, name)), shard.sha256, shard.records)
            if fault:
                yield Damage(name, "info", fault.rstrip("."))


def _check_changes(
    manifest: Manifest,
    listing: Mapping[str, int],
    options: VerifyConfig,
    report: VerifyReport,
    observer: Observer | None,
) -> History | None:
    """Checks the layers, columns and views of the catalog, and returns its layers; None if they cannot be used."""
    try:
        history = History.read(manifest)
    except (FormatError, DataError) as error:
        report.damaged.append(Damage(file_names.CATALOG, "layer", str(error).rstrip(".")))
        return None
    catalog = history.catalog
    for path in list_unnamed(manifest.directory, catalog, listing):
        if not path.endswith(WriteFolder.ending):
            reason = f"the {file_names.CATALOG} does not name it: a change left it unfinished"
            report.damaged.append(Damage(path, "extra", reason))
    folders = [entry for entry in catalog.entries if entry.kind in ("append", "column")]
    for entry in folders:
        _check_folder(history, entry, replace(options, allow_duplicates=True), report, observer)
    try:
        for layer in catalog.layers:
            history.check(layer)
            history.load_state(layer.number, layer.number, with_columns=False)
    except (FormatError, DataError) as error:
        report.damaged.append(Damage(file_names.LAYERS_DIR, "layer", str(error).rstrip(".")))
        return None
    try:
        history.load()
    except (FormatError, DataError) as error:
        if not any(damage.kind == "column" for damage in report.damaged):  # its text says more
            report.damaged.append(Damage(file_names.COLUMNS_DIR, "column", str(error).rstrip(".")))
    for entry in (entry for entry in catalog.entries if entry.kind == "view"):
        try:
            history.load(entry.name, with_columns=False)
        except (ConfigError, FormatError) as error:
            report.damaged.append(Damage(entry.path, "view", str(error).rstrip(".")))
        except DataError:  # somebody removed the view
            continue
    return history


def _check_folder(
    history: History, entry: Entry, options: VerifyConfig, report: VerifyReport, observer: Observer | None
) -> None:
    """Checks appended records or a column as a dataset of its own, and adds the result to the report."""
    path = file_io.join(history.base.directory, entry.path)
    try:
        if entry.kind == "column":
            records = history.base if entry.number == 1 else history.load_appended(entry.number)
            if load_column(records, entry, history.base.directory) is None:
                return
        found = verify(path, options, observer)
    except (FormatError, DataError) as error:
        kind: Kind = "column" if entry.kind == "column" else "layer"
        report.damaged.append(Damage(entry.path, kind, str(error).rstrip(".")))
        return
    report.files, report.bytes = report.files + found.files, report.bytes + found.bytes
    report.damaged += [replace(damage, file=f"{entry.path}/{damage.file}") for damage in found.damaged]
    if entry.kind == "append":
        report.records += found.records
        names = (f"{entry.path}/{one.job.name}" for one in found.checked)
        renamed = zip(found.checked, names, strict=True)
        report.checked += [replace(one, job=replace(one.job, name=name)) for one, name in renamed]


def _check_counts(manifest: Manifest, reports: Sequence[FileReport]) -> Iterator[Damage]:
    """Yields the counts of classes and formats that differ from the manifest's, in splits without damaged records."""
    for name, split in manifest.splits.items():
        of_split = [report for report in reports if report.job.split == name]
        if any(damage.kind != "index" for report in of_split for damage in report.damaged):
            continue
        classes = sum((report.classes for report in of_split), Counter())
        images = sum((report.formats for report in of_split), Counter())
        compared = [(f"records of class {k}", classes[k], count) for k, count in enumerate(split.class_counts)]
        for kind in sorted(images.keys() | split.formats.keys()) if manifest.foreign is None else ():
            compared.append((f"images of format {kind}", images[kind], split.formats.get(kind, 0)))
        for what, count, expected in compared:
            if count != expected:
                text = f"split {name!r} has {count:,} {what}, the manifest says {expected:,}"
                yield Damage(file_names.MANIFEST, "count", text)


def _leave_out_hidden(reports: Iterable[FileReport], history: History) -> list[FileReport]:
    """Returns the reports of the newest layer's shards, split by split, without the hashes of deleted records."""
    by_name, shown = {report.job.name: report for report in reports}, []
    for split in history.load(with_columns=False).splits.values():
        first = 0  # no rows are listed for a split without deleted records: the manifest may count wrongly
        for shard in split.shards:
            report = by_name.get(shard.file)  # None if its layer could not be checked
            if report is not None and split.chosen is not None:
                kept = np.isin(report.positions[:, 0], split.chosen.list_rows(first, shard.records))
                report = replace(report, identities=report.identities[kept], positions=report.positions[kept])
            first += shard.records
            shown += [] if report is None else [report]
    return shown


def _find_duplicates(reports: Sequence[FileReport]) -> Iterator[Damage]:
    """Yields the images that also occur in an earlier split of the manifest. This takes 40 bytes of memory a record."""
    if not reports:
        return
    starts = np.cumsum([0, *(len(report.positions) for report in reports)])[:-1]
    for group in equal_rows(np.concatenate([report.identities for report in reports])):
        files = [int(np.searchsorted(starts, at, side="right")) - 1 for at in group]
        first = reports[files[0]]
        for at, k in zip(group, files, strict=True):
            if reports[k].job.split != first.job.split:
                number, offset = reports[k].positions[at - starts[k]].tolist()
                offset = None if reports[k].job.compression else offset
                other = int(first.positions[group[0] - starts[files[0]], 0])
                text = f"it is record {other} of {first.job.name} too, in split {first.job.split!r}"
                yield Damage(reports[k].job.name, "duplicate", text, number, offset)
