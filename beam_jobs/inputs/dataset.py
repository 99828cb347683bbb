"""Lists the records of finished datasets by their offsets in the shards, from the manifests and indexes alone.

Compressed foreign shards have no index: they are unpacked to find the offsets, and once more for the workers.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from beam_jobs.config import ShardConfig
from beam_jobs.inputs.archive import open_unpacked
from beam_jobs.plan.image_table import ImageTableBuilder, encode_texts, join_texts, spell
from beam_jobs.plan.listing import Listing
from beam_jobs.plan.merge_manifests import check_nan, merge_manifests
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.manifest import Compression, Manifest, ShardInfo
from tfpipe.format.record_index import decode_index, max_index_bytes
from tfpipe.format.schema import Schema, class_schema, image_schema
from tfpipe.format.tfrecord import frame_record
from tfpipe.storage import file_io
from tfpipe.system.progress import Observer

_RECORDS_AT_ONCE = 1 << 14
_READ_BYTES = 1 << 20


def list_datasets(config: ShardConfig, observer: Observer | None = None) -> Listing:
    """Lists the records of finished datasets, dataset by dataset, each in its own order."""
    datasets = _name_datasets([_open(directory) for directory in config.datasets])
    merged = merge_manifests(datasets, config.form_changes, config.drop_features)
    if config.refuse_nan:
        columns = (column for manifest in datasets.values() for column in manifest.columns)
        check_nan([*datasets.values(), *columns], merged.schema)
    builder = ImageTableBuilder(observer)
    for name, manifest in datasets.items():
        _list_records(name, manifest, builder)
    unpack = tuple(
        f"{name}/{shard.file}"
        for name, manifest in datasets.items()
        for shard in _list_shards(manifest)
        if manifest.compression and shard.records
    )
    return Listing(merged.name, "", builder.finish(), merged.label_names, unpack=unpack, merged=merged)


def _open(directory: str) -> Manifest:
    """Loads the manifest of a dataset, with absolute paths and with the features of added columns in its schema."""
    with file_io.explain_os_errors(f"read {directory}"):
        manifest = load_manifest(directory)
    if manifest.foreign is None:
        labeled = bool(manifest.label_names)
        needed = image_schema(labeled=labeled, boxes=False, box_labels=False)
        if manifest.image_key is None:
            needed = class_schema() if labeled else Schema(())
        missing = next((name for name in needed.names if name not in manifest.schema), None)
        if missing is not None:
            raise DataError(f"Every dataset that tfpipe wrote has a feature {missing!r}, but {directory} has none.")
    return replace(manifest, directory=file_io.make_absolute(manifest.directory), schema=manifest.full_schema)


def _name_datasets(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """Returns the manifests by the names of their datasets. A repeated name gets a number.

    The names leave the directories out, because the location of a dataset must not change the result.
    """
    datasets: dict[str, Manifest] = {}
    for manifest in manifests:
        first = manifest.name.replace("/", "_")  # in the path of a record, the first / ends the dataset's name
        names = chain([first], (f"{first}-{number}" for number in count(2)))
        datasets[next(name for name in names if name not in datasets)] = manifest
    return datasets


def _list_records(name: str, manifest: Manifest, builder: ImageTableBuilder) -> None:
    """Adds the records of a dataset to `builder`, several shards at once."""
    spans_of_shards = _scan_compressed(manifest) if manifest.compression else _read_indexes(manifest)
    for split in manifest.splits.values():
        (prefix,) = encode_texts([f"{name}/{split.name}:"]).to_pylist()
        files, numbers, spans, first, num_listed = list[str](), list[Any](), list[Any](), 0, 0
        for shard in split.shards:
            rows = np.arange(shard.records) if split.chosen is None else split.chosen.list_rows(first, shard.records)
            files.append(f"{name}/{shard.file}")
            numbers.append(first + rows)
            spans.append(next(spans_of_shards)[rows])
            first += shard.records
            num_listed += len(rows)
            if num_listed < _RECORDS_AT_ONCE and shard is not split.shards[-1]:
                continue
            codes, table = np.repeat(np.arange(len(files)), list(map(len, numbers))), np.concatenate(spans)
            builder.append_files(
                join_texts(prefix, spell(np.concatenate(numbers))),
                np.ascontiguousarray(table[:, 1]),
                offset=np.ascontiguousarray(table[:, 0]),
                file=(codes, files),
                split=(np.zeros(len(codes), np.int32), [split.name]),
            )
            files, numbers, spans, num_listed = [], [], [], 0


def _read_indexes(manifest: Manifest) -> Iterator[NDArray[np.int64]]:
    """Yields the index of each shard, in order. The sizes of all files are checked before the first one is read."""
    shards = _list_shards(manifest)
    indexes = [file_io.join(manifest.directory, file_names.index_name(shard.file)) for shard in shards]
    mend = _advise_mending(manifest)
    for path, shard, size in zip(indexes, shards, _check_sizes(manifest, shards, indexes), strict=True):
        if size > max_index_bytes(shard.bytes, shard.records):  # checked before anything is read
            raise FormatError(f"{path} has {size:,} bytes, too many for {shard.records:,} records. {mend}")
        with file_io.explain_os_errors(f"read {path}"):
            data = file_io.read_whole(path)
        try:
            yield decode_index(data, shard.bytes, shard.records)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None


def _scan_compressed(manifest: Manifest) -> Iterator[NDArray[np.int64]]:
    """Yields for each compressed shard the offsets and sizes of its records in the unpacked shard."""
    shards = _list_shards(manifest)
    _check_sizes(manifest, shards, [])
    for shard in shards:
        path = file_io.join(manifest.shard_directory(manifest.directory), shard.file)
        spans = [(offset, len(frame)) for offset, frame in _iterate_frames(path, manifest.compression)]
        if len(spans) != shard.records:
            raise FormatError(
                f"{path} must have {shard.records:,} records, as the manifest says, got {len(spans):,}. "
                f"{_advise_mending(manifest)}"
            )
        yield np.array(spans, np.int64).reshape(-1, 2)


def unpack(listing: Listing, location: str, out: IO[bytes]) -> None:
    """Writes a compressed tar or shard in its unpacked form, in which the offsets of the listing are valid."""
    if listing.datasets is None:
        with open_unpacked(file_io.join(listing.root, location)) as tar:
            shutil.copyfileobj(tar, out, _READ_BYTES)
        return
    source, shard = listing.datasets.locate(location)
    assert source.foreign is not None
    for _, frame in _iterate_frames(file_io.join(source.directory, shard), source.foreign.compression):
        out.write(frame)


def _iterate_frames(path: str, compression: Compression) -> Iterator[tuple[int, bytes]]:
    """Yields every record of a compressed TFRecord file: its offset in the unpacked file, and its framed bytes."""
    offset = 0
    with file_io.explain_os_errors(f"read {path}"), file_io.open_read(path) as file:
        try:
            for payload in scan_compressed(file, compression):
                frame = frame_record(payload)
                yield offset, frame
                offset += len(frame)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None


def _list_shards(manifest: Manifest) -> list[ShardInfo]:
    return [shard for split in manifest.splits.values() for shard in split.shards]


def _advise_mending(manifest: Manifest) -> str:
    if manifest.foreign is not None:
        return "If it was changed on purpose, run `tfpipe index` again."
    return f"Copy the dataset again, or save the undamaged records: tfpipe repair {manifest.directory} OUTPUT"


def _check_sizes(manifest: Manifest, shards: Sequence[ShardInfo], indexes: Sequence[str]) -> Sequence[int]:
    """Checks that all shards and indexes exist, and the sizes of shards; returns the sizes of indexes."""
    root, mend = manifest.shard_directory(manifest.directory), _advise_mending(manifest)
    paths = [file_io.join(root, shard.file) for shard in shards]
    sizes = file_io.get_sizes([*paths, *indexes])
    for path, size in zip([*paths, *indexes], sizes, strict=True):
        if size < 0:
            raise FormatError(f"{path} is missing. {mend}")
    for path, shard, size in zip(paths, shards, sizes, strict=False):
        if size != shard.bytes:
            raise FormatError(f"{path} must have {shard.bytes:,} bytes, as the manifest says, got {size:,}. {mend}")
    return sizes[len(shards) :]
