"""A few records of a pipeline's files, written into files of their own for the engine and for TensorFlow."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from tfpipe._version import __version__
from tfpipe.engine.batch import Batch, BatchMaker, StoredBatch
from tfpipe.engine.cached_batch import CachingMaker, HalfCachedBatch
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.parse import parse_columns
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.record_block import join_block
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Foreign, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.record_index import RecordWriter
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, decode_header
from tfpipe.images.decode import decode_pixels, make_image
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Stages
from tfpipe.storage import file_io
from tfpipe.system import host_limits

RECORDS = 32  # the number of records in a sample
_FILE_BUFFER_BYTES = 2**18  # tf.data's default; without a number it writes a line into the log
_COUNT_S = 1.0
_SHARDS = 8  # how often a sample's file is listed, so that an epoch has several steps
_SPLIT = "train"
_FILES = 64  # how often the file is listed: an epoch has a cost of its own, which many records must share


def sample_records(source: Source, features: Collection[str] = ()) -> list[bytes]:
    """Returns a few records of some files, `RECORDS` in all; none if these files are empty, or one is damaged."""
    shards = list(range(len(source.files)))[:: max(len(source.files) // 4, 1)][:4]
    by_number = source.is_split and source.shard_records is not None
    payloads = _sample_by_number(source, shards, features) if by_number else _sample_files(source, shards)
    return [payloads[i % len(payloads)] for i in range(RECORDS)] if payloads else []


def _sample_by_number(source: Source, shards: list[int], features: Collection[str]) -> list[bytes]:
    assert source.manifest is not None
    assert source.split is not None
    firsts, ends = source.bases[shards], source.bases[1:][shards]
    numbers = np.stack([firsts + k for k in range(RECORDS)])
    try:
        manifest = source.manifest.keep_columns(features)
        with RecordReader(manifest.directory, manifest, source.split) as reader:
            return reader.read_payloads(numbers[numbers < ends][:RECORDS])
    except (FormatError, DataError):  # the pipeline itself says so, or leaves the record out
        return []


def _sample_files(source: Source, shards: list[int]) -> list[bytes]:
    """Reads the first records of some files, which TensorFlow can read wherever they lie."""
    import tensorflow as tf

    records = tf.data.Dataset.from_tensor_slices([source.files[shard] for shard in shards]).interleave(
        lambda file: tf.data.TFRecordDataset(file, source.compression, _FILE_BUFFER_BYTES).take(RECORDS),
        cycle_length=4,
        num_parallel_calls=4,
    )
    try:
        return [payload.numpy() for payload in records.take(RECORDS)]
    except tf.errors.OpError:  # the pipeline itself says so, or leaves the record out
        return []


def measure_unread(payloads: Collection[bytes], read: Collection[str]) -> dict[str, float]:
    """Returns the share of the bytes of each feature that is not among those `read`, the largest one first."""
    sizes: dict[str, int] = {}
    for payload in payloads:
        for name, value in decode_example(payload).items():
            if name not in read:
                sizes[name] = sizes.get(name, 0) + len(encode_example({name: value}))
    total = sum(len(payload) + FRAME_BYTES for payload in payloads)
    return {name: size / total for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))}


def leave_out(payloads: Collection[bytes], features: Collection[str]) -> list[bytes]:
    """Returns the records without some features."""
    examples: list[Mapping[str, object]] = [decode_example(payload) for payload in payloads]
    return [encode_example({k: v for k, v in example.items() if k not in features}) for example in examples]  # type: ignore[misc]


def count_records(source: Source, max_s: float = _COUNT_S) -> tuple[int, float] | None:
    """Counts the records of local files, and their mean bytes unpacked; None if they are damaged, or hold nothing.

    After `max_s` seconds the rest is taken from the share of the bytes that were counted.
    """
    if any(map(file_io.is_url, source.files)):
        return None
    until = time.perf_counter() + max_s
    records = payload_bytes = file_bytes = 0
    try:
        for path in source.files:
            with file_io.open_file(path) as file:
                counted, size, position = _count_in_file(file, source, until)
            records, payload_bytes, file_bytes = records + counted, payload_bytes + size, file_bytes + position
            if time.perf_counter() > until:
                break
    except (OSError, FormatError):
        return None
    if not records or not file_bytes:
        return None
    return round(records * max(source.total_bytes / file_bytes, 1.0)), payload_bytes / records


def _count_in_file(file: BinaryIO, source: Source, until: float) -> tuple[int, int, int]:
    """Returns the records, the bytes of their payloads, and the bytes of the file that hold them."""
    records = payload_bytes = at = 0
    if source.compression:
        for payload in scan_compressed(file, source.compression):
            records, payload_bytes = records + 1, payload_bytes + len(payload)
            if time.perf_counter() > until:
                return records, payload_bytes, file.tell()
        return records, payload_bytes, os.fstat(file.fileno()).st_size
    while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
        length = decode_header(header)
        if length is None:
            raise FormatError(f"The record at byte {at} is damaged.")
        records, payload_bytes, at = records + 1, payload_bytes + length, at + length + FRAME_BYTES
        file.seek(at)
        if time.perf_counter() > until:
            break
    return records, payload_bytes, at


def make_decoder(source: Source, config: PipelineConfig, payloads: Sequence[bytes]) -> Callable[[], Batch]:
    """Returns a function that decodes a batch of all records, each time with other crops."""
    num_bytes = sum(len(payload) + FRAME_BYTES for payload in payloads)
    maker = _make_maker(describe_sample(source, (ShardInfo("sample", len(payloads), num_bytes, ""),), "sample"), config)
    numbers = np.arange(len(payloads))
    stored = StoredBatch(0, numbers, numbers, parse_columns(join_block(payloads), maker.kinds))
    epochs = itertools.count()
    if config.cache != "decoded":
        return lambda: maker.decode(replace(stored, epoch=next(epochs)))
    cached, none_missing = CachingMaker(maker), numbers[:0]
    cached.decode(HalfCachedBatch(0, numbers, numbers, stored))  # which fills the cache
    return lambda: cached.decode(HalfCachedBatch(next(epochs), numbers, none_missing, None))


def write_sample(folder: str, source: Source, payloads: Sequence[bytes]) -> Source:
    """Writes records to a file in a new folder, and returns the source of a dataset that has this file 8 times."""
    name = file_names.shard_name(_SPLIT, 0, 1)
    index = os.path.join(folder, file_names.index_name(name))
    os.makedirs(os.path.dirname(index))
    with open(os.path.join(folder, name), "wb") as file:
        writer = RecordWriter(file)
        for payload in payloads:
            writer.write(payload)
    with open(index, "wb") as file:
        file.write(writer.index)
    return describe_sample(source, (writer.describe(name),) * _SHARDS, folder)


def make_reader(sample: Source, config: PipelineConfig) -> Callable[[], StoredBatch]:
    """Returns a function that reads the records of a step of `write_sample`'s data, each time of the next one."""
    maker, steps = _make_maker(sample, replace(config, cache="none", cache_bytes=None)), itertools.count()
    return lambda: maker.read(*divmod(next(steps), maker.plan.steps_per_epoch))


def load_images(manifest: Manifest, split: str, config: PipelineConfig, count: int) -> list[Any]:
    """Returns the first images of a split, whole, as Pillow images: what a transform gets."""
    source = Source.from_manifest(manifest, split)
    payloads = sample_records(source)[:count]
    form = ImageForm.recorded(manifest.image) if manifest.foreign is None else ImageForm()
    assert source.image_key is not None
    stored: list[Any] = [decode_example(payload)[source.image_key] for payload in payloads]
    return [make_image(decode_pixels(images[0], form)) for images in stored]


def describe_sample(source: Source, shards: tuple[ShardInfo, ...], folder: str) -> Source:
    """Returns the source of a dataset that has only these shards, with records like those of another source."""
    split, foreign = source.split or _SPLIT, Foreign(".", source.image_key, source.label_key, source.label_base, "")
    if source.manifest is None:
        info = SplitInfo(split, shards, {}, (), ImageSizes(0, 0, 0.0, 0, 0, 0.0))
        manifest = Manifest(name="sample", splits={}, schema=source.schema, tool_version=__version__, foreign=foreign)
    else:
        info = replace(source.manifest.splits[split], shards=shards, chosen=None, unpacked_bytes=0)
        manifest = source.manifest
        if manifest.foreign is not None:
            manifest = replace(manifest, foreign=replace(manifest.foreign, root=".", compression=""))
    return replace(
        source,
        files=tuple(os.path.join(folder, shard.file) for shard in shards),
        total_bytes=info.bytes,
        record_bytes=info.bytes / info.records,
        shard_records=tuple(shard.records for shard in shards),
        counted_records=None,
        compression="",
        manifest=replace(manifest, splits={split: info}, directory=folder, columns=(), version=""),
        split=split,
        file_bytes=tuple(shard.bytes for shard in shards),
        chosen=None,
    )


def _make_maker(sample: Source, config: PipelineConfig) -> BatchMaker:
    """Makes a maker of batches that have as many records as a shard of the sample."""
    assert sample.manifest is not None
    assert sample.split is not None
    assert sample.shard_records is not None
    config = replace(config, batch_size=sample.shard_records[0], block_records=None)
    return BatchMaker(plan_batches(sample, config), sample.manifest, sample.split)


def write_file(path: str, source: Source, payloads: Sequence[bytes]) -> Source:
    """Writes records to a file, compressed as those of a source, and returns the source of only this file."""
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=source.compression)) as writer:
        for payload in payloads:
            writer.write(payload)
    size = os.path.getsize(path)
    return replace(
        source,
        files=(path,),
        total_bytes=size,
        record_bytes=size / len(payloads),
        shard_records=None,
        counted_records=len(payloads),
        manifest=None,
        split=None,
        file_bytes=(),
    )


def list_sizes(file: Source, config: PipelineConfig) -> tf.data.Dataset:
    """Returns the sizes of the records of a file without end, in batches: all that is done is to read them."""
    stages = _build(file, replace(config, cache="none"))
    records = Stages(stages[: stages.names.index("parse")], stages.options).dataset()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def measure(*element: Any) -> Any:
        return next(tf.strings.length(part) for part in tf.nest.flatten(element) if part.dtype == tf.string)

    return records.map(measure).repeat().batch(RECORDS)  # of the records themselves a batch would be a copy


def make_batches(file: Source, config: PipelineConfig) -> tf.data.Dataset:
    """Returns batches of the records of a file without end, read, decoded and augmented."""
    stages = _build(file, config).until("batch")
    assert stages.options is not None
    # A map and a batch are then one operation, as in the pipeline.
    stages.options.experimental_optimization.apply_default_optimizations = True
    return stages.dataset() if config.training else stages.dataset().repeat()


def _build(file: Source, config: PipelineConfig) -> Stages:
    copies = 1 if config.cache != "none" else _FILES
    threads = host_limits.usable_cpus()
    config = replace(
        config,
        order="throughput",
        max_bad_records=0,
        batch_size=RECORDS,
        tf_data=replace(
            config.tf_data,
            shuffle_buffer_size=RECORDS,
            read_parallel_calls=config.tf_data.read_parallel_calls or threads,
            num_parallel_calls=threads,
            autotune=False,
            map_fusion=False,
        ),
    )
    listed = replace(
        file,
        files=file.files * copies,
        total_bytes=file.total_bytes * copies,
        counted_records=(file.counted_records or 0) * copies,
    )
    return build_stages(listed, None, config)
