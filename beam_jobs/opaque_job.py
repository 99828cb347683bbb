"""Shuffles TFRecords byte for byte, whatever they hold: the job of `tfpipe reshard --opaque`.

Each input file is read once, to find the offset of each record. If the file is compressed otherwise than the output,
or as a single stream, its records are written to a scratch file in the output's form. Then every shard copies its
records from the input or the scratch files, in the planned order.
The working folder beside the output has:

```
plan.json            the options and the input files, which tell this job from others
sizes/00017          int64: 0, and the end of each record in its file or in the scratch file
scratch/00017        the records of a file that was compressed otherwise, in the output's form
rows/NAME            the bytes of a finished shard
data/                the output, which gets its final name when it is complete
```

In the output, opaque.json has the result: the same command finds it there and has nothing left to do.
"""

import contextlib
import hashlib
import json
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from beam_jobs import process_pool
from beam_jobs.config import ShardConfig
from tfpipe._version import __version__
from tfpipe.dataset.find_files import find_files
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import compressed, file_names, manifest_json
from tfpipe.format.manifest import Compression, Manifest
from tfpipe.format.record_index import MAX_RECORDS
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, frame_record, scan_records
from tfpipe.storage import file_io
from tfpipe.system.hash_permutation import key_of, permute
from tfpipe.system.host_limits import usable_cpus
from tfpipe.writer.working_folder import WorkingFolder, check_output

_LEVEL = 6  # zlib's default, which TensorFlow's writer uses too
_AT_ONCE = 4096  # records that are looked up at once
_BLOCK_BYTES = 16 << 20  # of records that are held at once


class OpaqueFolder(WorkingFolder):
    """The working folder of the job."""

    ending = ".tfpipe-opaque"
    folders = ("sizes", "scratch", "rows", "data")


@dataclass(frozen=True)
class OpaqueResult:
    """The result of a run.

    Attributes:
        records: The number of records.
        files: The number of input files.
        shards: The names of the shards, in order.
        bytes: The bytes of all shards.
        unindexed: The reason why the output has no manifest, as a sentence; None if it has one.
        seconds: The time of this run.
    """

    records: int
    files: int
    shards: tuple[str, ...]
    bytes: int
    unindexed: str | None
    seconds: float


@dataclass(frozen=True)
class _Job:
    """The settings that the workers share."""

    folder: OpaqueFolder
    files: tuple[str, ...]
    packs: bool  # whether each record becomes a gzip member
    key: int | None  # of the random order of the records; None: the order of the files
    split: str

    def sizes_path(self, number: int) -> str:
        """Returns the path of the array with the end of each record of an input file."""
        return self.folder.path("sizes", f"{number:05d}")

    def scratch_path(self, number: int) -> str:
        """Returns the path of the scratch file for an input file whose records have to be written anew."""
        return self.folder.path("scratch", f"{number:05d}")

    def open_sizes(self) -> list[NDArray[np.int64]]:
        """Opens the arrays of record ends of all input files, without reading them."""
        return [np.memmap(self.sizes_path(number), np.int64, "r") for number in range(len(self.files))]


_Shard = tuple[str, int, int]
"""A shard to write: its file, the index of its first record in the output's order, and the index after its last."""


def run(config: ShardConfig, compression: Compression, describe: Callable[[str], Manifest]) -> OpaqueResult:
    """Writes all records of some TFRecord files in another order into shards, byte for byte.

    Args:
        config: The options of the job, of which `input` (a file, a folder or a pattern), `output`, `split`,
            `num_shards`, `shard_size_bytes`, `shuffle`, `seed` and `workers` are used.
        compression: "GZIP": each record becomes a gzip member of its own. "": the records are not packed.
        describe: A function that writes the indexes and the manifest of the shards in a directory, as `tfpipe index`
            does, and returns the manifest. If it raises an error, the output has no manifest.

    Raises:
        ConfigError: The output cannot be used, or would have too many shards.
        DataError: There is no input, no record, a file cannot be read or written, or a worker died.
        FormatError: An input file holds no TFRecords, or a damaged one.
    """
    started = time.monotonic()
    if file_io.is_url(config.output):
        raise ConfigError(
            f"`opaque` writes to a disk of this machine, got {config.output}. Write to a local folder, and copy it."
        )
    if file_io.is_url(config.input):
        raise ConfigError(f"`opaque` reads files of this machine, got {config.input}. Copy them to a local disk.")
    root, found = find_files(config.input)
    files = [file_io.join(root, name) for name in found]
    split = file_names.check_split_name(config.split or "train")
    key = key_of(config.seed) if config.shuffle else None
    options = [__version__, compression, key, split, config.num_shards, config.shard_size_bytes]
    identity = json.dumps([*options, *zip(files, file_io.get_versions(files), strict=True)])
    digest, target = hashlib.sha256(identity.encode()).hexdigest(), file_io.resolve_links(config.output)
    if (finished := _find_finished(target, digest)) is not None:
        OpaqueFolder(target).remove()  # a run that was killed just before its end left it
        return replace(finished, seconds=time.monotonic() - started)
    folder = OpaqueFolder(check_output(config.output, files))
    job = _Job(folder, tuple(files), bool(compression), key, split)
    workers = config.workers or usable_cpus()
    with folder.open(identity, f"writes to {config.output}"):
        try:
            _run_all(_list_records, job, range(len(files)), workers)
            shards, records = _plan(config, job)
        except (ConfigError, FormatError):
            folder.remove()
            raise
        _run_all(_write_shard, job, shards, workers)
        unindexed = _describe(config, job, describe)
        names = tuple(file for file, _, _ in shards)
        num_bytes = sum(file_io.get_sizes([folder.result(file) for file in names]))
        result = OpaqueResult(records, len(files), names, num_bytes, unindexed, 0)
        file_io.write_file(
            folder.result(file_names.OPAQUE), json.dumps({"job": digest, "result": asdict(result)}).encode()
        )
        for name in ("sizes", "scratch"):
            file_io.remove_tree(folder.path(name))
        folder.publish()
    return replace(result, seconds=time.monotonic() - started)


def _find_finished(output: str, job: str) -> OpaqueResult | None:
    """Returns the result of this job if an earlier run has finished it."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # no such file, or one of another program
        saved = json.loads(file_io.read_whole(os.path.join(output, file_names.OPAQUE)))
        result = OpaqueResult(**{**saved["result"], "shards": tuple(saved["result"]["shards"])})
        sizes = file_io.get_sizes([os.path.join(output, name) for name in result.shards])
        if saved["job"] == job and sum(sizes) == result.bytes:
            return result
    return None


def _run_all(function: Callable[..., None], job: _Job, items: Sequence[object], workers: int) -> None:
    """Calls a function with the job and each item, in worker processes."""
    for _ in process_pool.map_unordered(function, items, min(workers, len(items)), shared=(job,)):
        pass


def _list_records(job: _Job, number: int) -> None:
    """Saves the end of each record of an input file, which goes to scratch first if it lacks the output's form."""
    path, scratch = job.files[number], job.scratch_path(number)
    if os.path.exists(job.sizes_path(number)):
        return
    try:
        with file_io.explain_os_errors(f"read {path}"):
            compression = compressed.detect_compression(file_io.read_start(path, HEADER_BYTES))
            sizes = _measure(path, compression) if bool(compression) == job.packs else None
            if sizes is None:
                sizes = _rewrite(path, compression, job.packs, scratch)
    except FormatError as error:
        raise FormatError(f"{path}: {error} `tfpipe verify` lists all damage.") from None
    ends = np.cumsum([0, *sizes], dtype=np.int64)
    file_io.write_file(job.sizes_path(number), ends.tobytes(), f"{job.sizes_path(number)}.tmp")


def _measure(path: str, compression: Compression) -> Sequence[int] | None:
    """Returns the bytes of each record in a file; None for a single stream, whose records cannot be read alone."""
    sizes = array("q")
    for _, size in _scan(path, compression):
        if size is None:
            return None
        sizes.append(size)
    return sizes


def _rewrite(path: str, compression: Compression, packs: bool, scratch: str) -> Sequence[int]:
    """Writes each record of a file to scratch in the output's form, and returns the size of each there, in bytes."""
    sizes = array("q")
    with file_io.create(scratch, f"{scratch}.tmp") as out:
        for payload, _ in _scan(path, compression):
            framed = frame_record(payload)
            piece = compressed.pack_member(framed, _LEVEL) if packs else framed
            out.write(piece)
            sizes.append(len(piece))
    return sizes


def _scan(path: str, compression: Compression) -> Iterator[tuple[bytes, int | None]]:
    """Yields each record's payload, and its size in the file in bytes, None if it cannot be unpacked on its own."""
    with file_io.open_read(path) as file:
        if compression:
            yield from compressed.scan_members(file, compression)
            return
        for _, payload in scan_records(file):
            if len(payload) > compressed.MAX_RECORD_BYTES:
                most, got = compressed.MAX_RECORD_BYTES, len(payload)
                raise FormatError(f"A record must have at most {most:,} bytes, got {got:,}.")
            yield payload, len(payload) + FRAME_BYTES


def _plan(config: ShardConfig, job: _Job) -> tuple[list[_Shard], int]:
    """Divides the records evenly among the shards; returns the shards, and the number of all records."""
    sizes = job.open_sizes()
    records = sum(len(ends) - 1 for ends in sizes)
    if not records:
        raise DataError(f"The {len(sizes):,} files of {config.input} have no record.")
    num_bytes = sum(int(ends[-1]) for ends in sizes)
    count = max(1, min(config.num_shards or -(-num_bytes // config.shard_size_bytes), records))
    if count > file_names.MAX_SHARDS or -(-records // count) > MAX_RECORDS:
        raise ConfigError(
            f"There must be at most {file_names.MAX_SHARDS:,} shards of at most {MAX_RECORDS:,} records, got {count:,} "
            f"shards for {records:,} records. Set `num_shards`."
        )
    ending = ".gz" if job.packs else ""
    names = [file_names.shard_name(job.split, k, count) + ending for k in range(count)]
    return [(name, records * k // count, records * (k + 1) // count) for k, name in enumerate(names)], records


def _write_shard(job: _Job, shard: _Shard) -> None:
    """Copies the records of a shard, unless an earlier run did."""
    name, first, behind = shard
    row, target = job.folder.path("rows", name), job.folder.result(name)
    if os.path.exists(row) and file_io.get_size(target) == int(file_io.read_whole(row)):
        return
    sizes = job.open_sizes()
    bases = np.cumsum([0, *(len(ends) - 1 for ends in sizes)])
    num_bytes = 0
    with file_io.explain_os_errors(f"write {name}"), file_io.create(target, f"{target}.tmp") as out:
        for begin in range(first, behind, _AT_ONCE):
            numbers = np.arange(begin, min(begin + _AT_ONCE, behind))
            if job.key is not None:
                numbers = permute(job.key, int(bases[-1]), numbers)
            table = _locate(numbers, bases, sizes)
            blocks = np.cumsum(table[:, 2] - table[:, 1]) // _BLOCK_BYTES
            for block in np.split(table, np.flatnonzero(np.diff(blocks)) + 1):
                for piece in _read(job, block, sizes):
                    out.write(piece)
                    num_bytes += len(piece)
    file_io.write_file(row, str(num_bytes).encode(), f"{row}.tmp")


def _locate(
    numbers: NDArray[np.int64], bases: NDArray[np.int64], sizes: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Returns the file's index, the start and the end in the file of each record: int64 [records, 3]."""
    files = np.searchsorted(bases, numbers, side="right") - 1
    table = np.empty((len(numbers), 3), np.int64)
    table[:, 0] = files
    for file in np.unique(files):
        of_file = files == file
        rows = numbers[of_file] - bases[file]
        table[of_file, 1], table[of_file, 2] = sizes[file][rows], sizes[file][rows + 1]
    return table


def _read(job: _Job, table: NDArray[np.int64], sizes: Sequence[NDArray[np.int64]]) -> list[bytes]:
    """Reads records in the order of their files and offsets, and returns them in the order of the table."""
    pieces = [b""] * len(table)
    for file, group in groupby(np.lexsort((table[:, 1], table[:, 0])).tolist(), key=lambda row: int(table[row, 0])):
        scratch = job.scratch_path(file)
        path = scratch if os.path.exists(scratch) else job.files[file]
        with open(path, "rb", buffering=0) as opened:
            if os.fstat(opened.fileno()).st_size != sizes[file][-1]:
                raise DataError(f"{path} changed while it was read. Run the same command again.")
            for row in group:
                _, begin, end = table[row].tolist()
                pieces[row] = os.pread(opened.fileno(), end - begin, begin)
    return pieces


def _describe(config: ShardConfig, job: _Job, describe: Callable[[str], Manifest]) -> str | None:
    """Writes the manifest and the indexes; returns the reason if the records cannot be described."""
    data = job.folder.result()
    try:
        manifest = describe(data)
    except (ConfigError, FormatError, DataError) as error:
        return str(error).replace(f"{data}/", "")
    manifest = replace(manifest, name=os.path.basename(job.folder.output), seed=config.seed)
    file_io.write_file(os.path.join(data, file_names.MANIFEST), manifest_json.dumps(manifest).encode())
    return None
