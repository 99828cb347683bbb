"""Writes one shard of the records that Beam gathered for it, in the order of their keys. Needs no Beam.

The records come in any order, so they go to a temporary file of this machine first. Memory holds 32 MiB of them, and
32 bytes for each record of the shard. The file is then read in order, record by record.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable
from functools import partial
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from beam_jobs.records.job import RecordsJob, read_digests, to_digests
from beam_jobs.shards.work_dir import WorkDir
from tfpipe.errors import ConfigError
from tfpipe.format.example import decode_example
from tfpipe.format.file_names import parse_shard_name
from tfpipe.storage import file_io
from tfpipe.storage.file_io import explain_os_errors
from tfpipe.writer.count_record import count_record
from tfpipe.writer.record_facts import RecordFacts
from tfpipe.writer.written_shard import WrittenShard

_MEMORY_BYTES = 32 << 20

Element = tuple[bytes, bytes]
"""The hash of a record's key, and its payload. Both are empty in the element that stands for a shard itself."""


def write_record_shard(job: RecordsJob, file: str, elements: Iterable[Element]) -> tuple[WrittenShard, bool, int]:
    """Writes a shard, or keeps one with the same keys; returns it, whether it was kept, and the number of elements.

    The elements come in any order, and may be read twice.
    """
    with explain_os_errors(f"write {file_io.join(job.output, file)}"):
        work = job.open()
        job.check_prepared(work)
        finished = _find_finished(job, work, file, elements)
        if finished is not None:
            return finished[0], True, finished[1]
        with _Spool() as spool:
            for digest, payload in elements:
                if digest:
                    spool.add(digest, payload)
            written = _write(job, work, file, spool)
            return written, False, written.info.records


def _find_finished(
    job: RecordsJob, work: WorkDir, file: str, elements: Iterable[Element]
) -> tuple[WrittenShard, int] | None:
    """Returns the shard of an earlier run if it is still whole and has the keys of the elements, and their number."""
    written = work.find_written(file)
    if written is None or not _is_whole(work, written):
        return None
    digests = np.sort(to_digests(b"".join([digest for digest, _ in elements])))
    return (written, len(digests)) if np.array_equal(digests, read_digests(work, file)) else None


def _is_whole(work: WorkDir, written: WrittenShard) -> bool:
    try:
        is_counted = len(read_digests(work, written.info.file)) == written.info.records
    except (OSError, ValueError):
        return False
    return is_counted and work.is_whole(written.info)


def _write(job: RecordsJob, work: WorkDir, file: str, spool: _Spool) -> WrittenShard:
    order = spool.sort()
    twice = spool.find_twice(order)
    if twice is not None:
        value = job.form.schema[job.key].decode(decode_example(spool.read(twice)))
        raise ConfigError(
            f"Feature {job.key!r} must identify a record, but two of {parse_shard_name(file)[0]!r} have {value!r:.80}."
        )
    facts = RecordFacts.of_new_shard(job.form.schema, job.form.label_names)
    with work.new_shard(file, partial(count_record, schema=job.form.schema), facts) as writer:
        for place in order.tolist():
            payload = spool.read(place)
            writer.add(decode_example(payload), payload)
        file_io.write_file(work.digests_path(file), spool.digests[order].tobytes(), makes_folders=True)
    return writer.describe_shard(file)


class _Spool:
    """The records of a shard in the order in which they came; most of them in a temporary file."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115, `__exit__` closes it
        self._digests = bytearray()
        self._ends = array("q", [0])

    def __enter__(self) -> _Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, digest: bytes, payload: bytes) -> None:
        """Adds a record."""
        self._file.write(payload)
        self._digests += digest
        self._ends.append(self._ends[-1] + len(payload))

    @property
    def digests(self) -> NDArray[np.bytes_]:
        """The hash of each key."""
        return to_digests(self._digests)

    def sort(self) -> NDArray[np.int64]:
        """Returns the places of the records in the order of the hashes of their keys."""
        return np.argsort(self.digests, kind="stable").astype(np.int64)

    def find_twice(self, order: NDArray[np.int64]) -> int | None:
        """Returns the place of a record whose key another one has, or None."""
        digests = self.digests[order]
        same = np.flatnonzero(digests[1:] == digests[:-1])
        return int(order[same[0]]) if len(same) else None

    def read(self, place: int) -> bytes:
        """Returns the payload of a record."""
        self._file.seek(self._ends[place])
        return self._file.read(self._ends[place + 1] - self._ends[place])
