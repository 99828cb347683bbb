"""What fills a cache in files: shards copied as they are, or with their images decoded to one size.

Either way shard k has the records of the source's shard k, under the same numbers, and an index beside it. A shard
appears under its name when it is complete, with its index before it; one that is there already is kept.

Costs: copying is one read, one write and one SHA-256 (0.5 to 1 ms a MB on one core). Decoding costs a core as
`decode.decode_for_device` says, and 0.3 ms a record for the Example, the checksums and the write, at 256 x 256.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.errors import DataError, FormatError, TfpipeError
from tfpipe.format import file_names
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.manifest import ShardInfo
from tfpipe.format.record_index import decode_index, encode_index, max_index_bytes
from tfpipe.format.schema import (
    IMAGE_CHANNELS,
    IMAGE_COLORSPACE,
    IMAGE_ENCODED,
    IMAGE_FORMAT,
    IMAGE_HEIGHT,
    IMAGE_WIDTH,
)
from tfpipe.format.tfrecord import FRAME_BYTES, record_footer, record_header, scan_records
from tfpipe.pipeline.file_cache import files
from tfpipe.pipeline.file_cache.files import CHUNK_BYTES, Progress
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages.decode import decode_for_device
from tfpipe.pipeline.stages.list import list_runs_once, record_numbers
from tfpipe.pipeline.stages.read import read_runs
from tfpipe.system import file_io, host_limits

_COPIES = 8  # shards copied at once: an object store gives one reader a fraction of what it gives several
_BATCH_BYTES = 4 * 2**20  # of decoded images that are handed over at once
_MOST_WRITERS = 8
_CORES_PER_WRITER = 4  # decoding an average photograph keeps that many cores as busy as writing it keeps one
_MEND = "Copy that file again, or leave `cache_dir` out and set `on_bad_record` to skip"


# copy


def copy_shards(directory: str, shards: Sequence[ShardInfo], folder: str, progress: Progress) -> tuple[ShardInfo, ...]:
    """Copies shards with their indexes, each checked against its SHA-256.

    Raises:
        FormatError: A file is missing or is not what the manifest says; where a record is damaged, which.
        DataError: A file cannot be read.
        OSError: One cannot be written.
    """
    work = [functools.partial(_copy_shard, directory, shard, folder, progress) for shard in shards]
    files.in_threads(work, _COPIES, progress)
    return tuple(shards)


def _copy_shard(directory: str, shard: ShardInfo, folder: str, progress: Progress) -> None:
    target = os.path.join(folder, shard.file)
    _copy_index(directory, shard, folder)
    if files.file_size(target) == shard.bytes and files.sha256_of(target) == shard.sha256:
        progress.add(shard.records, kept=True)
        return
    source = file_io.join(directory, shard.file)
    digest, copied = hashlib.sha256(), 0
    with file_io.new_file(target) as out:
        for chunk in _chunks(source):
            out.write(chunk)
            digest.update(chunk)
            copied += len(chunk)
            progress.add(shard.records * len(chunk) / max(shard.bytes, 1))
            if copied > shard.bytes:
                break  # whatever it is, it is not worth the disk
        if copied != shard.bytes:
            got = f"{copied:,}" if copied < shard.bytes else "more"
            raise FormatError(f"{source} must have {shard.bytes:,} bytes, as its manifest says, got {got}. {_MEND}.")
        if digest.hexdigest() != shard.sha256:
            raise FormatError(_what_is_damaged(source, out, shard))


def _copy_index(directory: str, shard: ShardInfo, folder: str) -> None:
    name = file_names.index_name(shard.file)
    path = file_io.join(directory, name)
    target = os.path.join(folder, name)
    if files.file_size(target) >= 0:
        return  # its shard may have been checked against it; and a source may be gone
    try:
        data = file_io.read_bytes(path, max_index_bytes(shard.bytes, shard.records))
        decode_index(data, shard.bytes, shard.records)
    except FileNotFoundError:
        raise FormatError(f"{path} is missing. {_MEND}.") from None
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    file_io.write_file(target, data)


def _chunks(path: str) -> Iterator[bytes]:
    """The bytes of a local file or of a URL."""
    try:
        if file_io.is_url(path):
            with tf.io.gfile.GFile(path, "rb") as remote:
                while chunk := remote.read(CHUNK_BYTES):
                    yield chunk
        else:
            with file_io.open_file(path) as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
    except (FileNotFoundError, NotADirectoryError, tf.errors.NotFoundError):
        raise FormatError(f"{path} is missing. {_MEND}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except tf.errors.OpError as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}.") from error


def _what_is_damaged(source: str, copy: BinaryIO, shard: ShardInfo) -> str:
    """Names the first damaged record, if one is; the copy is still there to look into."""
    copy.flush()
    try:
        with open(copy.name, "rb") as file:
            for _ in scan_records(file):
                pass
    except FormatError as error:
        return f"Every record must be whole to be cached. {source}: {error} {_MEND}."
    return f"{source} must have the SHA-256 of its manifest, {shard.sha256}, and has another one. {_MEND}."


# decode


def decode_shards(
    plan: ReadPlan, shards: Sequence[ShardInfo], folder: str, progress: Progress
) -> tuple[ShardInfo, ...]:
    """Writes shards of raw images, decoded on all cores.

    Args:
        plan: Its source is what is decoded; its config says how, and to which size.
        shards: The source's.
        folder: Where they go.
        progress: Counts them.

    Raises:
        FormatError: A record is damaged or its image cannot be decoded; or the index is not of its shard.
        DataError: A file cannot be read.
        OSError: One cannot be written.
    """
    look = [functools.partial(_finished, shard, folder, progress) for shard in shards]
    found = files.in_threads(look, _COPIES, progress)
    missing = [k for k, info in enumerate(found) if info is None]
    # A file that cannot be opened is tried again for ever by the dataset that reads around damage.
    opening = [functools.partial(file_io.read_start, plan.source.files[k], 1) for k in missing]
    files.in_threads(opening, _COPIES, progress)
    # One alone would let the decoders wait whenever it puts a shard on disk.
    writers = min(max(host_limits.usable_cpus() // _CORES_PER_WRITER, 2), _MOST_WRITERS)
    parts = [missing[k::writers] for k in range(min(writers, len(missing)))]
    work = [functools.partial(_decode_part, plan, shards, part, folder, progress) for part in parts]
    made = dict(itertools.chain.from_iterable(files.in_threads(work, writers, progress)))
    return tuple(info or made[k] for k, info in enumerate(found))


def _finished(shard: ShardInfo, folder: str, progress: Progress) -> ShardInfo | None:
    """A shard that an earlier run finished; it is read once for its SHA-256."""
    path = os.path.join(folder, shard.file)
    num_bytes = files.file_size(path)
    if num_bytes < 0:
        return None
    try:
        most = max_index_bytes(num_bytes, shard.records)
        index = file_io.read_bytes(os.path.join(folder, file_names.index_name(shard.file)), most)
        decode_index(index, num_bytes, shard.records)
    except (FileNotFoundError, FormatError):
        return None
    info = ShardInfo(shard.file, shard.records, num_bytes, files.sha256_of(path))
    progress.add(shard.records, kept=True)
    return info


def _decode_part(
    plan: ReadPlan,
    shards: Sequence[ShardInfo],
    part: list[int],
    folder: str,
    progress: Progress,
) -> list[tuple[int, ShardInfo]]:
    """One writer's shards, one after the other, out of one pipeline: building that takes a while."""
    runs = np.array([(k, 0, shards[k].records) for k in part], np.int64)
    payloads = _decoded(plan, runs)
    return [(k, _write_shard(shards[k], itertools.islice(payloads, shards[k].records), folder, progress)) for k in part]


def _write_shard(shard: ShardInfo, payloads: Iterator[bytes], folder: str, progress: Progress) -> ShardInfo:
    digest, sizes = hashlib.sha256(), []
    with file_io.new_file(os.path.join(folder, shard.file)) as out:
        for payload in payloads:
            for piece in (record_header(len(payload)), payload, record_footer(payload)):
                out.write(piece)
                digest.update(piece)
            sizes.append(len(payload) + FRAME_BYTES)
            progress.add(1)
        file_io.write_file(os.path.join(folder, file_names.index_name(shard.file)), encode_index(sizes))
    return ShardInfo(shard.file, shard.records, sum(sizes), digest.hexdigest())


def _decoded(plan: ReadPlan, runs: NDArray[np.int64]) -> Iterator[bytes]:
    """The Examples of runs with raw images, in their order."""
    height, width = plan.decoded_size
    batch_size = max(1, min(64, _BATCH_BYTES // (height * width * 3)))
    batches = iter(_decoded_batches(plan, runs, batch_size))
    done = 0
    while True:
        try:
            payloads, images = next(batches)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            suspects = record_numbers(plan, runs)[done : done + batch_size]
            raise _explained(plan, suspects, error) from error
        for payload, image in zip(payloads.numpy(), images.numpy(), strict=True):
            yield _raw_example(payload, image)
        done += len(payloads)


def _decoded_batches(plan: ReadPlan, runs: NDArray[np.int64], batch_size: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False  # it would hold back at first, and a small cache is all beginning
    payloads = read_runs(plan, list_runs_once(plan, runs), plan.config.block_length)
    return (
        payloads.map(
            lambda payload: (payload, _decode(plan, payload)),
            num_parallel_calls=plan.config.num_parallel_calls or host_limits.usable_cpus(),
            deterministic=True,
        )
        .batch(batch_size)
        .prefetch(1)
        .with_options(options)
    )


def _decode(plan: ReadPlan, payload: tf.Tensor) -> tf.Tensor:
    keys = {IMAGE_ENCODED: tf.string, IMAGE_HEIGHT: tf.int64, IMAGE_WIDTH: tf.int64}
    specs = {key: tf.io.FixedLenFeature([], dtype) for key, dtype in keys.items()}
    features = tf.io.parse_single_example(payload, specs)
    return decode_for_device(features, plan.source.images, plan.config, plan.decoded_size)


def _raw_example(payload: bytes, image: NDArray[np.uint8]) -> bytes:
    """The Example with its image replaced; all else stays, also the original's height and width."""
    features: dict[str, Any] = dict(decode_example(payload))
    features[IMAGE_ENCODED] = image.tobytes()
    features |= {IMAGE_FORMAT: b"RAW", IMAGE_CHANNELS: 3, IMAGE_COLORSPACE: b"RGB"}
    return encode_example(features)


# what is wrong with a record


def _explained(plan: ReadPlan, suspects: NDArray[np.int64], error: tf.errors.OpError) -> TfpipeError:
    """Goes through the records of a batch that failed, one by one: `tf.data` does not say which it was."""
    for number in suspects.tolist():
        shard = int(np.searchsorted(plan.source.bases, number, side="right")) - 1
        record = number - int(plan.source.bases[shard])
        run = np.array([(shard, record, 1)], np.int64)
        payload = next(iter(read_runs(plan, list_runs_once(plan, run), 1)))
        reason = "it is damaged, or its file cannot be read"
        if payload.numpy():
            try:
                _decode(plan, payload)
                continue
            except tf.errors.OpError as found:
                reason = f"its image cannot be decoded, {_reason(found)}"
        place = f"record {record} of {plan.source.files[shard]} (byte {plan.source.offsets()[number]})"
        return FormatError(f"Every record must be whole to be cached, and {place} is not: {reason}. {_MEND}.")
    return DataError(f"{plan.source.name} could not be read: {_reason(error)}. Run again.")


def _reason(error: tf.errors.OpError) -> str:
    """The first line of what TensorFlow says, without the names of its operations."""
    text = re.sub(r"\{\{.*?\}\}|\[Op:.*", "", error.message or type(error).__name__)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(". ")[:300]
