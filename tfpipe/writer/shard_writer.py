"""Writes the records of one shard into an open file, counts them, and describes the shard when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, Any

from tfpipe.format.record_writer import RecordWriter
from tfpipe.format.shard_stats import ShardStats
from tfpipe.writer.written_shard import WrittenShard

CountRecord = Callable[[ShardStats, Mapping[str, Any]], None]
"""A function that counts a record by its features, as `count_record` does once it knows their schema."""


class ShardWriter(RecordWriter):
    """A writer of one shard.

    Attributes:
        stats: The counts of the records so far.
        left_out: A line about each record that was left out so far.

    Args:
        file: The open file. Its owner closes it.
        count: The function that counts a record.
    """

    def __init__(self, file: IO[bytes], count: CountRecord) -> None:
        super().__init__(file)
        self.stats = ShardStats()
        self.left_out: list[dict[str, Any]] = []
        self._count = count

    def count(self, features: Mapping[str, Any]) -> None:
        """Counts a record, which is written by itself; errors are those of the function that counts."""
        self._count(self.stats, features)

    def add(self, features: Mapping[str, Any], payload: bytes) -> None:
        """Counts and writes a record. If it cannot be counted, it is not written either."""
        self.count(features)
        self.write(payload)

    def describe_shard(self, name: str) -> WrittenShard:
        """Returns the description of the shard under a name."""
        return WrittenShard(self.describe(name), self.stats, self.left_out, len(self.left_out))
