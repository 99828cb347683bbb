"""A cache of encoded records: shards copied as they are, with their indexes.

A shard appears under its name when it is complete, with its index before it; one that is there already is kept.

Costs: one read, one write and one SHA-256 (0.5 to 1 ms a MB on one core).
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import tensorflow as tf

from tfpipe.errors import DataError, FormatError, first_line
from tfpipe.format import file_names
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.record_index import decode_index, max_index_bytes
from tfpipe.format.tfrecord import scan_records
from tfpipe.pipeline.file_cache.fill_threads import CHUNK_BYTES, FillCounter, run_in_threads
from tfpipe.system import file_io, object_store

MAX_COPIES = 8
"""Files read at once: an object store gives one reader a fraction of what it gives several."""

ADVICE = "Copy that file again, or leave `cache_dir` out and set `on_bad_record` to skip"


def copy_shards(
    directory: str, shards: Sequence[ShardInfo], folder: str, counter: FillCounter
) -> tuple[ShardInfo, ...]:
    """Copies shards with their indexes, each checked against its SHA-256.

    Args:
        directory: The directory or URL of the source.
        shards: The shards of the source.
        folder: The folder of the copies.
        counter: The counter of the cache.

    Returns:
        The copied shards, which are those of the source.

    Raises:
        FormatError: A file is missing or is not what the manifest says; if a record is damaged, the message names it.
        DataError: A file cannot be read.
        OSError: A file cannot be written.
    """
    tasks = [functools.partial(_copy_shard, directory, shard, folder, counter) for shard in shards]
    run_in_threads(tasks, MAX_COPIES, counter)
    return tuple(shards)


def _copy_shard(directory: str, shard: ShardInfo, folder: str, counter: FillCounter) -> None:
    target = os.path.join(folder, shard.file)
    _copy_index(directory, shard, folder)
    if file_io.get_file_size(target) == shard.bytes and file_io.hash_file(target) == shard.sha256:
        counter.add(shard.records, kept=True)
        return
    source = file_io.join(directory, shard.file)
    digest, copied = hashlib.sha256(), 0
    with file_io.new_file(target) as out:
        for chunk in _read_chunks(source):
            out.write(chunk)
            digest.update(chunk)
            copied += len(chunk)
            counter.add(shard.records * len(chunk) / max(shard.bytes, 1))
            if copied > shard.bytes:
                break  # the file is a wrong one, and the rest of it is not worth the disk
        if copied != shard.bytes:
            got = f"{copied:,}" if copied < shard.bytes else "more"
            raise FormatError(f"{source} must have {shard.bytes:,} bytes, as its manifest says, got {got}. {ADVICE}.")
        if digest.hexdigest() != shard.sha256:
            raise FormatError(_describe_damage(source, out, shard))


def _copy_index(directory: str, shard: ShardInfo, folder: str) -> None:
    name = file_names.index_name(shard.file)
    path = file_io.join(directory, name)
    target = os.path.join(folder, name)
    if file_io.get_file_size(target) >= 0:
        return  # its shard may have been checked against it; and a source may be gone
    try:
        data = file_io.read_bytes(path, max_index_bytes(shard.bytes, shard.records))
        decode_index(data, shard.bytes, shard.records)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing. {ADVICE}.") from None
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    file_io.write_file(target, data)


def _read_chunks(path: str) -> Iterator[bytes]:
    """Yields the bytes of a local file or of a URL."""
    try:
        if object_store.can_read(path):
            yield from object_store.iterate(path, CHUNK_BYTES)
        elif file_io.is_url(path):
            with tf.io.gfile.GFile(path, "rb") as remote:
                while chunk := remote.read(CHUNK_BYTES):
                    yield chunk
        else:
            with file_io.open_file(path) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except (FileNotFoundError, NotADirectoryError, tf.errors.NotFoundError):
        raise FormatError(f"{path} is missing. {ADVICE}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except tf.errors.OpError as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}.") from error


def _describe_damage(source: str, copy: BinaryIO, shard: ShardInfo) -> str:
    """Describes the first damaged record in the copy, if there is one, else the wrong SHA-256."""
    copy.flush()
    try:
        with open(copy.name, "rb") as file:
            for _ in scan_records(file):
                pass
    except FormatError as error:
        return f"Every record must be whole to be cached. {source}: {error} {ADVICE}."
    return f"{source} must have the SHA-256 of its manifest, {shard.sha256}, and has another one. {ADVICE}."
