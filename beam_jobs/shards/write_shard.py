"""Reads, checks, normalizes and writes the images of one shard. Without Beam and without TensorFlow.

`write_shard` is a pure function of the plan: the same bytes come out whoever runs it, however often. A shard
that an earlier run finished is recognised by size and checksum and kept. One image and one write buffer are all
that it holds in memory.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import IO, Any

import numpy as np

from beam_jobs.inputs.read_image import UnreadableError, fetch
from beam_jobs.plan.image_ref import PlannedImage, Value
from beam_jobs.shards.copy_record import Record, carry
from beam_jobs.shards.progress import ProgressFile
from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir, WrittenShard
from beam_jobs.storage import filesystem
from tfpipe.errors import FormatError
from tfpipe.format import schema as keys
from tfpipe.format.file_names import QUARANTINED_BYTES_DIR, index_name
from tfpipe.format.record_index import decode_index, encode_index
from tfpipe.format.schema import FeatureSpec
from tfpipe.format.shard_stats import ShardStats
from tfpipe.format.tfrecord import record_footer, record_header
from tfpipe.images.normalize import BadImage, PreparedImage, prepare_image

# A protocol buffer cannot exceed 2 GiB, and a worker holds one source image whole.
MAX_SOURCE_BYTES = 512 * 2**20
_HASH_BUFFER_BYTES = 1 << 20

Meter = Callable[[int, float, str | None], None]
"""Told of every image when it is done: bytes of its source, seconds, and for a bad one its kind."""


def write_shard(work: WorkDir, header: PlanHeader, shard: int, meter: Meter | None = None) -> WrittenShard:
    """Makes one shard with its index and row, or keeps the finished one.

    Args:
        work: The dataset directory under construction.
        header: Its plan.
        shard: Position in `header.shards`.
        meter: Told of every image, but of none in a shard that is kept.

    Raises:
        DataError: A file cannot be written. What is wrong with an image never raises: it is part of the row.
    """
    slot = header.shards[shard]
    with filesystem.explain_os_errors(f"write {work.target(slot.file)}"), ProgressFile(work, slot) as progress:
        row = _finished(work, slot)
        if row is None:
            row = _write(work, header, slot, progress, meter)
    return row


def _finished(work: WorkDir, slot: PlannedShard) -> WrittenShard | None:
    """The row of an earlier run, if the shard and its index are what it says. Reads the shard once."""
    row = work.row(slot.file)
    path = work.target(slot.file)
    if row is None or filesystem.size(path) != row.bytes or any(bad["kind"] == "unreadable" for bad in row.quarantined):
        return None  # an image that could not be read may be readable now
    try:
        decode_index(filesystem.read_bytes(work.target(index_name(slot.file))), row.bytes, row.records)
    except (OSError, FormatError):
        return None
    with filesystem.open_read(path) as file:
        digest = hashlib.sha256()
        while chunk := file.read(_HASH_BUFFER_BYTES):
            digest.update(chunk)
    return replace(row, kept=True) if digest.hexdigest() == row.sha256 else None


@dataclass
class _Tally:
    """What is counted while a shard is written."""

    digest: Any = field(default_factory=hashlib.sha256)
    sizes: list[int] = field(default_factory=list)
    sources: bytearray = field(default_factory=bytearray)
    names: list[str] = field(default_factory=list)
    stats: ShardStats = field(default_factory=ShardStats)

    def add(self, record: Record, size: int) -> None:
        image = record.image
        self.sizes.append(size)
        self.sources += record.sha256
        self.names.append(record.name)
        self.stats.add(image.format, image.height, image.width, record.label if record.label >= 0 else None)
        self.stats.changed.update(image.changed)
        self.stats.noticed.update(image.noticed)


def _write(
    work: WorkDir, header: PlanHeader, slot: PlannedShard, progress: ProgressFile, meter: Meter | None
) -> WrittenShard:
    tally, bad = _Tally(), []
    with filesystem.create(work.target(slot.file), work.temporary(slot.file)) as out:
        for image in work.images(slot):
            started, kind = time.perf_counter(), None
            try:
                _write_image(out, header, image, tally)
            except _Rejected as rejected:
                bad.append(_quarantine(work, header, slot, image, rejected))
                kind = rejected.kind
            progress.step(image.size, bad=len(bad))
            if meter is not None:
                meter(image.size, time.perf_counter() - started, kind)
    work.write(index_name(slot.file), encode_index(tally.sizes))
    filesystem.write_bytes(work.digests_path(slot.file), bytes(tally.sources))
    if header.records:
        filesystem.write_bytes(work.names_path(slot.file), json.dumps(tally.names).encode())
    row = WrittenShard(
        file=slot.file,
        records=len(tally.sizes),
        bytes=sum(tally.sizes),
        sha256=tally.digest.hexdigest(),
        stats=tally.stats,
        quarantined=bad,
    )
    work.write_row(row)
    return row


class _Rejected(Exception):
    """An image that cannot be written, with the bytes that were read of it."""

    def __init__(self, kind: str, reason: str, data: bytes = b"") -> None:
        super().__init__(reason)
        self.kind, self.reason, self.data = kind, reason, data


def _write_image(out: IO[bytes], header: PlanHeader, image: PlannedImage, tally: _Tally) -> None:
    if image.size > MAX_SOURCE_BYTES:
        raise _Rejected("bad", f"{image.size} bytes, more than the {MAX_SOURCE_BYTES} that one record can hold")
    data = b""
    try:
        if header.records:
            record = carry(header, image)
        else:
            data = fetch(header.root, image, header.unpacked)
            record = _new_record(header, image, data)
    except UnreadableError as error:
        raise _Rejected("unreadable", str(error)) from error
    except BadImage as error:
        raise _Rejected("bad", error.reason, data) from error
    head, foot = record_header(len(record.payload)), record_footer(record.payload)
    for part in (head, record.payload, foot):
        out.write(part)
        tally.digest.update(part)
    tally.add(record, len(head) + len(record.payload) + len(foot))


def _new_record(header: PlanHeader, image: PlannedImage, data: bytes) -> Record:
    """The record of an image file, all of whose bytes are `data`."""
    prepared = prepare_image(data, header.form, filename=image.path, boxes=image.boxes)
    sha256 = hashlib.sha256(data)
    payload = header.schema.encode(_features(header, image, prepared, sha256.hexdigest()))
    return Record(payload, prepared, sha256.digest(), image.label, image.path)


def _features(header: PlanHeader, image: PlannedImage, prepared: PreparedImage, sha256: str) -> dict[str, Any]:
    """One record's values by feature name, as far as the schema asks for them."""
    schema = header.schema
    values: dict[str, Any] = {
        keys.IMAGE_ENCODED: prepared.encoded,
        keys.IMAGE_FORMAT: prepared.format,
        keys.IMAGE_HEIGHT: prepared.height,
        keys.IMAGE_WIDTH: prepared.width,
        keys.IMAGE_CHANNELS: prepared.channels,
        keys.IMAGE_COLORSPACE: prepared.colorspace,
        keys.IMAGE_FILENAME: _to_bytes(image.path),
        keys.IMAGE_SHA256: sha256,
    }
    if keys.CLASS_LABEL in schema:
        values[keys.CLASS_LABEL] = image.label
        values[keys.CLASS_TEXT] = _to_bytes(header.label_names[image.label])
    if keys.BBOX_XMIN in schema:
        names = keys.BBOX_XMIN, keys.BBOX_YMIN, keys.BBOX_XMAX, keys.BBOX_YMAX
        for k, name in enumerate(names):
            values[name] = np.array([box[k] for box in prepared.boxes], np.float32)
    if keys.BBOX_LABEL in schema:
        values[keys.BBOX_LABEL] = np.array(image.box_labels, np.int64)
    extra = schema.features[-len(image.extra) :] if image.extra else ()
    for spec, value in zip(extra, image.extra, strict=True):
        values[spec.name] = _extra(spec, value)
    return values


def _extra(spec: FeatureSpec, value: Value) -> Any:
    """A further column's value in the form that the encoder takes."""
    if spec.dtype == "bytes":
        return _to_bytes(value) if isinstance(value, str) else [_to_bytes(str(one)) for one in value]  # type: ignore[union-attr]
    return np.array(value, np.int64 if spec.dtype == "int64" else np.float32) if spec.shape != () else value


def _to_bytes(text: str) -> bytes:
    """Text as UTF-8; bytes of a file name or column that were not UTF-8 come back as they were."""
    return text.encode("utf-8", "surrogateescape")


def _quarantine(
    work: WorkDir, header: PlanHeader, slot: PlannedShard, image: PlannedImage, rejected: _Rejected
) -> dict[str, Any]:
    """The line about an image that was not written; keeps its bytes where that is asked for."""
    found = rejected.__cause__ or rejected
    cause = found.__cause__ or found  # what Pillow or the file system said, where they said something
    line: dict[str, Any] = {
        "path": image.path,
        "split": slot.split,
        "label": image.label,
        "kind": rejected.kind,
        "reason": rejected.reason,
        "exception": f"{type(cause).__name__}: {cause}",
    }
    if header.keep_quarantined and rejected.data:
        suffix = PurePosixPath(image.path).suffix.lower()
        # Named by content: a path out of an archive or a manifest never becomes a path on this disk.
        name = hashlib.sha256(rejected.data).hexdigest() + (suffix if suffix[1:].isalnum() else "")
        line["bytes"] = f"bytes/{name}"
        work.write(f"{QUARANTINED_BYTES_DIR}/{name}", rejected.data)
    return line
