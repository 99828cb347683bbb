"""Writes the records of one shard into an open file, counts them, and describes the shard when it is complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import IO, Any

from tfpipe.format.record_writer import RecordWriter
from tfpipe.format.shard_stats import ShardStats
from tfpipe.writer.record_facts import RecordFacts
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
        facts: The empty facts about the shard's records; None where nobody keeps them.
    """

    def __init__(self, file: IO[bytes], count: CountRecord, facts: RecordFacts | None) -> None:
        super().__init__(file)
        self.stats = ShardStats()
        self.left_out: list[dict[str, Any]] = []
        self._count, self._facts = count, facts

    def count(self, features: Mapping[str, Any]) -> None:
        """Counts a record, which is written by itself; errors are those of the function that counts."""
        self._count(self.stats, features)
        if self._facts is not None:
            self._facts.add(features)

    def add(self, features: Mapping[str, Any], payload: bytes) -> None:
        """Counts and writes a record. If it cannot be counted, it is not written either."""
        self.count(features)
        self.write(payload)

    def describe_shard(self, name: str) -> WrittenShard:
        """Returns the description of the shard under a name."""
        return WrittenShard(self.describe(name), self.stats, self.left_out, len(self.left_out))

    def encode_facts(self) -> bytes | None:
        """Returns the content of the file with the facts about the records; None where nobody keeps them."""
        return None if self._facts is None else self._facts.encode(self.describe("").sha256)
