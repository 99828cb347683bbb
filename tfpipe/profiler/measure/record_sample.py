"""A few of the records of a pipeline's files, what in them nobody reads, and how many records there are."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from tfpipe.engine.record_reader import RecordReader
from tfpipe.engine.source import Source
from tfpipe.errors import DataError, FormatError
from tfpipe.format.compressed import scan_compressed
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.tfrecord import FRAME_BYTES, HEADER_BYTES, decode_header
from tfpipe.storage import file_io

RECORDS = 32
"""The number of records in a sample."""
_FILE_BUFFER_BYTES = 2**18  # tf.data's default; without a number it writes a line into the log
_COUNT_S = 1.0


def sample_records(source: Source, features: Collection[str] = ()) -> list[bytes]:
    """Returns a few records of some files, `RECORDS` in all; none if these files are empty, or one is damaged.

    Args:
        source: The files.
        features: The features of a batch. Of the columns only those that hold one are read.
    """
    shards = list(range(len(source.files)))[:: max(len(source.files) // 4, 1)][:4]
    by_number = source.is_split and source.shard_records is not None
    payloads = _sample_by_number(source, shards, features) if by_number else _sample_files(source, shards)
    return [payloads[i % len(payloads)] for i in range(RECORDS)] if payloads else []


def _sample_by_number(source: Source, shards: list[int], features: Collection[str]) -> list[bytes]:
    """Reads the first records of some shards of a dataset."""
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
    """Measures the features of some records that nobody reads.

    Args:
        payloads: The records.
        read: The features that are read.

    Returns:
        The share of the records' bytes that each other feature takes, the largest one first.
    """
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


@dataclass(frozen=True)
class RecordCount:
    """The records of a pipeline's files.

    Attributes:
        records: The number of records.
        payload_bytes: The mean size of a payload once it is unpacked.
    """

    records: int
    payload_bytes: float


def count_records(source: Source, max_s: float = _COUNT_S) -> RecordCount | None:
    """Counts the records of files that no manifest describes.

    After `max_s` seconds the rest is taken from the share of the bytes that were counted.

    Returns:
        The count; None if the files are remote or damaged, or hold nothing.
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
    return RecordCount(round(records * max(source.total_bytes / file_bytes, 1.0)), payload_bytes / records)


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
