"""The textbook pipeline over a few records: what TensorFlow's operations take to read them and to make batches of them.

    payloads ──▶ a file of their own, 64 times ──▶ list, read                                     list_sizes
                                               ──▶ list, read, parse, decode, augment, batch      make_batches

The stages are those that `build_stages` gives, so that the figures are those of the pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.source import Source
from tfpipe.pipeline.build import build_stages
from tfpipe.pipeline.stage import Stages
from tfpipe.profiler.measure.record_sample import RECORDS
from tfpipe.system import host_limits

_FILES = 64
"""How often the file is listed. An epoch has a cost of its own, which many records must share as they do elsewhere."""


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
        index_files=(),
    )


def list_sizes(file: Source, config: PipelineConfig) -> tf.data.Dataset:
    """Returns the sizes of the records of a file without end, in batches: all that is done is to read them.

    Args:
        file: The file, from `write_file`.
        config: The options; a cache is left out.
    """
    stages = _build(file, replace(config, cache="none"))
    records = Stages(stages[: stages.names.index("parse")], stages.options).dataset()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def measure(*element: Any) -> Any:
        return next(tf.strings.length(part) for part in tf.nest.flatten(element) if part.dtype == tf.string)

    return records.map(measure).repeat().batch(RECORDS)  # of the records themselves a batch would be a copy


def make_batches(file: Source, config: PipelineConfig) -> tf.data.Dataset:
    """Returns batches of the records of a file without end, read, decoded and augmented.

    Args:
        file: The file, from `write_file`.
        config: The options. With `cache` decoded images are decoded only once.
    """
    stages = _build(file, config).until("batch")
    assert stages.options is not None
    # A map and a batch are then one operation, as in the pipeline.
    stages.options.experimental_optimization.apply_default_optimizations = True
    return stages.dataset() if config.training else stages.dataset().repeat()


def _build(file: Source, config: PipelineConfig) -> Stages:
    """Builds the stages that read a file in the usual order; from a cache once, else many times."""
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
