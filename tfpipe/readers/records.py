"""Random access to the records of a split, by the index beside each shard."""

import operator
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfpipe.dataset import check_local
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import naming
from tfpipe.format.example import Feature, decode_example
from tfpipe.format.index import MAX_LINE_BYTES, decode_index
from tfpipe.format.manifest import Manifest, ShardInfo
from tfpipe.format.record import read_record
from tfpipe.storage import open_file

_MAX_INDEXES = 8  # kept in memory: 16 bytes a record, so some MB even for the largest shards
_MEND = "Copy the dataset again, or run the same `tfpipe shard` command again to write it anew."


class RecordPlace(NamedTuple):
    """Where a record lies."""

    shard: ShardInfo
    offset: int
    """Where the record begins in it, in bytes."""
    size: int
    """Bytes it takes there, framing included."""


class RecordReader:
    """The records of one split as a sequence: `reader[17]` is the 18th, in the order of the shards.

    Every record is checked against its checksums. At most one shard is open and few indexes are in memory, so
    reading in order is cheapest. A reader is for one thread of one process; a pickled one opens the files anew.

    Args:
      directory: The dataset's local directory.
      manifest: Its manifest, as `load_manifest` gives it.
      split: Name of a split in it.

    Raises:
      ConfigError: There is no such split, or `directory` is a URL.
    """

    def __init__(self, directory: str, manifest: Manifest, split: str) -> None:
        check_local(directory)
        if split not in manifest.splits:
            raise ConfigError(f"The dataset has no split {split!r}; it has {', '.join(manifest.splits)}.")
        self.directory, self.manifest, self.split = directory, manifest, split
        self._shards = manifest.splits[split].shards
        self._ends = list(accumulate(shard.records for shard in self._shards))
        self._indexes: OrderedDict[str, NDArray[np.int64]] = OrderedDict()
        self._file: BinaryIO | None = None
        self._open_name = ""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> dict[str, Feature]:
        """Decodes one record.

        Args:
          index: From 0; below 0 it counts from the end.

        Raises:
          ConfigError: There is no such record.
          FormatError: A file is missing, has another size than the manifest says, or is damaged.
          DataError: A file cannot be read.
        """
        payload = self.payload(index)
        try:
            return decode_example(payload)
        except FormatError as error:
            raise FormatError(f"Record {index} of {self.split!r}: {error}") from None

    def __iter__(self) -> Iterator[dict[str, Feature]]:
        # The protocol by `__getitem__` alone would wait for an IndexError.
        return (self[index] for index in range(len(self)))

    def payload(self, index: int) -> bytes:
        """The bytes of one `tf.train.Example`; arguments and errors as with `reader[index]`."""
        place = self.place(index)
        file = self._open(place.shard)
        try:
            return read_record(file, place.offset, place.size)
        except FormatError as error:
            raise FormatError(f"{self._path(place.shard.file)}: {error} {_MEND}") from None
        except OSError as error:
            raise _unreadable(self._path(place.shard.file), error) from error

    def place(self, index: int) -> RecordPlace:
        """Where a record lies; arguments and errors as with `reader[index]`."""
        number, count = operator.index(index), len(self)
        if not -count <= number < count:
            allowed = f"from {-count} to {count - 1}" if count else "of a split that has records"
            raise ConfigError(f"A record of {self.split!r} must have an index {allowed}, got {number}.")
        number %= count
        k = bisect_right(self._ends, number)
        shard = self._shards[k]
        offset, size = self._index(shard)[number - self._ends[k] + shard.records].tolist()
        return RecordPlace(shard, offset, size)

    def close(self) -> None:
        """Closes the open shard; reading opens it again."""
        if self._file is not None:
            self._file.close()
        self._file, self._open_name = None, ""

    def __enter__(self) -> "RecordReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.directory, self.manifest, self.split)

    def _index(self, shard: ShardInfo) -> NDArray[np.int64]:
        """Offset and size of every record: int64 of shape [records, 2]."""
        if shard.file not in self._indexes:
            self._indexes[shard.file] = self._read_index(shard)
            if len(self._indexes) > _MAX_INDEXES:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(shard.file)
        return self._indexes[shard.file]

    def _read_index(self, shard: ShardInfo) -> NDArray[np.int64]:
        path = self._path(naming.index_name(shard.file))
        most = shard.records * MAX_LINE_BYTES
        with _open_existing(path) as file:
            if (num_bytes := _size(file)) > most:
                raise FormatError(
                    f"{path} must have at most {most} bytes for {shard.records} records, got {num_bytes}. {_MEND}"
                )
            try:
                data = file.read()
            except OSError as error:
                raise _unreadable(path, error) from error
        try:
            return decode_index(data, shard.bytes, shard.records)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None

    def _open(self, shard: ShardInfo) -> BinaryIO:
        """The shard's file; another one that is open is closed for it."""
        if self._file is None or self._open_name != shard.file:
            self.close()
            path = self._path(shard.file)
            file = _open_existing(path)
            num_bytes = _size(file)
            if num_bytes != shard.bytes:
                file.close()
                raise FormatError(
                    f"{path} must have {shard.bytes} bytes, as {naming.MANIFEST} says, got {num_bytes}. {_MEND}"
                )
            self._file, self._open_name = file, shard.file
        return self._file

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def _open_existing(path: str) -> BinaryIO:
    try:
        return open_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(f"{path} is missing. {_MEND}") from None
    except OSError as error:
        raise _unreadable(path, error) from error


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _unreadable(path: str, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read: {error.strerror or error}.")
