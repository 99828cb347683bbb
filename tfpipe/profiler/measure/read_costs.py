"""The cost of reading a record of local files, as it is and from files that `tfpipe reshard` would write.

A few of the records are written into files of their own, and the pipeline's own stages read these again and again. So
the figures hold for files that the system has in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.format.manifest import Compression
from tfpipe.format.record_index import encode_index
from tfpipe.format.tfrecord import FRAME_BYTES
from tfpipe.pipeline.build import build_planned_stages
from tfpipe.pipeline.plan.read_plan import ReadPlan
from tfpipe.pipeline.stage import Stages
from tfpipe.profiler.measure.option_costs import BATCH, measure_costs_us
from tfpipe.profiler.measure.record_sample import leave_out, sample_records
from tfpipe.profiler.types import DatasetFacts
from tfpipe.system import host_limits
from tfpipe.system.file_io import is_url

_FILES = 64
"""How often the file is listed. An epoch has a cost of its own, which many records must share as they do elsewhere."""


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
    """Writes records into one file, and returns a source like the other, or a dataset of tfpipe's, of nothing else."""
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
    )
    if source.shard_records is None and not rewritten:
        return replace(like, counted_records=None if source.counted_records is None else records * _FILES)
    with open(f"{path}.idx", "wb") as file:
        file.write(encode_index([len(payload) + FRAME_BYTES for payload in payloads]))
    none: Compression = ""
    return replace(
        like,
        compression=none,
        shard_records=(records,) * _FILES,
        counted_records=None,
        file_bytes=(size,) * _FILES,
        index_files=((f"{path}.idx", size),) * _FILES,
    )


def _read_without_end(source: Source, config: PipelineConfig) -> tf.data.Dataset:
    """Returns the sizes of records, which the stages up to `read` read without end. A batch of records is a copy."""
    threads = host_limits.usable_cpus()
    config = replace(
        config,
        training=True,
        autotune=False,
        global_batch_size=BATCH,
        per_replica_batch_size=None,
        read_parallel_calls=config.read_parallel_calls or threads,
    )
    stages = build_planned_stages(ReadPlan.for_host(source, config, None, 0))
    names = [stage.name for stage in stages]
    read = Stages(stages[: names.index("read") + 1], stages.options).dataset()
    sizes = read.map(lambda record, _: tf.strings.length(record[1]))
    return sizes if sizes.element_spec.shape.rank else sizes.batch(BATCH)  # the native library reads whole batches
