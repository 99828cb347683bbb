"""The folder in which a job gathers its shards, and where a later run finds those that are finished.

A shard appears under its name when it is complete, then its index, and the row about it last.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from tfpipe.errors import FormatError
from tfpipe.format.file_names import index_name, info_name
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.record_index import RecordWriter, decode_index
from tfpipe.format.schema import Schema
from tfpipe.format.shard_stats import ShardStats
from tfpipe.storage import file_io
from tfpipe.writer.record_info import RecordInfo
from tfpipe.writer.working_folder import WorkingFolder
from tfpipe.writer.written_shard import WrittenShard

CountRecord = Callable[[ShardStats, Mapping[str, Any]], None]
"""A function that counts a record by its features, as `count_record` does once it knows their schema."""


class ShardWriter(RecordWriter):
    """A writer of one shard, which also counts the records for the manifest and collects the record info."""

    def __init__(self, file: IO[bytes], count: CountRecord, info: RecordInfo | None) -> None:
        super().__init__(file)
        self.stats = ShardStats()
        self.left_out: list[dict[str, Any]] = []
        self._count, self._info = count, info

    def count(self, features: Mapping[str, Any]) -> None:
        """Counts a record that `write_all` writes later; errors are those of the function that counts."""
        self._count(self.stats, features)
        if self._info is not None:
            self._info.add(features)

    def add(self, features: Mapping[str, Any], payload: bytes) -> None:
        """Counts and writes a record. If it cannot be counted, it is not written either."""
        self.count(features)
        self.write(payload)

    def write_all(self, payloads: Iterable[bytes]) -> None:
        """Writes the payloads of records that `count` has counted."""
        for payload in payloads:
            self.write(payload)

    def describe_shard(self, name: str) -> WrittenShard:
        """Returns the description of the shard under a name."""
        return WrittenShard(self.describe(name), self.stats, self.left_out, len(self.left_out))


class ShardFolder(WorkingFolder):
    """A working folder for shards, each with its index and a row about it.

    ```
    shards/NAME           shards under their names, finished or not; a job of images writes them into the output itself
    shards/index/...      the index of each, and the record info
    rows/NAME.json        the row about each finished shard, written after it
    digests/NAME          bytes for each record of a finished shard, as the job needs them
    ```
    """

    folders = ("shards", "rows", "digests")

    def shard_path(self, name: str) -> str:
        """Returns the path of a shard, or of what lies beside it: its index, or the record info."""
        return self.path("shards", name)

    def row_path(self, file: str) -> str:
        """Returns the path of the row about a finished shard."""
        return self.path("rows", f"{file}.json")

    def digests_path(self, file: str) -> str:
        """Returns the path of the digests of a shard, in the order of its records."""
        return self.path("digests", file)

    def temporary(self, file: str) -> str | None:
        """Returns the temporary path at which a file is written; None: a default one beside the file."""
        return None

    @contextlib.contextmanager
    def new_shard(
        self, file: str, count: CountRecord, schema: Schema, label_names: Sequence[str]
    ) -> Iterator[ShardWriter]:
        """Yields the writer of a shard. When the block ends well, the shard, its index and the row about it appear."""
        info = RecordInfo.of_new_shard(schema, label_names)
        with file_io.create(self.shard_path(file), self.temporary(file), makes_folders=True) as out:
            writer = ShardWriter(out, count, info)
            yield writer
        written = writer.describe_shard(file)
        file_io.write_file(self.shard_path(index_name(file)), writer.index, self.temporary(file), makes_folders=True)
        if info is not None:
            data = info.encode(written.info.sha256)
            file_io.write_file(self.shard_path(info_name(file)), data, self.temporary(file), makes_folders=True)
        self.save_written(written)

    def save_written(self, shard: WrittenShard) -> None:
        """Saves the row that says that a shard is finished."""
        file_io.write_file(self.row_path(shard.info.file), json.dumps(shard.to_json()).encode(), makes_folders=True)

    def find_written(self, file: str) -> WrittenShard | None:
        """Returns a shard that some run finished; None if its row is missing or was cut off."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            return WrittenShard.from_json(json.loads(file_io.read_regular(self.row_path(file)) or b""))
        return None

    def find_finished(self, file: str) -> WrittenShard | None:
        """Returns the shard of an earlier run if it and its index are still whole. Reads the shard once."""
        written = self.find_written(file)
        return replace(written, kept=True) if written is not None and self.is_whole(written.info) else None

    def is_whole(self, shard: ShardInfo) -> bool:
        """Returns whether a finished shard and its index are as they were written. Reads the shard once."""
        path = self.shard_path(shard.file)
        if file_io.get_size(path) != shard.bytes:
            return False
        try:
            decode_index(file_io.read_whole(self.shard_path(index_name(shard.file))), shard.bytes, shard.records)
        except (OSError, FormatError):
            return False
        with file_io.open_read(path) as file:
            return file_io.hash_stream(file) == shard.sha256

    def move_shards(self, shards: Iterable[tuple[str, WrittenShard]]) -> None:
        """Moves shards and their indexes and record info to the result; each comes with its present name."""
        for name, shard in shards:
            final = shard.info.file
            file_io.rename(self.shard_path(index_name(name)), self.result(index_name(final)))
            if file_io.exists(self.shard_path(info_name(name))):
                file_io.rename(self.shard_path(info_name(name)), self.result(info_name(final)))
            file_io.rename(self.shard_path(name), self.result(final))
