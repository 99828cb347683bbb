"""The settings of a run of `tfpipe.write`, which worker processes share, and the files that it adds records to."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfpipe.errors import ConfigError, DataError, TfpipeError
from tfpipe.fields import Field
from tfpipe.format.example import FeatureLike
from tfpipe.format.file_names import MAX_SHARDS
from tfpipe.format.shard_stats import ShardStats
from tfpipe.writer.count_record import count_record
from tfpipe.writer.record_facts import RecordFacts
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.shard_folder import ShardFolder

_KEY_BYTES = 16


class WriteFolder(ShardFolder):
    """The folder in which an unfinished dataset is gathered."""

    ending = ".tfpipe-write"


@dataclass(frozen=True)
class WriteJob:
    """The settings of a run."""

    folder: WriteFolder
    form: RecordForm
    key: str | None  # None: a record's place identifies it
    refuse_nan: bool
    workers: int  # processes or threads; 0: this one alone

    def check(self, record: Any, digests: set[bytes]) -> dict[str, FeatureLike]:
        """Returns a record in the form that is encoded; the `digests` are of the keys of the records before it."""
        checked = self.form.check(record)
        if self.key is not None:
            value = checked[self.key]
            if (digest := hash_key(value)) in digests:
                raise ConfigError(
                    f"Feature {self.key!r} must identify a record, but an earlier one has {value!r:.80} too."
                )
            digests.add(digest)
        return checked

    def count(self, stats: ShardStats, features: Mapping[str, Any]) -> None:
        """Counts a record; errors are those of `count_record`."""
        count_record(stats, features, schema=self.form.schema, refuse_nan=self.refuse_nan)

    def new_facts(self) -> RecordFacts | None:
        """Returns the facts of a shard that is about to be written."""
        return RecordFacts.of_new_shard(self.form.schema, self.form.label_names)


def count_shards(num_shards: int | Mapping[str, int], splits: Iterable[str]) -> dict[str, int]:
    """Returns the number of shards of each split."""
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


def hash_key(value: Any) -> bytes:
    """Returns the hash of the checked value that identifies a record."""
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes):
        data = str(int(value)).encode()  # of any size: the encoder says what does not fit
    return hashlib.blake2b(data, digest_size=_KEY_BYTES).digest()


@contextlib.contextmanager
def naming(place: str) -> Iterator[None]:
    """Adds the place of a record to the message of an error about its values."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def name_records(source: str, make: Callable[[], Iterable[Any]]) -> Iterator[tuple[str, Any]]:
    """Yields the place of each record for messages, and the record."""
    count = 0
    try:
        for record in make():
            yield f"Record {count} of {source}", record
            count += 1
    except TfpipeError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        raise DataError(f"Record {count} of {source} could not be made: {reason}.") from error
