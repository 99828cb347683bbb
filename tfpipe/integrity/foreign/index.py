"""Makes a dataset of TFRecords that another program wrote: reads them once, and describes them as they are."""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from tfpipe._version import __version__
from tfpipe.dataset.find_files import describe_missing_files, find_files, group_by_split
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names, manifest_json
from tfpipe.format.compressed import detect_compression
from tfpipe.format.example import Feature
from tfpipe.format.manifest import Compression, Foreign, Manifest, ShardInfo, SplitInfo, get_images_shape
from tfpipe.format.recovery.hashed_reader import HashedReader
from tfpipe.format.schema import Schema
from tfpipe.format.shard_stats import SideStats, merge_stats, sort_counts
from tfpipe.format.tensors.tensor_stats import TensorStats
from tfpipe.format.tfrecord import HEADER_BYTES
from tfpipe.integrity.check_file import FileJob
from tfpipe.integrity.foreign import infer_schema
from tfpipe.integrity.foreign.infer_schema import LabelBase
from tfpipe.integrity.foreign.metadata_files import Metadata, read_metadata
from tfpipe.integrity.foreign.scan_file import OTHER, FileScan, Keys, read_records, scan_file
from tfpipe.integrity.progress import run_on_files
from tfpipe.storage import file_io
from tfpipe.system.host_limits import usable_cpus
from tfpipe.system.options import Choice, Unchecked, check_options, option
from tfpipe.system.process_pool import WorkerPool
from tfpipe.system.progress import Observer

WORKERS = WorkerPool(
    preload=["tfpipe.integrity.foreign.scan_file"],
    death="A worker process died: it was killed, memory ran out, or a library crashed on its input. Nothing was "
    "written; run the same command again.",
)
_PROBED = 16  # records of a file that are searched for values of the tensors that the user named
_ALONE_BYTES = 64 << 20  # less data is read faster than worker processes start


@dataclass(frozen=True)
class IndexConfig:
    """The options of `index`.

    Attributes:
        target: A directory, a file, or a pattern such as `/data/train-*`. Required.
        output: The folder for manifest.json and index. None: beside the files. Default: None.
        split: The split of all files. None: taken from each file's name. Default: None.
        image_key: The feature that holds the image, or one list of images; or several features with an image each, of
            which a batch then holds all. Empty: found by name and content; records need none. Default: ().
        label_key: The feature that holds the class, or a float as a value of each batch. None: found by name.
            Default: None.
        tensors: A feature that is a tensor, raw bytes or a list of float32, int64 or bytes, such as
            elevation=float32[64,64]. The sizes are numbers, or `?` for an axis that differs between records and comes
            first; or the shape is the name of the feature that holds it, as in image/encoded=uint8[image/shape].
            Default: ().
        label_base: The number that the files store for the first class; the pipeline counts from 0. "auto": found by
            TFDS's metadata, the list of names, or the smallest label. "auto", "0" or "1". Default: "auto".

    Raises:
        ConfigError: A value cannot be used.
    """

    target: str
    output: str | None = option(Unchecked(), None, metavar="DIR")
    split: str | None = option(Unchecked(), None, metavar="NAME")
    image_key: str | Sequence[str] = option(Unchecked(), (), metavar="KEY")
    label_key: str | None = option(Unchecked(), None, metavar="KEY")
    tensors: Sequence[str] = option(Unchecked(), (), flag="--tensor", metavar="NAME=DTYPE[SHAPE]")
    label_base: LabelBase = option(Choice(get_args(LabelBase)), "auto")

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class IndexReport:
    """The result of `index`."""

    directory: str
    manifest: Manifest
    notes: tuple[str, ...] = ()  # sentences that the user should read


def index(options: IndexConfig, observer: Observer | None = None) -> IndexReport:
    """Describes foreign TFRecords by indexes and a manifest, which are written if all files can be described."""
    file_io.check_stores([options.target, options.output or options.target])
    root, names = find_files(options.target)
    metadata = read_metadata(root)
    splits = group_by_split(root, names, metadata.file_splits, options.split)
    metadata.notes += describe_missing_files(names)
    directory = options.output or root
    with _open_output(directory) as old:
        paths = [file_io.join(root, name) for name in names]
        heads = dict(zip(paths, file_io.read_starts(paths, HEADER_BYTES), strict=True))
        by_kind = {detect_compression(head): path for path, head in heads.items() if head}
        if len(by_kind) > 1:
            examples = ", ".join(f"{path} is {kind or 'not'}" for kind, path in sorted(by_kind.items()))
            raise ConfigError(f"All files of a dataset must be compressed in one way: {examples}. Index them apart.")
        compression: Compression = next(iter(by_kind), "")
        first, widths = _read_first(heads, compression, options.tensors)
        tensors = infer_schema.find_tensors(options.tensors, first, widths)
        images = (options.image_key,) if isinstance(options.image_key, str) else tuple(options.image_key)
        keys = infer_schema.choose_keys(first, Keys(images, options.label_key, tensors=tensors), metadata)
        jobs = [
            FileJob(file_io.join(root, name), name, split, compression=compression)
            for split, of_split in splits.items()
            for name in of_split
        ]
        sizes = file_io.get_sizes([job.path for job in jobs])
        workers = 0 if min(usable_cpus(), len(jobs)) < 2 or sum(sizes) < _ALONE_BYTES else None
        sized = list(zip(jobs, sizes, strict=True))
        scans = run_on_files(WORKERS, scan_file, sized, (keys,), workers=workers, observer=observer)
        manifest = replace(_describe(options, root, metadata, keys, scans), directory=directory)
        _commit(old, manifest, scans if manifest.random_access else [])
    return IndexReport(directory, manifest, tuple(metadata.notes))


def _read_first(
    heads: Mapping[str, bytes], compression: Compression, tensors: Sequence[str]
) -> tuple[dict[str, Feature], dict[str, int]]:
    """Reads the first record. With `tensors`, features that are empty in it are filled from the records after it."""
    features: dict[str, Feature] = {}
    widths: dict[str, int] = {}
    for path in (path for path, head in heads.items() if head):
        with file_io.explain_reading(path), file_io.open_file(path) as file:
            records = read_records(path, HashedReader(file), compression)
            found = None
            for _, found, of_record, *_ in itertools.islice(records, _PROBED if tensors else 1):
                for key, value in found.items():
                    if (known := features.get(key)) is None or not len(known):
                        features[key] = value
                widths |= of_record
            if found is not None:
                return features, widths
    path, more = next(iter(heads)), len(heads) - 1
    raise DataError(f"There is no record in {path}{f' and {more:,} more files' if more else ''}.")


def _describe(options: IndexConfig, root: str, metadata: Metadata, keys: Keys, scans: Sequence[FileScan]) -> Manifest:
    """Makes the manifest from the scans of all files, and adds notes to those of `metadata`."""
    total, notes = FileScan(), metadata.notes
    for scan in scans:
        total.merge(scan)
    schema = infer_schema.infer_schema(total, keys, notes)
    infer_schema.check_images(schema, total, keys, root)
    label_key, label_base, names = infer_schema.infer_labels(schema, total, keys, options.label_base, metadata)
    if label_key is None and options.label_key is not None:
        raise DataError(f"{options.label_key!r} holds no labels. {notes[-1]} Leave `label_key` out.")
    for scan in scans:
        expected = metadata.file_records.get(os.path.basename(scan.job.name), scan.records)
        if expected != scan.records:
            notes.append(f"{scan.job.name} has {scan.records:,} records, but dataset_info.json says {expected:,}.")
    others = {kind: count for kind, count in total.stats.formats.items() if kind not in ("JPEG", "PNG", "GIF", "BMP")}
    if junk := others.pop(OTHER, 0):
        notes.append(f"{junk:,} values are not images, but empty, damaged or other bytes: `tfpipe verify` lists them.")
    if others:
        listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(others.items()))
        notes.append(f"{sum(others.values()):,} images have formats that TensorFlow does not decode: {listed}.")
    is_beside = file_io.resolve_links(options.output or root) == file_io.resolve_links(root)
    is_packed = scans[0].job.compression and all(scan.index is not None for scan in scans)
    splits = dict[str, SplitInfo]()
    for name in dict.fromkeys(scan.job.split for scan in scans):
        splits[name] = _make_split([scan for scan in scans if scan.job.split == name], schema, keys, names, label_base)
    return Manifest(
        name=metadata.name or os.path.basename(root) or "dataset",
        splits=splits if is_packed else {name: replace(split, unpacked_bytes=0) for name, split in splits.items()},
        label_names=names,
        schema=schema,
        noticed=sort_counts(total.stats.noticed),
        fingerprint=hashlib.sha256(b"".join(scan.sha256.encode() for scan in scans)).hexdigest(),
        tool_version=__version__,
        foreign=Foreign(
            root="." if is_beside else root,
            image_key=next(iter(keys.images), None),
            label_key=label_key,
            label_base=label_base,
            compression=scans[0].job.compression,
            more_images=keys.images[1:],
        ),
    )


def _make_split(
    scans: Sequence[FileScan], schema: Schema, keys: Keys, names: Sequence[str], label_base: int
) -> SplitInfo:
    shards = [ShardInfo(scan.job.name, scan.records, scan.file_bytes, scan.sha256) for scan in scans]
    stats = merge_stats(scan.stats for scan in scans)
    if get_images_shape(schema, keys.images) == ():
        stats.per_record = SideStats()
    stats.tensors = {spec.name: stats.tensors.get(spec.name, TensorStats()) for spec in schema.tensors}
    for spec in schema.tensors:
        assert spec.tensor is not None
        stats.tensors[spec.name].forget_sizes(spec.tensor.num_unknown)
    info = stats.to_split_info(scans[0].job.split, shards, len(names), label_base)
    return replace(info, unpacked_bytes=sum(scan.unpacked_bytes for scan in scans))


@contextlib.contextmanager
def _open_output(directory: str) -> Iterator[Manifest | None]:
    """Makes the output directory, yields its earlier manifest or None, and removes the working files at the end."""
    file_io.refuse_links(directory, (file_names.INDEX_WORK_DIR, file_names.INDEX_DIR))
    old, work = _old_manifest(directory), file_io.join(directory, file_names.INDEX_WORK_DIR)
    is_new = not file_io.is_url(directory) and not os.path.isdir(directory)
    with file_io.explain_os_errors(f"write to {directory}", otherwise="Choose another place with `output`."):
        file_io.remove_tree(work)
        file_io.make_folder(work)
        try:
            yield old
        finally:
            file_io.remove_tree(work)
            if is_new:
                with contextlib.suppress(OSError):
                    os.rmdir(directory)  # removes it only if it is empty


def _commit(old: Manifest | None, manifest: Manifest, scans: Sequence[FileScan]) -> None:
    """Writes the indexes of scanned files, and the manifest."""
    directory, text = manifest.directory, manifest_json.dumps(manifest).encode()
    names = {scan.job.name for scan in scans}
    if old is not None:
        if manifest_json.dumps(old).encode() != text:  # after a crash the old manifest must not lie beside new indexes
            file_io.remove(file_io.join(directory, file_names.MANIFEST))
        for name in {shard.file for split in old.splits.values() for shard in split.shards} - names:
            file_io.remove(file_io.join(directory, file_names.index_name(name)))
    files = [(file_names.index_name(scan.job.name), scan.index) for scan in scans]
    temporary = file_io.join(directory, file_names.INDEX_WORK_DIR, "file")
    for name, data in (*files, (file_names.MANIFEST, text)):
        file_io.write_file(file_io.join(directory, name), data or b"", temporary, makes_folders=True)


def _old_manifest(directory: str) -> Manifest | None:
    path = file_io.join(directory, file_names.MANIFEST)
    try:
        old = manifest_json.loads(file_io.read_bytes(path, manifest_json.MAX_BYTES).decode(), path)
    except FileNotFoundError:
        return None
    except (FormatError, UnicodeDecodeError):
        raise ConfigError(
            f"{path} is not a manifest that can be replaced. Remove it, or choose another place with `output`."
        ) from None
    if old.foreign is None:
        raise ConfigError(
            f"{directory} is a dataset that `tfpipe shard` wrote, and it has an index already: {file_names.INDEX_DIR}/ "
            "has the form that DALI and the package tfrecord read."
        )
    return replace(old, directory=directory)
