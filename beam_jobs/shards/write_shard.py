"""Writes the records of one shard, its index, and the row that describes them. Needs neither Beam nor TensorFlow.

The bytes of a shard depend on the plan alone. Memory holds one image and one write buffer.
"""

import hashlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from beam_jobs.plan.image_ref import PlannedImage
from beam_jobs.shards.dataset_records import DatasetRecords
from beam_jobs.shards.image_files import ImageFiles
from beam_jobs.shards.progress import ProgressFile
from beam_jobs.shards.record import NewRecord, RejectedImage, rejecting
from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir
from tfpipe.errors import ConfigError, DataError, hide_secrets
from tfpipe.format.file_names import QUARANTINED_BYTES_DIR
from tfpipe.images.seekable import is_seekable
from tfpipe.images.sniff import is_image
from tfpipe.storage import file_io
from tfpipe.writer.count_record import count_record
from tfpipe.writer.shard_folder import ShardWriter
from tfpipe.writer.written_shard import WrittenShard

Meter = Callable[[int, float, str | None], None]
"""A function that gets, for every finished image, its source's bytes, its seconds, and its kind of fault or None."""


def write_shard(work: WorkDir, header: PlanHeader, shard: int, meter: Meter | None = None) -> WrittenShard:
    """Writes one shard with its index and lists its bad images, or keeps the one that an earlier run finished."""
    planned = header.shards[shard]
    with file_io.explain_os_errors(f"write {work.result(planned.file)}"), ProgressFile(work, planned) as progress:
        written = work.find_finished(planned.file)
        if written is not None:
            may_be_readable = any(line["kind"] == "unreadable" for line in written.left_out)
            # If an earlier run took NaN, writing the shard again raises the error that names the record.
            has_nan = header.refuse_nan and any(stats.nan for stats in written.stats.tensors.values())
            written = None if may_be_readable or has_nan else written
        return written or _write(work, header, planned, progress, meter)


def _write(
    work: WorkDir, header: PlanHeader, planned: PlannedShard, progress: ProgressFile, meter: Meter | None
) -> WrittenShard:
    """Writes the records of all good images, and the row that says that the shard is finished and lists bad images."""
    finds_markers: Callable[[bytes], bool] | None  # tells whether a JPEG has restart markers, if some can
    if header.records is None:
        source: ImageFiles | DatasetRecords = ImageFiles(header)
        finds_markers = (lambda data: True) if header.form.seekable else None  # every JPEG gets them
    else:
        source = DatasetRecords(header, header.records)
        finds_markers = is_seekable if header.form.seekable or header.records.seekable else None
    digests, names = bytearray(), list[str]()
    count = partial(
        count_record,
        schema=header.schema,
        max_pixels=header.form.max_pixels,
        is_seekable=finds_markers,
        refuse_nan=header.refuse_nan,
    )
    with work.new_shard(planned.file, count, header.schema, header.label_names) as writer:
        for image, read in source.read_all(work.read_images(planned)):
            started, kind = time.perf_counter(), None
            try:
                record = read()
                _add(writer, record)
                digests += record.sha256
                names.append(record.name)
            except RejectedImage as rejected:
                writer.left_out.append(_quarantine(work, header, planned.split, image, rejected))
                kind = rejected.kind
            progress.step(image.size, bad=len(writer.left_out))
            if meter is not None:
                meter(image.size, time.perf_counter() - started, kind)
        digests += json.dumps(names).encode()
        file_io.write_file(work.digests_path(planned.file), bytes(digests), makes_folders=True)
    return writer.describe_shard(planned.file)


def _quarantine(
    work: WorkDir, header: PlanHeader, split: str, image: PlannedImage, rejected: RejectedImage
) -> dict[str, Any]:
    """Returns the line about an image that was not written; keeps its bytes if the plan says so.

    The bytes of a file that is no image are never kept: a link or a table from elsewhere may lead to a private file.
    """
    error = rejected.__cause__ or rejected
    cause = error.__cause__ or error  # the words of Pillow or of the file system, if they raised it
    line: dict[str, Any] = {
        "path": image.path,
        "split": split,
        "label": image.label,
        "kind": rejected.kind,
        "reason": hide_secrets(rejected.reason),
        "exception": hide_secrets(f"{type(cause).__name__}: {cause}"),
    }
    if header.keep_quarantined and rejected.data and is_image(rejected.data):
        suffix = PurePosixPath(image.path).suffix.lower()
        # Named by content: a path out of an archive or a manifest never becomes a path on this disk.
        name = hashlib.sha256(rejected.data).hexdigest() + (suffix if suffix[1:].isalnum() else "")
        line["bytes"] = f"bytes/{name}"
        work.write(f"{QUARANTINED_BYTES_DIR}/{name}", rejected.data)
    return line


def _add(writer: ShardWriter, record: NewRecord) -> None:
    try:
        with rejecting("its mask: "):
            writer.add(record.features, record.payload)
    except ConfigError as error:
        raise DataError(f"{record.name}: {error}") from None
    for image in record.images:
        writer.stats.changed.update(image.changed)
        writer.stats.noticed.update(image.noticed)
