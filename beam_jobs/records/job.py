"""The settings of a dataset of records, and the working folder that its workers share. Needs no Beam."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from beam_jobs.shards.finish_dataset import check_present
from beam_jobs.shards.work_dir import WorkDir
from beam_jobs.storage import job_stores
from tfpipe._version import __version__
from tfpipe.errors import DataError, FormatError
from tfpipe.format import file_names
from tfpipe.format.manifest import SplitInfo
from tfpipe.storage import file_io
from tfpipe.storage.file_io import explain_os_errors
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


def read_digests(work: WorkDir, file: str) -> NDArray[np.bytes_]:
    """Returns the hashes of the keys of a finished shard, sorted: bytes [records]."""
    return to_digests(file_io.read_whole(work.digests_path(file)))


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
                file_io.remove(work.target(name))
