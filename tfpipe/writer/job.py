"""The settings of a run of `tfpipe.write`, which worker processes share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.format.file_names import MAX_SHARDS
from tfpipe.format.shard_stats import ShardStats
from tfpipe.writer.count_record import count_record
from tfpipe.writer.fields import Field, RecordForm
from tfpipe.writer.record_facts import RecordFacts
from tfpipe.writer.shard_folder import ShardFolder


class WriteFolder(ShardFolder):
    """The folder in which an unfinished dataset is gathered."""

    ending = ".tfpipe-write"


@dataclass(frozen=True)
class WriteJob:
    """The settings of a run.

    Attributes:
        folder: The working folder.
        form: The form of the records.
        key: The feature that identifies a record; None if its place does.
        refuse_nan: Whether a tensor with NaN is an error.
        workers: The number of processes or threads; 0 for this one alone.
    """

    folder: WriteFolder
    form: RecordForm
    key: str | None
    refuse_nan: bool
    workers: int

    def count(self, stats: ShardStats, features: Mapping[str, Any]) -> None:
        """Counts a record; errors are those of `count_record`."""
        count_record(stats, features, schema=self.form.schema, refuse_nan=self.refuse_nan)

    def new_facts(self) -> RecordFacts | None:
        """Returns the facts of a shard that is about to be written."""
        return RecordFacts.of_new_shard(self.form.schema, self.form.label_names)


def count_shards(num_shards: int | Mapping[str, int], splits: Iterable[str]) -> dict[str, int]:
    """Returns the number of shards of each split.

    Raises:
        ConfigError: A number is out of range, or other splits are named.
    """
    splits = list(splits)
    if isinstance(num_shards, Mapping) and set(num_shards) != set(splits):
        raise ConfigError(f"`num_shards` must name the splits {', '.join(splits)}, got {', '.join(num_shards)}.")
    counts = {split: num_shards[split] if isinstance(num_shards, Mapping) else num_shards for split in splits}
    for count in counts.values():
        if type(count) is not int or not 1 <= count <= MAX_SHARDS:
            raise ConfigError(f"`num_shards` must be from 1 to {MAX_SHARDS:,}, got {count!r}.")
    return counts


def check_key(form: RecordForm, schema: Mapping[str, Field], key: str) -> None:
    """Checks that a value can identify records."""
    if key not in form.schema or form.schema[key].shape != () or form.schema[key].dtype == "float":
        raise ConfigError(f"`key` must name a text or a whole number of {', '.join(schema)}, got {key!r}.")
    if form.schema[key].kind == "tensor":
        raise ConfigError(f"`key` must name a text or a whole number, and {key!r} is a tensor.")
