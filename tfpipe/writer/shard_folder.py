"""The folder in which the shards of a job are gathered, and how a later run finds those that are finished.

    finished = folder.find_finished(name)
    if finished is None:
        with folder.new_shard(name, count) as writer:
            writer.add(features, payload)

A shard appears under its name when it is complete, then its index, and the row about it last.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import IO, BinaryIO, ClassVar, Protocol

from tfpipe.errors import FormatError
from tfpipe.format.file_names import index_name
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.record_index import decode_index
from tfpipe.storage import file_io
from tfpipe.writer.shard_writer import CountRecord, ShardWriter
from tfpipe.writer.working_folder import WorkingFolder
from tfpipe.writer.written_shard import WrittenShard, encode_row, read_row


class Files(Protocol):
    """The files of a job: those of this machine, or of a bucket too."""

    def get_size(self, path: str) -> int:
        """Returns the bytes of a file, or -1 if there is none."""

    def read_bytes(self, path: str) -> bytes:
        """Returns the whole file."""

    def open_read(self, path: str) -> BinaryIO:
        """Opens a file for reading."""

    def create(self, path: str, temporary: str | None = None) -> AbstractContextManager[IO[bytes]]:
        """Opens a new file that appears under `path` when the block ends well."""

    def write_bytes(self, path: str, data: bytes, temporary: str | None = None) -> None:
        """Writes a whole file as `create` does."""


class _LocalFiles:
    """The files of this machine."""

    get_size = staticmethod(file_io.get_size)
    open_read = staticmethod(file_io.open_file)
    create = staticmethod(file_io.create)

    def read_bytes(self, path: str) -> bytes:
        with file_io.open_file(path) as file:
            return file.read()

    def write_bytes(self, path: str, data: bytes, temporary: str | None = None) -> None:
        with file_io.create(path, temporary) as file:
            file.write(data)


class ShardFolder(ABC):
    """A folder in which shards are gathered, each with its index and a row about it."""

    files: ClassVar[Files] = _LocalFiles()

    @abstractmethod
    def path(self, *parts: str) -> str:
        """Returns a path in the folder."""

    @abstractmethod
    def shard_path(self, file: str) -> str:
        """Returns the path of a shard."""

    @abstractmethod
    def index_path(self, file: str) -> str:
        """Returns the path of a shard's index."""

    def row_path(self, file: str) -> str:
        """Returns the path of the row about a finished shard."""
        return self.path("rows", f"{file}.json")

    def temporary(self, file: str) -> str | None:
        """Returns the path of a file while it is written; None for one beside the file."""
        return None

    @contextlib.contextmanager
    def new_shard(self, file: str, count: CountRecord) -> Iterator[ShardWriter]:
        """Yields the writer of a shard. When the block ends well, the shard, its index and the row about it appear."""
        with self.files.create(self.shard_path(file), self.temporary(file)) as out:
            writer = ShardWriter(out, count)
            yield writer
        self.files.write_bytes(self.index_path(file), writer.index, self.temporary(file))
        self.save_written(writer.describe_shard(file))

    def save_written(self, shard: WrittenShard) -> None:
        """Saves the row that says that a shard is finished."""
        self.files.write_bytes(self.row_path(shard.info.file), encode_row(shard))

    def find_written(self, file: str) -> WrittenShard | None:
        """Returns a shard that some run finished; None if there is no reliable row about it."""
        return read_row(self.row_path(file), self.files.read_bytes)

    def find_finished(self, file: str) -> WrittenShard | None:
        """Returns the shard of an earlier run if it and its index are still whole. Reads the shard once."""
        written = self.find_written(file)
        return replace(written, kept=True) if written is not None and self.is_whole(written.info) else None

    def is_whole(self, shard: ShardInfo) -> bool:
        """Returns whether a finished shard and its index are as they were written. Reads the shard once."""
        path = self.shard_path(shard.file)
        if self.files.get_size(path) != shard.bytes:
            return False
        try:
            decode_index(self.files.read_bytes(self.index_path(shard.file)), shard.bytes, shard.records)
        except (OSError, FormatError):
            return False
        with self.files.open_read(path) as file:
            return file_io.hash_stream(file) == shard.sha256


class LocalShardFolder(WorkingFolder, ShardFolder):
    """A folder of this machine, beside the place where the dataset appears.

    ```
    OUTPUT.tfpipe-write/, or .tfpipe-repair/
      plan.json             the identity of the job
      shards/NAME, *.idx    shards under their names, finished or not
      rows/NAME.json        the row about each finished shard, written after it
      digests/NAME          of a repair: 32 bytes for each record, the SHA-256 of the image's source
      data/                 the dataset, put together at the end and then renamed to OUTPUT
      lock                  held by the process that writes
    ```
    """

    parts = ("shards", "rows", "digests")

    def shard_path(self, file: str) -> str:
        """Returns the path of a shard."""
        return self.path("shards", file)

    def index_path(self, file: str) -> str:
        """Returns the path of a shard's index."""
        return self.path("shards", f"{file}.idx")

    def move_shards(self, shards: Iterable[tuple[str, WrittenShard]]) -> None:
        """Moves shards, each given behind its name until now, and their indexes to `data` under their final names."""
        for name, shard in shards:
            file_io.rename(self.index_path(name), self.result(index_name(shard.info.file)))
            file_io.rename(self.shard_path(name), self.result(shard.info.file))
