"""Writes shards whose records a function of the shard's number makes, several at once in worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfpipe.errors import ConfigError
from tfpipe.format.example import encode_example
from tfpipe.format.file_names import shard_name
from tfpipe.system.process_pool import Workers
from tfpipe.writer.job import WriteJob
from tfpipe.writer.shard_file import check_new, name_records, naming
from tfpipe.writer.written_shard import WrittenShard

_WORKERS = Workers(
    preload=["tfpipe.writer.from_function"],
    death="A worker process died: it was killed, memory ran out, or a library crashed. Make the same call again: what "
    "is written is kept.",
)


@dataclass(frozen=True)
class NewSplit:
    """A split that a function makes.

    Attributes:
        job: The settings.
        name: The name of the split.
        num_shards: The number of its shards.
        records: The function.
    """

    job: WriteJob
    name: str
    num_shards: int
    records: Callable[[int], Iterable[Any]]


def write_from_function(
    job: WriteJob, split: str, num_shards: int, records: Callable[[int], Iterable[Any]]
) -> list[WrittenShard]:
    """Writes all shards of a split, and keeps those that an earlier run finished.

    Raises:
        ConfigError: The function cannot be sent to worker processes, or a record does not fit.
        DataError: The function raised an error, or a worker process died.
    """
    whole = NewSplit(job, split, num_shards, records)
    workers = min(job.workers, num_shards)
    if not workers:
        return [write_shard(whole, number)[1] for number in range(num_shards)]
    try:
        pickle.dumps(records)
    except Exception as error:
        raise ConfigError(
            "A function of a shard must stand at the top of a module, where worker processes find it, got "
            f"{getattr(records, '__qualname__', records)!s:.80}. Move it there, or use workers=0."
        ) from error
    results = dict(_WORKERS.map_unordered(write_shard, range(num_shards), workers, shared=(whole,)))
    return [results[number] for number in range(num_shards)]


def write_shard(split: NewSplit, number: int) -> tuple[int, WrittenShard]:
    """Writes a shard, or keeps the one that an earlier run finished; returns its number and its description.

    Raises:
        ConfigError: A record does not fit.
        DataError: The function raised an error.
    """
    job, name = split.job, shard_name(split.name, number, split.num_shards)
    finished = job.folder.find_finished(name)
    if finished is not None:
        return number, finished
    keys: set[bytes] = set()
    with job.folder.new_shard(name, job.count, job.new_facts()) as writer:
        for place, record in name_records(f"shard {number} of {split.name!r}", partial(split.records, number)):
            with naming(place):
                checked = job.form.check(record)
                if job.key is not None:
                    check_new(keys, checked[job.key], job.key)
                writer.add(checked, encode_example(checked))
    return number, writer.describe_shard(name)
