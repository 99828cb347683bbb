"""The engine over a few records: the cost of reading them, and of making batches of them. No TensorFlow.

    payloads ──▶ a file of their own, 8 times ──▶ BatchMaker.read       make_reader
    payloads ──▶ columns, parsed once         ──▶ BatchMaker.decode     make_decoder

decode = make_decoder(source, config, payloads)
decode()                                # a batch of all records, each time with other crops
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfpipe._version import __version__
from tfpipe.engine.batch import Batch, BatchMaker, StoredBatch
from tfpipe.engine.cached_batch import CachingMaker, HalfCachedBatch
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.parse import parse_columns
from tfpipe.engine.plan import plan_batches
from tfpipe.engine.record_block import join_block
from tfpipe.engine.source import Source
from tfpipe.format import file_names
from tfpipe.format.example import decode_example
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Foreign, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.record_index import RecordWriter
from tfpipe.format.tfrecord import FRAME_BYTES
from tfpipe.images.decode import decode_pixels, make_image
from tfpipe.profiler.measure.record_sample import sample_records

_SHARDS = 8
"""How often the file of a sample is listed, so that an epoch has several steps and a step records from all over."""

_SPLIT = "train"


def make_decoder(source: Source, config: PipelineConfig, payloads: Sequence[bytes]) -> Callable[[], Batch]:
    """Returns a function that decodes a batch of all records, each time with other crops.

    Args:
        source: The data from which the records are.
        config: The options. With `cache` decoded the function crops kept images.
        payloads: The records.

    Raises:
        FormatError: A record does not hold what the manifest promises, or an image is damaged.
    """
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
    """Writes records to a file in a new folder, and returns the source of a dataset that has this file 8 times.

    Args:
        folder: The folder, which must not exist.
        source: The data from which the records are.
        payloads: The records.
    """
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
    """Returns a function that reads the records of a step, each time of the next one.

    Args:
        sample: A dataset from `write_sample`.
        config: The options; a cache is left out.
    """
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
        info, manifest = replace(source.manifest.splits[split], shards=shards, chosen=None), source.manifest
        manifest = replace(manifest, foreign=None if manifest.foreign is None else foreign)
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
        index_files=(),
        chosen=None,
    )


def _make_maker(sample: Source, config: PipelineConfig) -> BatchMaker:
    """Makes a maker of batches that have as many records as a shard of the sample."""
    assert sample.manifest is not None
    assert sample.split is not None
    assert sample.shard_records is not None
    config = replace(config, batch_size=sample.shard_records[0], block_records=None)
    return BatchMaker(plan_batches(sample, config), sample.manifest, sample.split)
