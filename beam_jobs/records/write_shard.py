"""Writes one shard of the records that Beam gathered for it, in the order of their keys. Needs no Beam.

The records come in any order, so they go to a temporary file of this machine first. Memory holds 32 MiB of them, and
32 bytes for each record of the shard. The file is then read in order, record by record.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from beam_jobs.shards.finish_dataset import check_present
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.storage import job_stores
from tfpipe._version import __version__
from tfpipe.errors import ConfigError, DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.example import decode_example
from tfpipe.format.file_names import parse_shard_name
from tfpipe.format.manifest import SplitInfo
from tfpipe.storage import file_io
from tfpipe.storage.file_io import explain_os_errors
from tfpipe.writer.count_record import count_record
from tfpipe.writer.record_facts import RecordFacts
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.working_folder import check_output
from tfpipe.writer.written_shard import WrittenShard, make_dataset_files, make_manifest, make_split_info

DIGEST_BYTES = 16
_OURS = b"tfpipe records "  # a job of images has JSON there


@dataclass(frozen=True)
class RecordsJob:
    """The settings that all steps share. Beam pickles them and sends them to the workers."""

    output: str
    form: RecordForm
    key: str  # the value that identifies a record
    refuse_nan: bool
    num_shards: int | Mapping[str, int]  # of a split, or of each
    file_options: tuple[str, ...] = ()  # Beam's arguments for the file systems

    @cached_property
    def identity(self) -> bytes:
        """The text that tells this job from others: a hash of all that shapes the files, besides the records."""
        counts = self.num_shards if isinstance(self.num_shards, int) else dict(self.num_shards)
        facts = [__version__, self.form.schema.to_json(), self.form.label_names, counts, self.key, self.refuse_nan]
        return _OURS + hashlib.sha256(json.dumps(facts).encode()).hexdigest().encode()

    def open(self) -> WorkDir:
        """Returns the dataset directory, and first configures the file systems of this process."""
        job_stores.adopt(self.file_options)
        return WorkDir(file_io.resolve_links(self.output))

    def check_output(self) -> bytes:
        """Checks that the output may be written; returns the identity of an unfinished job there, empty without one."""
        with explain_os_errors(f"read {self.output}"):
            work = self.open()
            names = file_io.list_names(work.output)
            begun = work.read_identity()
            is_begun = begun.startswith(_OURS) and file_names.MANIFEST not in names
            ours = {file_names.WORK_DIR} if is_begun or not begun else set()
            check_output(self.output, is_ours=ours.__contains__, alone=not is_begun)
        return begun

    def prepare(self, files: Iterable[str]) -> None:
        """Makes the working folder, and removes what does not belong to this job."""
        begun = self.check_output()
        with explain_os_errors(f"write to {self.output}"):
            work = self.open()
            if begun != self.identity:
                file_io.remove_tree(work.base)
            _remove_shards(work, set(files) if begun == self.identity else set())
            work.save_identity(self.identity)

    def check_prepared(self, work: WorkDir) -> None:
        """Checks that a worker sees the folder that this very job prepared."""
        if work.read_identity() != self.identity:
            raise DataError(
                f"All workers must find this job in {work.base}, and this one does not. They must reach the output by "
                "the same name, and no other job may write to it."
            )

    def finish(self, files: Sequence[str], shards: Iterable[WrittenShard]) -> str:
        """Writes the files beside the shards, the manifest last, and returns the dataset's fingerprint."""
        by_file = {shard.info.file: shard for shard in shards}
        splits: dict[str, SplitInfo] = {}
        with explain_os_errors(f"write to {self.output}"):
            work = self.open()
            check_present(work, files, by_file.values())
            for split, group in groupby(files, lambda file: file_names.parse_shard_name(file)[0]):
                splits[split] = make_split_info(split, [by_file[file] for file in group], len(self.form.label_names))
                if not splits[split].records:
                    raise DataError(f"Split {split!r} must have a record, got none.")
            manifest = make_manifest(work.output.rpartition("/")[2], self.form, splits)
            for file, data in make_dataset_files(manifest).items():
                work.write(file, data)
            file_io.remove_tree(work.base)
        return manifest.fingerprint


def to_digests(data: bytes | bytearray) -> NDArray[np.bytes_]:
    """Returns hashes that lie one after another as an array [records]. NumPy compares them without zeros at the end."""
    return np.frombuffer(data, f"S{DIGEST_BYTES}")


def _remove_shards(work: WorkDir, kept: set[str]) -> None:
    """Removes the shards of an earlier job, and what lies beside them."""
    for name in file_io.list_names(work.output):
        with contextlib.suppress(FormatError):
            file_names.parse_shard_name(name)
            if name not in kept:
                file_io.remove(work.index_path(name))
                file_io.remove(work.facts_path(name))
                file_io.remove(work.result(name))


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
        with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as spool:
            digests, ends = bytearray(), array("q", [0])
            for digest, payload in elements:
                if digest:
                    spool.write(payload)
                    digests += digest
                    ends.append(ends[-1] + len(payload))

            def read(number: int) -> bytes:
                spool.seek(ends[number])
                return spool.read(ends[number + 1] - ends[number])

            written = _write(job, work, file, to_digests(digests), read)
            return written, False, written.info.records


def _find_finished(
    job: RecordsJob, work: WorkDir, file: str, elements: Iterable[Element]
) -> tuple[WrittenShard, int] | None:
    """Returns the shard of an earlier run if it is still whole and has the keys of the elements, and their number."""
    written = work.find_written(file)
    try:
        before = to_digests(file_io.read_whole(work.digests_path(file)))
    except (OSError, ValueError):
        return None
    if written is None or len(before) != written.info.records or not work.is_whole(written.info):
        return None
    digests = np.sort(to_digests(b"".join([digest for digest, _ in elements])))
    return (written, len(digests)) if np.array_equal(digests, before) else None


def _write(
    job: RecordsJob, work: WorkDir, file: str, digests: NDArray[np.bytes_], read: Callable[[int], bytes]
) -> WrittenShard:
    """Writes the records in the order of the digests of their keys; `read` returns the payload of each."""
    order = np.argsort(digests, kind="stable")
    digests = digests[order]
    twice = np.flatnonzero(digests[1:] == digests[:-1])
    if len(twice):
        value = job.form.schema[job.key].decode(decode_example(read(int(order[twice[0]]))))
        raise ConfigError(
            f"Feature {job.key!r} must identify a record, but two of {parse_shard_name(file)[0]!r} have {value!r:.80}."
        )
    facts = RecordFacts.of_new_shard(job.form.schema, job.form.label_names)
    with work.new_shard(file, partial(count_record, schema=job.form.schema), facts) as writer:
        for number in order.tolist():
            payload = read(number)
            writer.add(decode_example(payload), payload)
        file_io.write_file(work.digests_path(file), digests.tobytes(), makes_folders=True)
    return writer.describe_shard(file)
