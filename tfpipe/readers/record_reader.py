"""A reader of a split's records in any order, by the index beside each shard."""

import operator
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import accumulate
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record_index import decode_index, max_index_bytes
from tfpipe.format.tfrecord import read_record_at
from tfpipe.open_dataset import check_local
from tfpipe.system.file_io import open_file

_MAX_OPEN = 64  # files of one reader; a process may have 1,024 on most machines
_MAX_INDEX_BYTES = 1 << 27  # of indexes in memory at 8 bytes a record: all of ImageNet-21k
_ADVICE = "Copy the dataset again, or save the undamaged records with `tfpipe repair`."


class NoSuchRecord(ConfigError, IndexError):
    """The error for an index beyond the records. It is an IndexError too, as for any sequence."""


class RecordPlace(NamedTuple):
    """The place where a record lies.

    Attributes:
        shard: The shard that holds it.
        offset: The byte of the shard at which it begins.
        size: The bytes that it takes there, framing included.
    """

    shard: ShardInfo
    offset: int
    size: int


class RecordReader:
    """The Examples of one split as a sequence: `reader[17]` is the 18th, in the order of the shards.

    Every record is checked against its checksums. Indexes (8 bytes a record) and some open files are kept, so that
    reading at random costs about as much as reading in order. Threads and forked processes may share a reader, and
    a pickled one opens the files anew.

    Records come as they are stored. In a dataset that `tfpipe index` described, a class is the stored label less the
    manifest's `label_base`.

    Args:
        directory: The dataset's local directory, which holds the manifest and the indexes.
        manifest: The manifest of the dataset, from `load_manifest`.
        split: The name of a split.

    Raises:
        ConfigError: There is no such split, the dataset or its shards lie at a URL, or they are compressed.
    """

    def __init__(self, directory: str, manifest: Manifest, split: str) -> None:
        check_local(directory)
        if split not in manifest.splits:
            raise ConfigError(f"The dataset has no split {split!r}; it has {', '.join(manifest.splits)}.")
        if manifest.compression:
            raise ConfigError(
                f"The shards of {directory} are {manifest.compression} compressed: their records can be read from the "
                "first on only, as `build_dataset` does. Write them anew without compression for random access."
            )
        self.directory, self.manifest, self.split = directory, manifest, split
        self._root = manifest.shard_directory(directory)
        check_local(self._root)
        self._shards = manifest.splits[split].shards
        self._ends = list(accumulate(shard.records for shard in self._shards))
        self._lock = threading.Lock()  # guards the three below
        self._indexes: OrderedDict[str, NDArray[np.int64]] = OrderedDict()
        self._index_bytes = 0
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()

    def __len__(self) -> int:
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
        return self.decode(index, self.read_payload(index))

    def decode(self, index: int, payload: bytes) -> dict[str, Feature]:
        """Decodes a record that `read_payload` returned.

        Raises:
            FormatError: The bytes are not a `tf.train.Example`.
        """
        try:
            return decode_example(payload)
        except FormatError as error:
            raise FormatError(f"Record {index} of {self.split!r}: {error}") from None

    def __iter__(self) -> Iterator[dict[str, Feature]]:
        return (self[index] for index in range(len(self)))

    def read_payload(self, index: int) -> bytes:
        """Reads the bytes of one `tf.train.Example`; arguments and errors are those of `reader[index]`."""
        place = self.locate(index)
        file = self._open(place.shard)
        try:
            return read_record_at(file.read_at, place.shard.bytes, place.offset, place.size)
        except FormatError as error:
            raise FormatError(f"{self._shard_path(place.shard)}: {error} {_ADVICE}") from None
        except OSError as error:
            raise _describe_os_error(self._shard_path(place.shard), error) from error

    def locate(self, index: int) -> RecordPlace:
        """Locates a record; arguments and errors are those of `reader[index]`."""
        number = resolve_index(index, len(self), self.split)
        shard_index = bisect_right(self._ends, number)
        shard = self._shards[shard_index]
        ends, row = self._get_index(shard), number - self._ends[shard_index] + shard.records
        begin = int(ends[row - 1]) if row else 0
        return RecordPlace(shard, begin, int(ends[row]) - begin)

    def close(self) -> None:
        """Closes all files; reading opens them again."""
        with self._lock:
            self._files.clear()

    def __enter__(self) -> "RecordReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory, self.manifest, self.split)

    def _get_index(self, shard: ShardInfo) -> NDArray[np.int64]:
        """Returns the byte at which every record ends: int64 of shape [records]."""
        with self._lock:
            if shard.file not in self._indexes:
                ends = self._read_index(shard)
                self._indexes[shard.file] = ends
                self._index_bytes += ends.nbytes
                while len(self._indexes) > 1 and self._index_bytes > _MAX_INDEX_BYTES:
                    self._index_bytes -= self._indexes.popitem(last=False)[1].nbytes
            self._indexes.move_to_end(shard.file)
            return self._indexes[shard.file]

    def _read_index(self, shard: ShardInfo) -> NDArray[np.int64]:
        path = os.path.join(self.directory, file_names.index_name(shard.file))
        max_bytes = max_index_bytes(shard.bytes, shard.records)
        with _open_existing(path) as file:
            if (num_bytes := _get_size(file)) > max_bytes:
                raise FormatError(
                    f"{path} must have at most {max_bytes} bytes for {shard.records} records, got {num_bytes}. "
                    f"{_ADVICE}"
                )
            try:
                data = file.read(num_bytes)
            except OSError as error:
                raise _describe_os_error(path, error) from error
        try:
            ends: NDArray[np.int64] = decode_index(data, shard.bytes, shard.records).sum(axis=1)
            return ends
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None

    def _open(self, shard: ShardInfo) -> "_OpenFile":
        """Opens the shard's file, and closes the least recently used one if there are too many."""
        with self._lock:
            if shard.file not in self._files:
                path = self._shard_path(shard)
                file = _open_existing(path)
                if (num_bytes := _get_size(file)) != shard.bytes:
                    file.close()
                    raise FormatError(
                        f"{path} must have {shard.bytes} bytes, as {file_names.MANIFEST} says, got {num_bytes}. "
                        f"{_ADVICE}"
                    )
                if len(self._files) >= _MAX_OPEN:
                    self._files.popitem(last=False)
                self._files[shard.file] = _OpenFile(file)
            self._files.move_to_end(shard.file)
            return self._files[shard.file]

    def _shard_path(self, shard: ShardInfo) -> str:
        return os.path.join(self._root, shard.file)


def resolve_index(index: int, count: int, split: str) -> int:
    """Returns the number from 0 of an index that may count from the end.

    Raises:
        NoSuchRecord: There are fewer records.
    """
    number = operator.index(index)
    if not -count <= number < count:
        allowed = f"from {-count} to {count - 1}" if count else "of a split that has records"
        raise NoSuchRecord(f"A record of {split!r} must have an index {allowed}, got {number}.")
    return number % count


class _OpenFile:
    """An open file that closes with its last user, because another thread may still read when the reader drops it."""

    def __init__(self, file: BinaryIO) -> None:
        with file:
            self._descriptor = os.dup(file.fileno())

    def read_at(self, offset: int, size: int) -> bytes:
        """Reads at an offset: a position would be shared with forked processes and other threads."""
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # when Python ends, `os` may be gone
        close(self._descriptor)


def _open_existing(path: str) -> BinaryIO:
    try:
        return open_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(f"{path} is missing. {_ADVICE}") from None
    except OSError as error:
        raise _describe_os_error(path, error) from error


def _get_size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _describe_os_error(path: str, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror or error}.")
