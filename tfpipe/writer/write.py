"""Writes a dataset of records that Python code makes: `tfpipe.write`.

The files are gathered in a folder beside the output, which is renamed at the end. So the final name holds the whole
dataset or nothing, and the same call completes a run that was killed.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from tfpipe._version import __version__
from tfpipe.dataset.dataset_files import check_local
from tfpipe.dataset.load import load_manifest
from tfpipe.errors import ConfigError, DataError, TfpipeError
from tfpipe.fields import Field
from tfpipe.format import file_names
from tfpipe.format.example import FeatureLike, encode_example
from tfpipe.format.file_names import MAX_SHARDS, shard_name
from tfpipe.format.manifest import Manifest
from tfpipe.storage import file_io
from tfpipe.system.arguments import check_at_top, check_count, check_path
from tfpipe.system.host_limits import usable_cpus
from tfpipe.writer.count_record import count_record
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.shard_folder import ShardFolder, ShardWriter
from tfpipe.writer.working_folder import check_output, hash_values
from tfpipe.writer.written_shard import WrittenShard, make_dataset_files, make_manifest

Records: TypeAlias = Iterable[Mapping[str, Any]] | Callable[[int], Iterable[Mapping[str, Any]]]
"""The records of a split: an iterable of all, or a function of a shard's number that returns those of the shard."""

_ROUND_BYTES, _OBJECT_BYTES = 16 << 20, 100  # of records that threads write at once; Python's overhead for a record
_KEY_BYTES = 16


class WriteFolder(ShardFolder):
    """The folder in which an unfinished dataset is gathered."""

    ending = ".tfpipe-write"


@dataclass(frozen=True)
class WriteJob:
    """The settings of a run."""

    folder: WriteFolder
    form: RecordForm
    key: str | None  # the feature that identifies a record; None: not checked
    refuse_nan: bool
    workers: int  # processes or threads; 0: this one alone

    def check(self, record: Any, digests: set[bytes]) -> dict[str, FeatureLike]:
        """Checks a record and returns its features; `digests` has the hashes of earlier keys, and gets the new one."""
        checked = self.form.check(record)
        if self.key is not None:
            value = checked[self.key]
            if (digest := hash_key(value)) in digests:
                raise ConfigError(
                    f"Feature {self.key!r} must identify a record, but an earlier one has {value!r:.80} too."
                )
            digests.add(digest)
        return checked

    def new_shard(self, name: str) -> AbstractContextManager[ShardWriter]:
        """Returns a context manager that yields the writer of a shard."""
        count = partial(count_record, schema=self.form.schema, refuse_nan=self.refuse_nan)
        return self.folder.new_shard(name, count, self.form.schema, self.form.label_names)


def count_shards(num_shards: int | Mapping[str, int], splits: Iterable[str]) -> dict[str, int]:
    """Returns the number of shards of each split, after a check."""
    splits = list(splits)
    if isinstance(num_shards, Mapping) and set(num_shards) != set(splits):
        raise ConfigError(f"`num_shards` must name the splits {', '.join(splits)}, got {', '.join(num_shards)}.")
    counts = {split: num_shards[split] if isinstance(num_shards, Mapping) else num_shards for split in splits}
    for count in counts.values():
        if type(count) is not int or not 1 <= count <= MAX_SHARDS:
            raise ConfigError(f"`num_shards` must be from 1 to {MAX_SHARDS:,}, got {count!r}.")
    return counts


def check_key(form: RecordForm, schema: Mapping[str, Field], key: str) -> None:
    """Checks that the value named `key` can identify records: a text or a whole number."""
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
def naming(name: str) -> Iterator[None]:
    """Puts a record's name, such as "Record 3 of shard 0", before the message of an error about its values."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def name_records(source: str, make: Callable[[], Iterable[Any]]) -> Iterator[tuple[str, Any]]:
    """Yields each record's name, for messages, and the record; an error of the user's code becomes a `DataError`."""
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
    by_split = dict(records) if isinstance(records, Mapping) else {"train": records}
    if not by_split:
        raise ConfigError("`records` must name a split, got none.")
    for split, source in by_split.items():
        file_names.check_split_name(split)
        if not callable(source) and not isinstance(source, Iterable):
            what = type(source).__name__
            raise ConfigError(f"The records of {split!r} must be an iterable, or a function of a shard, got a {what}.")
    counts = count_shards(num_shards, by_split)
    if workers is not None:
        check_count("workers", workers)
    form = RecordForm(schema)
    if key is not None:
        check_key(form, schema, key)
    job = WriteJob(WriteFolder(target), form, key, refuse_nan, usable_cpus() if workers is None else workers)
    with job.folder.open(identify_records(form, counts, key, refuse_nan), f"writes to {path}"):
        written = {split: write_split(job, split, counts[split], by_split[split]) for split in counts}
        put_together(job, os.path.basename(target), written)
        job.folder.publish()
    return load_manifest(path)


def identify_records(form: RecordForm, num_shards: int | Mapping[str, int], key: str | None, refuse_nan: bool) -> str:
    """Returns a hash of all that shapes the files, besides the records themselves."""
    counts = num_shards if isinstance(num_shards, int) else dict(num_shards)
    return hash_values(__version__, form.schema.to_json(), form.label_names, counts, key, refuse_nan)


def write_split(job: WriteJob, split: str, num_shards: int, records: Records) -> list[WrittenShard]:
    """Writes the shards of a split into the working folder, or keeps those that an earlier run wrote."""
    write_all: Callable[..., list[WrittenShard]] = _write_from_function if callable(records) else _write_from_iterable
    return write_all(job, split, num_shards, records)


def put_together(
    job: WriteJob,
    name: str,
    written: Mapping[str, list[WrittenShard]],
    stands_on: Mapping[str, str] | None = None,
) -> None:
    """Moves shards to the result and writes its other files; a column `stands_on` a dataset's split fingerprints."""
    for shards in written.values():
        job.folder.move_shards((shard.info.file, shard) for shard in shards)
    manifest = replace(make_manifest(name, job.form, written), stands_on=dict(stands_on or {}))
    for file, data in make_dataset_files(manifest).items():
        file_io.write_file(job.folder.result(file), data, makes_folders=True)


def _write_from_function(
    job: WriteJob, split: str, num_shards: int, records: Callable[[int], Iterable[Any]]
) -> list[WrittenShard]:
    """Writes the shards of a split by calling a function for each, and keeps those that an earlier run finished."""
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
    with job.new_shard(name) as writer:
        for title, record in name_records(f"shard {number} of {split!r}", partial(records, number)):
            with naming(title):
                checked = job.check(record, digests)
                writer.add(checked, encode_example(checked))
    return number, writer.describe_shard(name)


def _write_from_iterable(job: WriteJob, split: str, num_shards: int, records: Iterable[Any]) -> list[WrittenShard]:
    """Writes record i of a split to shard i modulo `num_shards`, all anew after a run that was killed.

    Threads write some megabytes of all shards while the next records are made.
    """
    names = [shard_name(split, number, num_shards) for number in range(num_shards)]
    digests = set[bytes]()
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(job.new_shard(name)) for name in names]
        run: Any = stack.enter_context(ThreadPoolExecutor(job.workers)).map if job.workers else map
        waiting, num_bytes, running = [list[bytes]() for _ in writers], 0, iter(())
        for number, (title, record) in enumerate(name_records(repr(split), lambda: records)):
            with naming(title):
                checked = job.check(record, digests)
                payload = encode_example(checked)
                writers[number % num_shards].count(checked)
            waiting[number % num_shards].append(payload)
            num_bytes += len(payload) + _OBJECT_BYTES
            if num_bytes >= _ROUND_BYTES:
                list(running)  # so that a shard is in one thread at a time
                running = run(ShardWriter.write_all, writers, waiting)
                waiting, num_bytes = [[] for _ in writers], 0
        list(running)
        list(run(ShardWriter.write_all, writers, waiting))
    return [writer.describe_shard(name) for name, writer in zip(names, writers, strict=True)]
