"""Writes a dataset of records that Python code makes: `tfpipe.write`.

The files are gathered in a folder beside the output, which is renamed at the end. So the final name holds the whole
dataset or nothing, and the same call completes a run that was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

from tfpipe._version import __version__
from tfpipe.dataset.load import load_manifest
from tfpipe.dataset.parts import check_local
from tfpipe.errors import ConfigError, DataError, TfpipeError
from tfpipe.fields import Field
from tfpipe.format import file_names
from tfpipe.format.example import FeatureLike, encode_example
from tfpipe.format.file_names import MAX_SHARDS, shard_name
from tfpipe.format.manifest import Manifest
from tfpipe.format.shard_stats import ShardStats
from tfpipe.storage import file_io
from tfpipe.system.arguments import check_at_top, check_count, check_path
from tfpipe.system.host_limits import usable_cpus
from tfpipe.writer.count_record import count_record
from tfpipe.writer.record_facts import RecordFacts
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.shard_folder import ShardFolder, ShardWriter
from tfpipe.writer.working_folder import check_output, hash_facts
from tfpipe.writer.written_shard import WrittenShard, make_dataset_files, make_manifest, make_split_info

Records: TypeAlias = Iterable[Mapping[str, Any]] | Callable[[int], Iterable[Mapping[str, Any]]]
"""The records of a split: an iterable of all, or a function of a shard's number that returns those of the shard."""

_BATCH_BYTES, _BATCH_RECORDS = 1 << 20, 256  # what a thread writes at once: a task costs about 40 us
_BATCHES_AHEAD = 2  # of each thread
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


def write(
    records: Records | Mapping[str, Records],
    output: str | os.PathLike[str],
    schema: Mapping[str, Field],
    *,
    num_shards: int | Mapping[str, int],
    workers: int | None = None,
    key: str | None = None,
    refuse_nan: bool = False,
) -> Manifest:
    """Writes a dataset of any records, without TensorFlow and Beam.

    A run that was killed goes on when the same call is made again: shards that a function has finished are not made
    again. An iterable gives all of its records anew, so they are written anew.

    Args:
        records: The records: mappings from the names in `schema` to values. Either an iterable of all, of which the
            i-th goes to shard i modulo `num_shards`; or a function of a shard's number that returns the records of this
            shard. Or a mapping from the names of splits to either of them; otherwise the split is "train".
        output: The directory of the dataset. It must not exist yet, or be empty.
        schema: The kind of each value by its name: `Tensor`, `Text`, `Values`, `Label`, `Labels`, `Image`,
            `Images` or `Mask`.
        num_shards: The number of shards of a split, or of each split by its name.
        workers: The number of worker processes for functions, which must stand at the top of a module; of threads for
            an iterable, which this process runs. 0: this process and thread alone. None: one for each core.
        key: The name of a value that no other record has: a text or a whole number.
        refuse_nan: Whether a tensor with NaN is an error. Otherwise `tfpipe inspect` shows how many there are.

    Returns:
        The manifest, as `load_manifest` returns it.

    Raises:
        ConfigError: An argument cannot be used, or a record does not fit the schema; the message names the record, the
            feature, what was expected and what came.
        DataError: The user's code raised an error, the output cannot be written, or a split has no record.
    """
    check_path("output", output)
    path = os.fspath(output)
    check_local(path)
    target = check_output(path)
    by_split = _split_records(records)
    counts = count_shards(num_shards, by_split)
    if workers is not None:
        check_count("workers", workers)
    form = RecordForm(schema)
    if key is not None:
        check_key(form, schema, key)
    job = WriteJob(WriteFolder(target), form, key, refuse_nan, usable_cpus() if workers is None else workers)
    with job.folder.open(_identify(job, counts), f"writes to {path}"):
        written = {split: write_split(job, split, counts[split], by_split[split]) for split in counts}
        put_together(job, os.path.basename(target), written)
        job.folder.publish()
    return load_manifest(path)


def _split_records(records: Records | Mapping[str, Records]) -> dict[str, Records]:
    by_split = dict(records) if isinstance(records, Mapping) else {"train": records}
    if not by_split:
        raise ConfigError("`records` must name a split, got none.")
    for split, source in by_split.items():
        file_names.check_split_name(split)
        if not callable(source) and not isinstance(source, Iterable):
            what = type(source).__name__
            raise ConfigError(f"The records of {split!r} must be an iterable, or a function of a shard, got a {what}.")
    return by_split


def _identify(job: WriteJob, counts: Mapping[str, int]) -> str:
    """Returns a hash of all that shapes the files, besides the records themselves."""
    form = job.form
    return hash_facts(__version__, form.schema.to_json(), form.label_names, dict(counts), job.key, job.refuse_nan)


def write_split(job: WriteJob, split: str, num_shards: int, records: Records) -> list[WrittenShard]:
    """Writes the shards of a split into the working folder, or keeps those that an earlier run wrote."""
    if callable(records):
        written = _write_from_function(job, split, num_shards, records)
    else:
        written = _write_from_iterable(job, split, num_shards, records)
    if not any(shard.info.records for shard in written):
        raise DataError(f"Split {split!r} must have a record, got none.")
    return written


def put_together(
    job: WriteJob,
    name: str,
    written: Mapping[str, list[WrittenShard]],
    stands_on: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Puts a dataset together, or a column that `stands_on` others' fingerprints; the manifest comes last."""
    for shards in written.values():
        job.folder.move_shards((shard.info.file, shard) for shard in shards)
    num_classes = len(job.form.label_names)
    splits = {split: make_split_info(split, shards, num_classes) for split, shards in written.items()}
    manifest = replace(make_manifest(name, job.form, splits), stands_on=dict(stands_on))
    for file, data in make_dataset_files(manifest).items():
        file_io.write_file(job.folder.result(file), data, makes_folders=True)


def _write_from_function(
    job: WriteJob, split: str, num_shards: int, records: Callable[[int], Iterable[Any]]
) -> list[WrittenShard]:
    """Writes all shards of a split, and keeps those that an earlier run finished."""
    workers = min(job.workers, num_shards)
    if not workers:
        return [_write_shard(job, split, num_shards, records, number)[1] for number in range(num_shards)]
    check_at_top("A function of a shard", records)
    shared = job, split, num_shards, records
    from tfpipe.system.process_pool import WorkerPool  # loads `multiprocessing`, which few users of this module need

    pool = WorkerPool(
        preload=["tfpipe.writer.write"],
        death="A worker process died: it was killed, memory ran out, or a library crashed. Make the same call again: "
        'what is written is kept. A script that starts workers must do so below `if __name__ == "__main__":`, '
        "because each of them loads it.",
        runs_script=True,
    )
    results = dict(pool.map_unordered(_write_shard, range(num_shards), workers, shared=shared))
    return [results[number] for number in range(num_shards)]


def _write_shard(
    job: WriteJob, split: str, num_shards: int, records: Callable[[int], Iterable[Any]], number: int
) -> tuple[int, WrittenShard]:
    """Writes a shard, or keeps the one that an earlier run finished; returns its number and its description."""
    name = shard_name(split, number, num_shards)
    finished = job.folder.find_finished(name)
    if finished is not None:
        return number, finished
    digests = set[bytes]()
    with job.folder.new_shard(name, job.count, job.new_facts()) as writer:
        for place, record in name_records(f"shard {number} of {split!r}", partial(records, number)):
            with naming(place):
                checked = job.check(record, digests)
                writer.add(checked, encode_example(checked))
    return number, writer.describe_shard(name)


def _write_from_iterable(job: WriteJob, split: str, num_shards: int, records: Iterable[Any]) -> list[WrittenShard]:
    """Writes all records of a split, the i-th to shard i modulo their number, anew after a run that was killed."""
    names = [shard_name(split, number, num_shards) for number in range(num_shards)]
    digests = set[bytes]()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(job.folder.new_shard(name, job.count, job.new_facts())) for name in names]
        pens = stack.enter_context(_Pens(writers, job.workers))
        for number, (place, record) in enumerate(name_records(repr(split), lambda: records)):
            with naming(place):
                checked = job.check(record, digests)
                payload = encode_example(checked)
                writers[number % num_shards].count(checked)
            pens.write(number % num_shards, payload)
        pens.finish()
    return [writer.describe_shard(name) for name, writer in zip(names, writers, strict=True)]


class _Pens:
    """The threads that write. Each has files of its own, so that records keep their order."""

    def __init__(self, writers: Sequence[ShardWriter], workers: int) -> None:
        self._writers = writers
        self._threads = [ThreadPoolExecutor(1) for _ in range(min(workers, len(writers)))]
        self._waiting: list[list[bytes]] = [[] for _ in writers]
        self._bytes = [0] * len(writers)
        self._started: deque[Future[None]] = deque()

    def __enter__(self) -> _Pens:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def write(self, number: int, payload: bytes) -> None:
        """Writes a record to the shard of this number, now or when more have come."""
        if not self._threads:
            self._writers[number].write(payload)
            return
        self._waiting[number].append(payload)
        self._bytes[number] += len(payload)
        if self._bytes[number] >= _BATCH_BYTES or len(self._waiting[number]) >= _BATCH_RECORDS:
            self._start(number)

    def finish(self) -> None:
        """Writes what waits, and returns when all is written."""
        for number in range(len(self._waiting) if self._threads else 0):
            self._start(number)
        while self._started:
            self._started.popleft().result()

    def _start(self, number: int) -> None:
        payloads, self._waiting[number], self._bytes[number] = self._waiting[number], [], 0
        thread = self._threads[number % len(self._threads)]
        self._started.append(thread.submit(self._write_all, self._writers[number], payloads))
        while len(self._started) > _BATCHES_AHEAD * len(self._threads):
            self._started.popleft().result()

    @staticmethod
    def _write_all(writer: ShardWriter, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            writer.write(payload)
