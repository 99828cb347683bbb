"""A reader of a split's records in any order, by the index beside each shard."""

import errno
import operator
import os
import sys
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset.dataset_files import check_readable, check_unchanged
from tfpipe.engine.parse import BadRecord, RecordBlock, join_block, parse_columns, parse_records, take_memory
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.compressed import MAX_MEMBER_BYTES, unpack_member
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record_index import decode_index, max_index_bytes
from tfpipe.format.tfrecord import FOOTER_BYTES, HEADER_BYTES, read_record_at, unframe
from tfpipe.native.records import read_records
from tfpipe.storage.file_io import is_url, join, read_bytes
from tfpipe.storage.local import open_descriptor
from tfpipe.storage.ranges import Range, RangeReader
from tfpipe.system.fork_lock import make_fork_lock
from tfpipe.system.hash_permutation import IntArray
from tfpipe.system.units import shorten

_MAX_OPEN, _MAX_OPEN_OF_ALL = 64, 256  # files of one reader, and of all; a process may have 1,024 on most machines
_MAX_INDEX_BYTES = 1 << 29  # of indexes in memory: 67 million records. Others are read again, 0.1 us a record
_INDEXES_AT_ONCE = 16  # read in parallel from an object store
_MAX_BLOCK_BYTES = 1 << 21  # of records that are read at once, on average; the processor's caches hold them
_MAX_BLOCK_FILES = 32  # files of a block, which stay open till it is read
_MAX_GAP_BYTES = 1 << 14  # between records read together: more takes longer to copy than to skip
_MAX_AHEAD = 256  # records that a loop over all reads at once
_ADVICE = "Copy the dataset again, or save the undamaged records with `tfpipe repair`."


Numbers: TypeAlias = Sequence[int] | NDArray[np.integer]
"""The numbers of records, each from 0 or, below 0, counted from the end."""

ColumnValues: TypeAlias = list[NDArray[np.uint8]] | NDArray[np.int64] | NDArray[np.float32]
"""One value of each record: its bytes as arrays, or numbers in one array."""

_Result = TypeVar("_Result")


class NoSuchRecord(ConfigError, IndexError):
    """The error for an index beyond the records. It is an IndexError too, as for any sequence."""


class TooManyFiles(DataError):
    """The error for a file that cannot be opened because the process has as many open files as it may have."""


class RecordLocation(NamedTuple):
    """The location of a record: its shard, and its offset and size there in bytes."""

    shard: ShardInfo
    offset: int
    size: int  # framing included


class RecordReader:
    """The Examples of one split as a sequence: `reader[17]` is the 18th, in the order of the shards.

    Every record is checked against its checksums. Indexes (8 bytes a record) and some open files are kept, so that
    reading at random costs about as much as reading in order. Threads and forked processes may share a reader, and
    a pickled one opens the files anew.

    Records come as they are stored. In a dataset that `tfpipe index` described, a class is the stored label less the
    manifest's `label_base`. Of a view, `reader[17]` is the 18th record that it chose. The features of the manifest's
    columns follow those of the record, with one more read for each column.

    Args:
        directory: The dataset, which holds the manifest and the indexes: a local directory, or a URL of gs://, s3://
            or az://.
        manifest: The manifest of the dataset, from `load_manifest`.
        split: The name of a split.

    Raises:
        ConfigError: There is no such split, the shards lie at another URL, or each is one compressed stream.
        MissingDependencyError: The dataset lies in an object store, and obstore is not installed.
    """

    def __init__(self, directory: str, manifest: Manifest, split: str) -> None:
        check_readable(directory)
        info = manifest.get_split(split)
        if not manifest.random_access:
            raise ConfigError(
                f"The shards of {directory} are {manifest.compression} compressed: their records can be read from the "
                "first on only, as `build_dataset` does. `tfpipe reshard --opaque` writes them for random access."
            )
        self.directory, self.manifest, self.split = directory, manifest, split
        self._root = manifest.shard_directory(directory)
        check_readable(self._root)
        self._shards, self._is_packed = info.shards, bool(manifest.compression)
        remote = [self._shard_path(shard) for shard in self._shards] if is_url(self._root) else []
        self._ranges = RangeReader(remote) if remote else None
        self._ends = list(accumulate(shard.records for shard in self._shards))
        self._end_array = np.array(self._ends, np.int64)
        self._num_bytes = round(sum(each.splits[split].memory_bytes for each in (manifest, *manifest.columns)))
        self._chosen = None if info.chosen is None else info.chosen.numbers
        self._columns = [RecordReader(column.directory, column, split) for column in manifest.columns]
        self._lock = make_fork_lock()  # guards the three attributes below
        self._indexes: OrderedDict[str, IntArray] = OrderedDict()
        self._index_bytes = 0
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        _READERS[id(self)] = self

    def __len__(self) -> int:
        if self._chosen is not None:
            return len(self._chosen)
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, Feature]:
        """Decodes one record.

        Args:
            index: The number of the record, from 0; below 0 it counts from the end.

        Raises:
            NoSuchRecord: There are fewer records; a ConfigError and an IndexError.
            FormatError: A file is missing, has another size than the manifest says, or is damaged.
            DataError: A file cannot be read.
        """
        payload = self.read_payload(index)
        try:
            return decode_example(payload)
        except FormatError as error:
            raise FormatError(f"Record {index} of {self.split!r}: {error}") from None

    def __iter__(self) -> Iterator[dict[str, Feature]]:
        return self.iterate(range(len(self)))

    def iterate(self, numbers: range | IntArray) -> Iterator[dict[str, Feature]]:
        """Yields the features of some records, in the order of `numbers`, which count from 0.

        Some records are read ahead: as many as were yielded before, up to 256 or 2 MB. Errors are those of
        `reader[index]`; the records before a damaged one come first.
        """
        return self._read_many(numbers, parse_records, self.__getitem__, 1, _MAX_AHEAD)

    def read_payload(self, index: int) -> bytes:
        """Reads the bytes of one `tf.train.Example`; arguments and errors are those of `reader[index]`."""
        (number, at, _), location, ranges = self._find(index), self.locate(index), self._ranges
        path = self._shard_path(location.shard)

        def read_remote(offset: int, size: int) -> bytes:
            assert ranges is not None
            return bytes(ranges.read([Range(at, offset, offset + size)])[0])

        read_at = self._open(location.shard).read_at if ranges is None else read_remote
        try:
            if self._is_packed:
                payload = unpack_member(read_at(location.offset, min(location.size, MAX_MEMBER_BYTES)))
            else:
                payload = read_record_at(read_at, location.shard.bytes, location.offset, location.size)
        except FormatError as error:
            what = f"The gzip member at byte {location.offset} is bad. " if self._is_packed else ""
            raise FormatError(f"{path}: {what}{error} {_ADVICE}") from None
        except OSError as error:
            raise _explain(path, error) from error
        return payload + b"".join([column.read_payload(number) for column in self._columns])

    def announce(self, numbers: IntArray, soon: IntArray | None = None) -> None:
        """Asks storage to read records ahead, all at once, if the system has a call for that.

        Each record takes about 3 us of a core. Errors are ignored, because reading raises them again. An object store
        gets one request for adjacent records, also if some of them are only needed `soon` after.
        """
        if self._chosen is not None:
            numbers, soon = self._chosen[numbers], None if soon is None else self._chosen[soon]
        for column in self._columns:
            column.announce(numbers, soon)
        if not len(numbers) or (self._ranges is None and sys.platform != "linux"):
            return  # a rank may have none in the last step of an evaluation
        unique = np.unique(numbers, return_index=True)[0]  # without indices NumPy would import masked arrays
        if self._ranges is not None:
            later = unique if soon is None else np.union1d(unique, soon)
            group_ends = np.append(np.flatnonzero(np.diff(later) != 1), len(later) - 1)
            last = later[group_ends[np.searchsorted(group_ends, np.searchsorted(later, unique))]]
            shards, begins, sizes = self._locate_many(unique)
            _, last_begins, last_sizes = self._locate_many(np.minimum(last, self._end_array[shards] - 1))
            spans = np.stack((shards, begins, begins + sizes, last_begins + last_sizes), axis=1)
            self._ranges.announce([Range(*span) for span in spans.tolist()])
            return
        with suppress(FormatError, DataError, OSError):
            opened = -1
            for shard, begin, size in np.stack(self._locate_many(unique), axis=1).tolist():
                if shard != opened:
                    file, opened = self._open(self._shards[shard]), shard
                os.posix_fadvise(file.descriptor, begin, size, os.POSIX_FADV_WILLNEED)

    def read_payloads(self, indices: Numbers) -> list[bytes]:
        """Reads many records at once, in any order and with repetitions.

        Args:
            indices: The numbers of the records, each as for `reader[index]`.

        Returns:
            The bytes of each `tf.train.Example`.

        Raises:
            ConfigError: The numbers are not whole ones in one list or array.
            NoSuchRecord: There are fewer records.
            FormatError: A file is missing, has another size than the manifest says, or is damaged. The message is that
                of `reader[index]` for the first damaged record.
            DataError: A file cannot be read.
        """
        numbers = resolve_indices(indices, len(self), self.split)
        return list(self._read_many(numbers, RecordBlock.list_payloads, self.read_payload))

    def read_examples(self, indices: Numbers) -> list[dict[str, Feature]]:
        """Reads and decodes many records at once; arguments and errors are those of `read_payloads`.

        The arrays of features with one value may share memory, 8 bytes a value, with those of the other records.
        """
        return list(self._read_many(resolve_indices(indices, len(self), self.split), parse_records, self.__getitem__))

    def read_columns(
        self, indices: Numbers, names: Sequence[str], memory: NDArray[np.uint8] | None = None
    ) -> dict[str, ColumnValues]:
        """Reads some features of many records; arguments, result and errors are those of `DataSource.read_columns`."""
        numbers = resolve_indices(indices, len(self), self.split)
        schema = self.manifest.full_schema
        for name in names:
            if name not in schema or schema[name].shape != ():
                single = [spec.name for spec in schema.features if spec.shape == ()]
                raise ConfigError(f"A column must be a feature with one value, of {', '.join(single)}; got {name!r}.")
        is_array = memory is None or (isinstance(memory, np.ndarray) and memory.dtype == np.uint8 and memory.ndim == 1)
        if not is_array or (memory is not None and not (memory.flags.writeable and memory.flags.c_contiguous)):
            raise ConfigError(f"`memory` must be a writable uint8 array of one axis, in one piece, got {memory!r:.80}.")
        block = self.read_block(numbers, memory)
        try:
            found = parse_columns(block, {name: schema[name].dtype for name in names})
            for name in names:
                found[name].check_counts(1, name)
        except BadRecord as error:
            raise FormatError(f"Record {numbers[error.row]} of {self.split!r}: {error}.") from None
        return {
            name: column.values if column.memory is None else [column.get_view(row) for row in range(len(numbers))]
            for name, column in found.items()
        }

    def read_block(
        self, numbers: IntArray, memory: NDArray[np.uint8] | None = None, *, lacks: bool = False
    ) -> RecordBlock:
        """Reads records, by numbers from 0, into one block of memory, in any order and with repetitions.

        New memory takes the place of `memory` that is too small. Errors are those of `reader[index]` for the first
        record that is damaged or cannot be read. With `lacks` the block marks such records instead; then only too many
        open files are an error, which says nothing about any record.
        """
        with suppress(FormatError, DataError, OSError):  # raised again below, after errors of earlier records
            block = self._try_to_read_block(numbers, memory)
            if lacks or block.whole.all():
                return block
        payloads: list[bytes | None] = []
        for number in numbers.tolist():
            try:
                payloads.append(self.read_payload(number))
            except (FormatError, DataError) as error:
                if not lacks or isinstance(error, TooManyFiles):
                    raise
                payloads.append(None)
        return join_block(payloads, memory)

    def list_sizes(self, numbers: IntArray) -> IntArray:
        """Returns the bytes that records take in their files, framing included: int64 [records]."""
        if not len(numbers):
            return np.empty(0, np.int64)
        unique, inverse = np.unique(numbers, return_inverse=True)
        stored = unique if self._chosen is None else self._chosen[unique]
        sizes: IntArray = self._locate_many(stored)[2]
        for column in self._columns:
            sizes = sizes + column.list_sizes(stored)
        return sizes[inverse]

    def describe(self, number: int) -> str:
        """Says where a record lies: "record 3 of /data/train-00000-of-00008.tfrecord"."""
        _, at, row = self._find(number)
        return f"record {row} of {self._shard_path(self._shards[at])}"

    def _try_to_read_block(self, numbers: IntArray, memory: NDArray[np.uint8] | None) -> RecordBlock:
        if not len(numbers):
            return join_block([])
        unique, inverse = np.unique(numbers, return_inverse=True)
        stored = unique if self._chosen is None else self._chosen[unique]
        shards, begins, sizes = self._locate_many(stored)
        added = [column._try_to_read_block(stored, None) for column in self._columns]
        if self._ranges is not None or self._is_packed:
            spans = np.stack((shards, begins, begins + sizes), axis=1).tolist()
            if self._ranges is not None:
                frames: Iterable[memoryview] = self._ranges.read([Range(*span) for span in spans])
            else:
                frames = (
                    memoryview(self._open(self._shards[shard]).read_at(begin, min(end - begin, MAX_MEMBER_BYTES)))
                    for shard, begin, end in spans
                )
            payloads = map(_unpack_or_none if self._is_packed else unframe, frames)
            pieces = [list(payloads), *(block.list_payloads() for block in added)]
            joined = [None if None in each else b"".join(each) for each in zip(*pieces, strict=True)]
            return join_block(joined, memory).choose(inverse)
        # A record to which columns are added is read to where there is room after it for the features of the columns.
        room = np.sum([block.ends - block.begins for block in added], axis=0) if added else None
        table, ats, num_bytes = plan_spans(shards, begins, sizes, room)
        memory, frames_at, shard_of = take_memory(num_bytes, memory), np.stack((ats, sizes), axis=1), table[:, 0].copy()
        whole = np.empty(len(unique), np.bool_)
        files = np.unique(shards, return_index=True)[0]
        for chosen in np.split(files, range(_MAX_BLOCK_FILES, len(files), _MAX_BLOCK_FILES)):
            first_span, end_span = np.searchsorted(shard_of, (chosen[0], chosen[-1] + 1)).tolist()
            first, end = np.searchsorted(shards, (chosen[0], chosen[-1] + 1)).tolist()
            opened = {shard: self._open(self._shards[shard]) for shard in chosen.tolist()}
            chunk = table[first_span:end_span]
            chunk[:, 0] = [opened[shard].descriptor for shard in chunk[:, 0].tolist()]
            whole[first:end] = read_records(chunk, frames_at[first:end], memory)
        block = RecordBlock(memory.data, ats + HEADER_BYTES, ats + sizes - FOOTER_BYTES, whole)
        for column in added:  # the concatenation of two Examples is one Example
            spans = zip(block.ends.tolist(), column.begins.tolist(), column.ends.tolist(), strict=True)
            for at, begin, end in spans:
                block.data[at : at + end - begin] = column.data[begin:end]
            ends = block.ends + column.ends - column.begins
            block = RecordBlock(block.data, block.begins, ends, block.whole & column.whole)
        return block.choose(inverse)

    def locate(self, index: int) -> RecordLocation:
        """Locates a record; arguments and errors are those of `reader[index]`."""
        _, at, row = self._find(index)
        ends = self._get_index(self._shards[at])
        begin = int(ends[row - 1]) if row else 0
        return RecordLocation(self._shards[at], begin, int(ends[row]) - begin)

    def _find(self, index: int) -> tuple[int, int, int]:
        """Finds a record: its number in the shards, the index of its shard, and its own in the shard."""
        number = resolve_index(index, len(self), self.split)
        number = number if self._chosen is None else int(self._chosen[number])
        at = bisect_right(self._ends, number)
        return number, at, number - self._ends[at] + self._shards[at].records

    def close(self) -> None:
        """Closes all files; reading opens them again."""
        with self._lock:
            self._files.clear()
        for column in self._columns:
            column.close()

    def __enter__(self) -> "RecordReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory, self.manifest, self.split)

    def _read_many(
        self,
        numbers: range | IntArray,
        convert: Callable[[RecordBlock], Sequence[_Result | None]],
        read_one: Callable[[int], _Result],
        count: int | None = None,
        most: int | None = None,
    ) -> Iterator[_Result]:
        """Reads records in blocks, which grow from `count` records to `most`; by default each block has about 2 MB.

        A record that could not be read in a block is read again by itself, which raises the error.
        """
        whole = max(_MAX_BLOCK_BYTES * len(self) // max(self._num_bytes, 1), 1)
        begin, count, most = 0, count or whole, min(most or whole, whole)
        while begin < len(numbers):
            chosen = np.array(numbers[begin : begin + count])
            found: Sequence[_Result | None] = [None] * len(chosen)
            # An error is raised again below, after errors of earlier records.
            with suppress(FormatError, DataError, OSError):
                found = convert(self._try_to_read_block(chosen, None))
            for number, result in zip(chosen.tolist(), found, strict=True):
                yield read_one(number) if result is None else result
            begin, count = begin + count, min(2 * count, most)

    def _locate_many(self, numbers: IntArray) -> tuple[IntArray, ...]:
        """Returns the shards, offsets and sizes of records with ascending numbers in the shards, each int64 [n]."""
        shards = np.searchsorted(self._end_array, numbers, side="right")
        begins, sizes = np.empty((2, len(numbers)), np.int64)
        chosen, firsts = np.unique(shards, return_index=True)
        if self._ranges is not None and len(chosen) > 1:
            with self._lock:
                missing = [shard for shard in map(self._shards.__getitem__, chosen) if shard.file not in self._indexes]
            with ThreadPoolExecutor(_INDEXES_AT_ONCE) as threads:
                for _ in threads.map(self._get_index, missing):
                    pass  # `_get_index` keeps it
        lasts = [*firsts[1:].tolist(), len(numbers)]
        for shard, first, last in zip(chosen.tolist(), firsts.tolist(), lasts, strict=True):
            ends = self._get_index(self._shards[shard])
            rows = numbers[first:last] - self._ends[shard] + self._shards[shard].records
            begins[first:last] = np.where(rows > 0, ends[rows - 1], 0)
            sizes[first:last] = ends[rows] - begins[first:last]
        return shards, begins, sizes

    def _get_index(self, shard: ShardInfo) -> IntArray:
        """Returns the offset at which each record of a shard ends: int64 [records]."""
        with self._lock:
            if shard.file in self._indexes:
                self._indexes.move_to_end(shard.file)
                return self._indexes[shard.file]
        path = join(self.directory, file_names.index_name(shard.file))
        max_bytes = max_index_bytes(shard.bytes, shard.records)
        try:
            if self._ranges is not None:
                data = read_bytes(path, max_bytes)
            else:
                file = self._open_file(path)
                if file.num_bytes > max_bytes:
                    must = f"at most {max_bytes} bytes for {shard.records} records"
                    raise FormatError(f"{path} must have {must}, got {file.num_bytes}. {_ADVICE}")
                data = file.read_at(0, file.num_bytes)
        except OSError as error:
            raise _explain(path, error) from error
        try:
            ends: IntArray = decode_index(data, shard.bytes, shard.records, is_packed=self._is_packed).sum(axis=1)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
        with self._lock:
            if shard.file not in self._indexes:
                self._indexes[shard.file] = ends
                self._index_bytes += ends.nbytes
                while len(self._indexes) > 1 and self._index_bytes > _MAX_INDEX_BYTES:
                    self._index_bytes -= self._indexes.popitem(last=False)[1].nbytes
        return ends

    def _open(self, shard: ShardInfo) -> "_OpenFile":
        """Opens the shard's file, and closes the least recently used one if there are too many."""
        with self._lock:
            if shard.file in self._files:
                self._files.move_to_end(shard.file)
                return self._files[shard.file]
        path = self._shard_path(shard)
        opened = self._open_file(path)  # without the lock: on a network mount it takes milliseconds
        check_unchanged(self.manifest, self.split)
        if opened.num_bytes != shard.bytes:
            raise FormatError(
                f"{path} must have {shard.bytes} bytes, as {file_names.MANIFEST} says, got {opened.num_bytes}. "
                f"{_ADVICE}"
            )
        with self._lock:
            opened = self._files.setdefault(shard.file, opened)
            if len(self._files) > _MAX_OPEN:
                self._files.popitem(last=False)
        others = [reader for reader in _list_readers() if reader is not self]
        if len(self._files) + sum(len(reader._files) for reader in others) > _MAX_OPEN_OF_ALL:
            for reader in others:
                reader.close()
        return opened

    def _open_file(self, path: str) -> "_OpenFile":
        try:
            return _OpenFile(path)
        except FormatError:
            check_unchanged(self.manifest, self.split)  # raises an error that says more
            raise

    def _shard_path(self, shard: ShardInfo) -> str:
        return join(self._root, shard.file)


def plan_spans(
    files: IntArray, begins: IntArray, sizes: IntArray, room: IntArray | None = None
) -> tuple[IntArray, IntArray, int]:
    """Joins nearby records into spans of files that are read at once, of at most twice the bytes of the records.

    In a file `begins` ascend, and no records overlap; `sizes` include framing. With `room`, the bytes to leave free
    after each record, every record is a span. Returns file, offset, size and offset in the block of each span, int64
    [spans, 4], the offset of each record in the block, int64 [records], and the bytes of the block.
    """
    if room is not None:
        ats = np.cumsum(sizes + room) - sizes - room
        return (np.stack((files, begins, sizes, ats), axis=1), ats, int((sizes + room).sum()))
    if not len(files):
        return (np.empty((0, 4), np.int64), np.empty(0, np.int64), 0)
    gaps = begins[1:] - begins[:-1] - sizes[:-1]
    # A gap has at most half of the bytes of its two neighbors, so all gaps have at most the bytes of all records.
    joins = (files[1:] == files[:-1]) & (gaps <= np.minimum((sizes[1:] + sizes[:-1]) // 2, _MAX_GAP_BYTES))
    firsts = np.flatnonzero(np.concatenate(([True], ~joins)))
    lasts = np.append(firsts[1:], len(begins)) - 1
    offsets = begins[firsts]
    span_sizes = begins[lasts] + sizes[lasts] - offsets
    table = np.stack((files[firsts], offsets, span_sizes, np.cumsum(span_sizes) - span_sizes), axis=1)
    return (table, begins + np.repeat(table[:, 3] - offsets, lasts - firsts + 1), int(span_sizes.sum()))


def _unpack_or_none(member: memoryview) -> bytes | None:
    try:
        return unpack_member(member)
    except FormatError:
        return None


def resolve_index(index: int, count: int, split: str) -> int:
    """Converts an index, which counts from the end if it is below 0, to a number from 0."""
    try:
        number = operator.index(index)
    except TypeError:
        raise ConfigError(
            f"A record is chosen by a whole number, got {shorten(index)}; `find` gives the number of a name."
        ) from None
    if not -count <= number < count:
        allowed = f"from {-count} to {count - 1}" if count else "of a split that has records"
        raise NoSuchRecord(f"A record of {split!r} must have an index {allowed}, got {number}.")
    return number % count


def resolve_indices(indices: Numbers, count: int, split: str) -> IntArray:
    """Converts many indices, which count from the end if they are below 0, to numbers from 0: int64 [indices]."""
    numbers = np.asarray(indices)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        got = f"{numbers.dtype} on {numbers.ndim} axes"
        raise ConfigError(f"Records are chosen by whole numbers in one list or array, got {got}.")
    wrong = numbers[(numbers < -count) | (numbers >= count)]
    if wrong.size:
        resolve_index(int(wrong[0]), count, split)
    resolved: IntArray = numbers.astype(np.int64)
    resolved[resolved < 0] += count
    return resolved


class _OpenFile:
    """An open file that closes with its last user, because another thread may still read when the reader drops it."""

    descriptor = -1

    def __init__(self, path: str) -> None:
        try:
            try:
                self.descriptor = open_descriptor(path)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                for reader in _list_readers():  # frees the files that they keep open
                    reader.close()
                self.descriptor = open_descriptor(path)
        except OSError as error:
            raise _explain(path, error) from error
        self.num_bytes = os.fstat(self.descriptor).st_size

    def read_at(self, offset: int, size: int) -> bytes:
        """Reads `size` bytes at an offset, or fewer at the end of the file."""
        data = os.pread(self.descriptor, size, offset)  # no `read`, whose position threads and forks share
        while len(data) < size and (more := os.pread(self.descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # when Python ends, `os` may be gone
        if self.descriptor >= 0:
            close(self.descriptor)


_READERS: weakref.WeakValueDictionary[int, RecordReader] = weakref.WeakValueDictionary()
"""The readers of this process, whose open files together must not reach the limit of the process."""


def _list_readers() -> list[RecordReader]:
    """Lists the readers of this process; other threads may make some meanwhile."""
    return [reader for reference in _READERS.valuerefs() if (reader := reference()) is not None]


def _explain(path: str, error: OSError) -> FormatError | DataError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return FormatError(f"{path} is missing. {_ADVICE}")
    if error.errno == errno.EMFILE:
        return TooManyFiles(
            f"{path} cannot be opened: this process has as many open files as it may have. Close some, or raise the "
            "limit by `ulimit -n`."
        )
    return DataError(f"{path} cannot be read: {error.strerror or error}.")
