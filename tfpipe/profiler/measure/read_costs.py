"""The cost of reading a record of local files, as it is and from files that `tfpipe reshard` would write.

A few of the records are written into files of their own, and the engine reads these again and again, or in throughput
order the pipeline's own stages. So the figures hold for files that the system has in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfpipe._version import __version__
from tfpipe.engine.buffers import allocate
from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.format.file_names import index_name
from tfpipe.format.manifest import Compression, ImageSizes, Manifest, ShardInfo, SplitInfo
from tfpipe.format.record_index import encode_index
from tfpipe.format.tfrecord import FRAME_BYTES
from tfpipe.pipeline.build import build_planned_stages
from tfpipe.pipeline.engine_stages import CALL_NAME
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stages
from tfpipe.profiler.measure.option_costs import BATCH, measure_costs_us
from tfpipe.profiler.measure.record_sample import leave_out, sample_records
from tfpipe.profiler.types import DatasetFacts
from tfpipe.system import host_limits
from tfpipe.system.file_io import is_url

_FILES = 64
"""How often the file is listed. An epoch has a cost of its own, which many records must share as they do elsewhere."""
_SPLIT = "train"
_MEMORY_FACTOR = 1.5  # of the mean size of a batch: what is never written takes no memory


def measure_read_costs(source: Source, config: PipelineConfig, facts: DatasetFacts) -> dict[str, float]:
    """Measures the processor time of reading a record: as it is, without unread features, and not compressed.

    Args:
        source: The data.
        config: The pipeline's options.
        facts: The facts about the data.

    Returns:
        The costs by the fields of `OptionCosts`. None are measured of files that are not local, where records are not
        read in each epoch, or if the files cannot be written.
    """
    changes: dict[str, tuple[str, ...]] = {}
    if facts.unread_features:
        changes["read_without_unread"] = facts.unread_features
    if source.compression:
        changes["read_unpacked"] = ()
    if config.cache != "none" or config.service or is_url(source.files[0]):
        return {}
    payloads = sample_records(source)
    if not payloads:
        return {}
    try:
        with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            datasets = {"read": _read_without_end(_write(folder, "read", payloads, source), config)}
            for name, features in changes.items():
                shard = _write(folder, name, leave_out(payloads, features), source, rewritten=True)
                datasets[name] = _read_without_end(shard, config)
            return measure_costs_us(datasets)
    except (OSError, tf.errors.OpError):
        return {}


def _write(folder: str, name: str, payloads: Sequence[bytes], source: Source, rewritten: bool = False) -> Source:
    """Writes the payloads to one file and returns a source that reads only this file, many times in an epoch.

    Args:
        folder: The folder of the file.
        name: The name of the file.
        payloads: The records.
        source: The source that the records came from. The new one is like it.
        rewritten: Whether the new one is a dataset that tfpipe wrote, whatever the other is.
    """
    path, compression = os.path.join(folder, name), "" if rewritten else source.compression
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for payload in payloads:
            writer.write(payload)
    size, records = os.path.getsize(path), len(payloads)
    like = replace(
        source,
        files=(path,) * _FILES,
        total_bytes=size * _FILES,
        record_bytes=size / records,
        file_bytes=(),
        index_files=(),
        manifest=None,
    )
    if source.shard_records is None and not rewritten:
        return replace(like, counted_records=None if source.counted_records is None else records * _FILES)
    index = os.path.join(folder, index_name(name))
    os.makedirs(os.path.dirname(index), exist_ok=True)
    with open(index, "wb") as file:
        file.write(encode_index([len(payload) + FRAME_BYTES for payload in payloads]))
    none: Compression = ""
    return replace(
        like,
        compression=none,
        shard_records=(records,) * _FILES,
        counted_records=None,
        file_bytes=(size,) * _FILES,
        index_files=((index, size),) * _FILES,
        manifest=_describe(source, folder, ShardInfo(name, records, size, "")),
        split=_SPLIT,
    )


def _describe(source: Source, folder: str, shard: ShardInfo) -> Manifest:
    """Returns the manifest of a split that has one file many times."""
    split = SplitInfo(_SPLIT, (shard,) * _FILES, {}, (), ImageSizes(0, 0, 0.0, 0, 0, 0.0))
    return Manifest(
        name=source.name, splits={_SPLIT: split}, schema=source.schema, tool_version=__version__, directory=folder
    )


def _read_without_end(source: Source, config: PipelineConfig) -> tf.data.Dataset:
    """Returns the sizes of records that are read without end, a batch in each element."""
    threads = host_limits.usable_cpus()
    config = replace(
        config,
        training=True,
        autotune=False,
        global_batch_size=BATCH,
        per_replica_batch_size=None,
        read_parallel_calls=config.read_parallel_calls or threads,
    )
    plan = ReadPlan.for_host(source, config, None, 0)
    if plan.exact and source.manifest is not None:
        return _read_by_engine(plan, source.manifest, threads)
    stages = build_planned_stages(plan)
    names = [stage.name for stage in stages]
    read = Stages(stages[: names.index("read") + 1], stages.options).dataset()
    return read.map(lambda record, _: tf.strings.length(record[1])).batch(BATCH)


def _read_by_engine(plan: ReadPlan, manifest: Manifest, threads: int) -> tf.data.Dataset:
    """Returns the sizes of the records of each step, as the engine reads them."""
    reader, order = RecordReader(manifest.directory, manifest, _SPLIT), plan.order
    memory_bytes = int(_MEMORY_FACTOR * BATCH * plan.source.record_bytes)

    def read(step: Any) -> NDArray[np.int32]:
        block = reader.read_block(order.list_numbers(*order.locate(int(step))), allocate([memory_bytes], np.uint8))
        return (block.ends - block.begins).astype(np.int32)

    def call(step: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(read, [step], tf.int32, name=CALL_NAME), [BATCH])

    return tf.data.Dataset.counter().map(call, num_parallel_calls=threads, deterministic=True)
