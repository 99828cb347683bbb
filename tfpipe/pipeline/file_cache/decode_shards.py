"""A cache of decoded images: shards with the records of the source's shards, their images decoded to one size.

Shard k has the records of the source's shard k, under the same numbers, and an index beside it. A shard appears under
its name when it is complete, with its index before it; one that is there already is kept.

Costs: a core as `decode.decode_for_device` says, and 0.3 ms a record for the Example, the checksums and the write, at
256 x 256.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe.errors import DataError, FormatError, TfpipeError, first_line
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
from tfpipe.format.tfrecord import FRAME_BYTES, record_footer, record_header
from tfpipe.pipeline.file_cache.copy_shards import ADVICE, MAX_COPIES
from tfpipe.pipeline.file_cache.fill_threads import FillCounter, run_in_threads
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stages.decode import decode_for_device
from tfpipe.pipeline.stages.list import list_runs_once, record_numbers
from tfpipe.pipeline.stages.read import read_runs
from tfpipe.system import file_io, host_limits

_BATCH_BYTES = 4 * 2**20  # of decoded images in one batch for the writer
_MAX_WRITERS = 8
_CORES_PER_WRITER = 4  # decoding an average photograph keeps that many cores as busy as writing it keeps one


def decode_shards(
    plan: ReadPlan, shards: Sequence[ShardInfo], folder: str, counter: FillCounter
) -> tuple[ShardInfo, ...]:
    """Writes shards of raw images, decoded on all cores.

    Args:
        plan: The read plan, whose source is decoded; its config says how, and to which size.
        shards: The shards of the source.
        folder: The folder of the new shards.
        counter: The counter of the cache.

    Returns:
        The new shards, in the order of the source's.

    Raises:
        FormatError: A record is damaged or its image cannot be decoded; or the index is not of its shard.
        DataError: A file cannot be read.
        OSError: A file cannot be written.
    """
    checks = [functools.partial(_find_finished, shard, folder, counter) for shard in shards]
    finished = run_in_threads(checks, MAX_COPIES, counter)
    missing = [k for k, info in enumerate(finished) if info is None]
    # The dataset that reads around damage would try without end to open a file that cannot be opened.
    openings = [functools.partial(file_io.read_start, plan.source.files[k], 1) for k in missing]
    run_in_threads(openings, MAX_COPIES, counter)
    # At least two writers: one alone would let the decoders wait whenever it puts a shard on disk.
    writers = min(max(host_limits.usable_cpus() // _CORES_PER_WRITER, 2), _MAX_WRITERS)
    parts = [missing[k::writers] for k in range(min(writers, len(missing)))]
    tasks = [functools.partial(_decode_part, plan, shards, part, folder, counter) for part in parts]
    written = dict(itertools.chain.from_iterable(run_in_threads(tasks, writers, counter)))
    return tuple(info or written[k] for k, info in enumerate(finished))


def _find_finished(shard: ShardInfo, folder: str, counter: FillCounter) -> ShardInfo | None:
    """Finds a shard that an earlier run finished, and reads it once for its SHA-256; None if there is none."""
    path = os.path.join(folder, shard.file)
    num_bytes = file_io.get_file_size(path)
    if num_bytes < 0:
        return None
    try:
        max_bytes = max_index_bytes(num_bytes, shard.records)
        index = file_io.read_bytes(os.path.join(folder, file_names.index_name(shard.file)), max_bytes)
        decode_index(index, num_bytes, shard.records)
    except (FileNotFoundError, FormatError):
        return None
    info = ShardInfo(shard.file, shard.records, num_bytes, file_io.hash_file(path))
    counter.add(shard.records, kept=True)
    return info


def _decode_part(
    plan: ReadPlan,
    shards: Sequence[ShardInfo],
    part: list[int],
    folder: str,
    counter: FillCounter,
) -> list[tuple[int, ShardInfo]]:
    """Writes the shards of one writer one after the other. One pipeline reads for all, because building it is slow."""
    runs = np.array([(k, 0, shards[k].records) for k in part], np.int64)
    payloads = _decode_runs(plan, runs)
    return [(k, _write_shard(shards[k], itertools.islice(payloads, shards[k].records), folder, counter)) for k in part]


def _write_shard(shard: ShardInfo, payloads: Iterator[bytes], folder: str, counter: FillCounter) -> ShardInfo:
    digest, sizes = hashlib.sha256(), []
    with file_io.new_file(os.path.join(folder, shard.file)) as out:
        for payload in payloads:
            for piece in (record_header(len(payload)), payload, record_footer(payload)):
                out.write(piece)
                digest.update(piece)
            sizes.append(len(payload) + FRAME_BYTES)
            counter.add(1)
        file_io.write_file(os.path.join(folder, file_names.index_name(shard.file)), encode_index(sizes))
    return ShardInfo(shard.file, shard.records, sum(sizes), digest.hexdigest())


def _decode_runs(plan: ReadPlan, runs: NDArray[np.int64]) -> Iterator[bytes]:
    """Yields the Examples of runs with raw images, in the order of the runs."""
    height, width = plan.decoded_size
    batch_size = max(1, min(64, _BATCH_BYTES // (height * width * 3)))
    batches = iter(_decode_batches(plan, runs, batch_size))
    done = 0
    while True:
        try:
            payloads, images = next(batches)
        except StopIteration:
            return
        except tf.errors.OpError as error:
            suspects = record_numbers(plan, runs)[done : done + batch_size]
            raise _explain(plan, suspects, error) from error
        for payload, image in zip(payloads.numpy(), images.numpy(), strict=True):
            yield _replace_image(plan, payload, image)
        done += len(payloads)


# AutoGraph's conversion would take longer than to decode a small dataset, and nothing here branches on a tensor.
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def _decode_batches(plan: ReadPlan, runs: NDArray[np.int64], batch_size: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False  # it would hold back at first, and a small cache is all beginning
    payloads = read_runs(plan, list_runs_once(plan, runs), plan.config.block_length)
    return (
        payloads.map(
            lambda _, payload: (payload, _decode(plan, payload)),
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
    return decode_for_device(
        features, plan.source.images, plan.config, plan.decoded_size, native=plan.decoder == "native"
    )


def _replace_image(plan: ReadPlan, payload: bytes, image: NDArray[np.uint8]) -> bytes:
    """Replaces the image of an Example by raw pixels, and squeezes its masks to the size of the image.

    All other features stay, also the original's height and width.

    Raises:
        FormatError: A mask is damaged.
    """
    features: dict[str, Any] = dict(decode_example(payload))
    masks = plan.source.schema.masks
    if masks:
        from tfpipe.images.errors import BadImage
        from tfpipe.images.masks import encode_mask, read_mask, resize_nearest

        height, width = plan.source.images.size or (int(features[key][0]) for key in (IMAGE_HEIGHT, IMAGE_WIDTH))
    for spec in masks:
        try:
            classes = read_mask(spec.check_stored(features), height * width)
        except BadImage as error:
            text = f"Every mask must be whole to be cached, and one is not: {error.reason}. {ADVICE}."
            raise FormatError(text) from None
        features[spec.name] = encode_mask(resize_nearest(classes, (image.shape[0], image.shape[1])))
    features[IMAGE_ENCODED] = image.tobytes()
    features |= {IMAGE_FORMAT: b"RAW", IMAGE_CHANNELS: 3, IMAGE_COLORSPACE: b"RGB"}
    return encode_example(features)


def _explain(plan: ReadPlan, suspects: NDArray[np.int64], error: tf.errors.OpError) -> TfpipeError:
    """Finds the bad record of a batch that failed, one by one, because `tf.data` does not name it."""
    for number in suspects.tolist():
        shard = int(np.searchsorted(plan.source.bases, number, side="right")) - 1
        record = number - int(plan.source.bases[shard])
        run = np.array([(shard, record, 1)], np.int64)
        _, payload = next(iter(read_runs(plan, list_runs_once(plan, run), 1)))
        reason = "it is damaged, or its file cannot be read"
        if payload.numpy():
            try:
                _decode(plan, payload)
                continue
            except tf.errors.OpError as decode_error:
                reason = f"its image cannot be decoded, {first_line(decode_error)}"
        place = f"record {record} of {plan.source.files[shard]} (byte {plan.source.offsets()[number]})"
        return FormatError(f"Every record must be whole to be cached, and {place} is not: {reason}. {ADVICE}.")
    return DataError(f"{plan.source.name} could not be read: {first_line(error)}. Run again.")
