"""The cost of reading a record of local files, as it is and from files that `tfpipe reshard` would write.

A few of the records are written into files of their own. The engine reads these again and again, or TensorFlow does
where the pipeline is a textbook one. So the figures hold for files that the system has in memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfpipe.engine.config.pipeline_config import PipelineConfig
from tfpipe.engine.features import list_batch_features
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, FormatError
from tfpipe.pipeline.textbook_choice import is_by_engine
from tfpipe.profiler.measure import engine_sample, stock_sample
from tfpipe.profiler.measure.record_sample import RECORDS, leave_out, sample_records
from tfpipe.profiler.measure.turns import Rest, measure_costs_us
from tfpipe.profiler.types import DatasetFacts, TriedChange
from tfpipe.storage.file_io import is_url


def measure_read_costs(source: Source, config: PipelineConfig, facts: DatasetFacts) -> dict[TriedChange, float]:
    """Measures the processor time of reading a record: as it is, without unread features, and not compressed.

    The engine parses what it reads at once, so its figures include this.

    Args:
        source: The data.
        config: The pipeline's options.
        facts: The facts about the data.

    Returns:
        The costs by the names of the changes. None are measured of files that are not local, where records are not
        read in each epoch, or if the files cannot be written.
    """
    changes: dict[TriedChange, tuple[str, ...]] = {}
    if facts.unread_features:
        changes["read_without_unread"] = facts.unread_features
    if source.compression:
        changes["read_unpacked"] = ()
    if config.cache != "none" or config.service.workers or is_url(source.files[0]):
        return {}
    payloads = sample_records(source, [feature.name for feature in list_batch_features(source, config)])
    if not payloads:
        return {}
    try:
        with tempfile.TemporaryDirectory(prefix="tfpipe-") as folder:
            by_engine = is_by_engine(source, config)
            read = _read_dataset if by_engine else _read_file
            readers = {"read": read(f"{folder}/read", source, config, payloads)}
            for name, features in changes.items():
                readers[name] = _read_dataset(f"{folder}/{name}", source, config, leave_out(payloads, features))
            return measure_costs_us(readers, RECORDS, time.thread_time if by_engine else Rest().wait)
    except (OSError, FormatError, DataError, tf.errors.OpError):
        return {}


def _read_dataset(folder: str, source: Source, config: PipelineConfig, payloads: list[bytes]) -> Callable[[], Any]:
    """Returns a function that reads a batch of records from a new dataset, as the pipeline would read it."""
    sample = engine_sample.write_sample(folder, source, payloads)
    if is_by_engine(sample, config):
        return engine_sample.make_reader(sample, config)
    return _read_file(os.path.join(folder, "file"), sample, config, payloads)


def _read_file(path: str, source: Source, config: PipelineConfig, payloads: list[bytes]) -> Callable[[], Any]:
    """Returns a function that reads a batch of records from a new file, as the textbook pipeline would read it."""
    batches = stock_sample.list_sizes(stock_sample.write_file(path, source, payloads), config)
    read: Callable[[], Any] = iter(batches).__next__
    return read
