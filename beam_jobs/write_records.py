"""`WriteRecords`: the end of a user's own Beam pipeline, which makes a dataset of its elements.

The hash of a record's key decides its shard and its position there, so the files are the same on every run. Beam's own
`GroupByKey` brings the payloads to the shards.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, S3Options

from beam_jobs import job_stores
from beam_jobs.shards.finish_dataset import check_present
from beam_jobs.shards.work_dir import WorkDir
from tfpipe.errors import ConfigError, DataError
from tfpipe.fields import Field
from tfpipe.format import file_names
from tfpipe.format.example import decode_example, encode_example
from tfpipe.format.shard_stats import ShardStats
from tfpipe.storage import file_io
from tfpipe.writer.count_record import count_record
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.working_folder import check_output
from tfpipe.writer.write import check_key, count_shards, hash_key, identify_records, naming
from tfpipe.writer.written_shard import WrittenShard, make_dataset_files, make_manifest

DIGEST_BYTES = 16

Element = tuple[bytes, bytes]
"""The hash of a record's key, and its payload. Both are empty in the one element that even an empty shard gets."""

_OURS = b"tfpipe records "  # begins the identity of such a job; that of a job of images is JSON


@dataclass(frozen=True)
class RecordsJob:
    """The settings that all steps share. Beam pickles them and sends them to the workers."""

    output: str
    form: RecordForm
    key: str  # the value that identifies a record
    refuse_nan: bool
    num_shards: int | Mapping[str, int]  # of each split, or by split
    file_options: tuple[str, ...] = ()  # Beam's arguments for the file systems

    @cached_property
    def identity(self) -> bytes:
        """The text that tells this job from others: a hash of all that shapes the files, besides the records."""
        return _OURS + identify_records(self.form, self.num_shards, self.key, self.refuse_nan).encode()

    def open(self) -> WorkDir:
        """Returns the dataset directory, and first configures the file systems of this process."""
        job_stores.adopt(self.file_options)
        return WorkDir(file_io.resolve_links(self.output))

    def check_output(self) -> bytes:
        """Checks that the output may be written; returns the identity of an unfinished job there, empty without one."""
        with file_io.explain_os_errors(f"read {self.output}"):
            work = self.open()
            names = file_io.list_names(work.output)
            begun = work.read_identity()
            is_begun = begun.startswith(_OURS) and file_names.MANIFEST not in names
            ours = {file_names.WORK_DIR} if is_begun or not begun else set()
            check_output(self.output, is_ours=ours.__contains__, alone=not is_begun)
        return begun

    def prepare(self, files: Sequence[str]) -> list[tuple[int, Element]]:
        """Makes the working folder, and removes the notes of another job and all shards that are not of this job.

        Returns an empty element for each shard, with its number, so that empty shards are written too.
        """
        begun = self.check_output()
        with file_io.explain_os_errors(f"write to {self.output}"):
            work = self.open()
            if begun != self.identity:
                file_io.remove_tree(work.base)
            kept = set(files) if begun == self.identity else set()
            for name in filter(file_names.is_shard_name, file_io.list_names(work.output)):
                if name not in kept:
                    work.remove_shard(name)
            work.save_identity(self.identity)
        return [(number, (b"", b"")) for number in range(len(files))]

    def finish(self, files: Sequence[str], shards: Iterable[WrittenShard]) -> str:
        """Writes the files beside the shards, the manifest last, and returns the dataset's fingerprint."""
        by_file = {shard.info.file: shard for shard in shards}
        with file_io.explain_os_errors(f"write to {self.output}"):
            work = self.open()
            check_present(work, files, by_file.values())
            by_split = groupby(files, lambda file: file_names.parse_shard_name(file)[0])
            written = {split: [by_file[file] for file in group] for split, group in by_split}
            manifest = make_manifest(work.output.rpartition("/")[2], self.form, written)
            for file, data in make_dataset_files(manifest).items():
                work.write(file, data)
            file_io.remove_tree(work.base)
        return manifest.fingerprint


_MEMORY_BYTES = 32 << 20


def write_record_shard(job: RecordsJob, file: str, elements: Iterable[Element]) -> WrittenShard:
    """Writes a shard, its records in the order of the hashes of their keys.

    The elements come in any order. Memory holds 32 MiB of them and 32 bytes for each record; the rest lies in a
    temporary file of this machine.
    """
    with file_io.explain_os_errors(f"write {file_io.join(job.output, file)}"):
        work = job.open()
        if work.read_identity() != job.identity:
            raise DataError(
                f"All workers must find this job in {work.base}, and this one does not. They must reach the output by "
                "the same name, and no other job may write to it."
            )
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

            hashes, schema = np.frombuffer(digests, f"S{DIGEST_BYTES}"), job.form.schema
            order = np.argsort(hashes, kind="stable")
            hashes = hashes[order]
            twice = order[1:][hashes[1:] == hashes[:-1]]
            if len(twice):
                value = schema[job.key].decode(decode_example(read(twice[0])))
                split, _, _ = file_names.parse_shard_name(file)
                must = f"identify a record, but two of {split!r} have {value!r:.80}"
                raise ConfigError(f"Feature {job.key!r} must {must}.")
            with work.new_shard(file, partial(count_record, schema=schema), schema, job.form.label_names) as writer:
                for number in order.tolist():
                    payload = read(number)
                    writer.add(decode_example(payload), payload)
            return writer.describe_shard(file)


_ASSIGNED = tuple[int, tuple[bytes, bytes]]  # a shard's number and an `Element`, which Beam encodes without pickling
_RECORDS, _SHARDS = (Metrics.counter("tfpipe", name) for name in ("records", "shards"))
_GOOGLE_OPTIONS = ("project", "no_auth", "impersonate_service_account")  # those that the store reads


class WriteRecords(beam.PTransform):
    """The end of a Beam pipeline that writes its elements as a dataset, as `tfpipe.write` does on one machine.

    The input is a PCollection of mappings from the names in `schema` to values, or a mapping from the names of splits
    to such PCollections; otherwise the split is "train". It must be bounded. The output has one element: the
    fingerprint of the finished dataset.

    A record goes to a shard by the hash of its key, and stands there in the order of these hashes. So the same records
    give the same bytes on every run, and the shards differ a little in size.

    A shard appears whole or not at all, and the manifest comes last. When the same pipeline runs again after a failure,
    all steps run again, and its shards take the place of those that were there.

    Args:
        output: The directory of the dataset, as a path or URL (gs://, s3://, az://) that every worker reaches. It must
            not exist yet, or be empty.
        schema: The kind of each value by its name, one of `tfpipe.fields`, as for `tfpipe.write`.
        num_shards: The number of shards of a split, or of each split by its name.
        key: The name of a value that no other record of the split has: a text or a whole number.
        refuse_nan: Whether a tensor with NaN is an error.

    Raises:
        ConfigError: An argument cannot be used. In the pipeline: a record does not fit the schema, or two have one key;
            the message names the record, the feature, what was expected and what came.
        DataError: In the pipeline: the output cannot be written, or a split has no record.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        schema: Mapping[str, Field],
        *,
        num_shards: int | Mapping[str, int],
        key: str,
        refuse_nan: bool = False,
    ) -> None:
        super().__init__()
        count_shards(num_shards, num_shards if isinstance(num_shards, Mapping) else ["train"])
        form = RecordForm(schema)
        check_key(form, schema, key)
        self._job = RecordsJob(os.fspath(output), form, key, refuse_nan, num_shards)

    def expand(self, records: Any) -> Any:
        """Adds the steps to the pipeline."""
        by_split = dict(records) if isinstance(records, Mapping) else {"train": records}
        if not by_split:
            raise ConfigError("`records` must name a split, got none.")
        for split, collection in by_split.items():
            file_names.check_split_name(split)
            if not collection.is_bounded:
                raise ConfigError(f"The records of {split!r} must be bounded, got a stream. Read them in a batch job.")
        counts = count_shards(self._job.num_shards, by_split)
        pipeline = next(iter(by_split.values())).pipeline
        job = replace(self._job, file_options=find_file_options(pipeline.options))
        job.check_output()
        files = [
            file_names.shard_name(split, number, count) for split, count in counts.items() for number in range(count)
        ]
        prepare = beam.FlatMap(job.prepare).with_output_types(_ASSIGNED)
        prepared = pipeline | "Start" >> beam.Create([files], reshuffle=False) | "Prepare" >> prepare
        assigned: list[Any] = []
        first = 0
        for split, collection in by_split.items():
            windowed = collection | f"Gather {split}" >> beam.WindowInto(beam.window.GlobalWindows())
            assign = beam.Map(partial(_assign_record, job, split, counts[split], first)).with_output_types(_ASSIGNED)
            assigned.append(windowed | f"Check {split}" >> assign)
            first += counts[split]
        grouped = [prepared, *assigned] | beam.Flatten() | beam.GroupByKey()
        shards = grouped | "Write shard" >> beam.MapTuple(partial(_write_shard, job, files))
        joined = assigned | "Join splits" >> beam.Flatten()
        given = joined | "Count records" >> beam.combiners.Count.Globally() | "Key count" >> beam.WithKeys(0)
        gathered = [shards, given] | "Join count" >> beam.Flatten() | "Gather shards" >> beam.GroupByKey()
        return gathered | "Write manifest" >> beam.MapTuple(partial(_finish, job, files))


def find_file_options(options: PipelineOptions) -> tuple[str, ...]:
    """Returns the options of a pipeline that the stores need, as arguments."""
    values = options.view_as(S3Options).get_all_options(drop_default=True, retain_unknown_options=False)
    google = options.view_as(GoogleCloudOptions).get_all_options(drop_default=True, retain_unknown_options=False)
    chosen = {name: value for name, value in values.items() if name.startswith("s3_")}
    chosen |= {name: google[name] for name in _GOOGLE_OPTIONS if name in google}
    return tuple(f"--{name}" if value is True else f"--{name}={value}" for name, value in sorted(chosen.items()))


def _assign_record(job: RecordsJob, split: str, num_shards: int, first: int, record: Any) -> tuple[int, Element]:
    """Checks a record, encodes it, and chooses its shard; `first` is the number of the split's first one."""
    key = record.get(job.key) if isinstance(record, Mapping) else None
    with naming(f"A record of {split!r}" if key is None else f"Record {key!r:.80} of {split!r}"):
        checked = job.form.check(record)
        if job.refuse_nan:
            count_record(ShardStats(), checked, schema=job.form.schema, refuse_nan=True)
        payload = encode_example(checked)
    digest = hash_key(checked[job.key])
    assert len(digest) == DIGEST_BYTES
    _RECORDS.inc()
    # The order in the shard depends on the first 8 bytes of the hash, the choice of the shard on the others.
    return first + int.from_bytes(digest[8:], "big") % num_shards, (digest, payload)


def _write_shard(
    job: RecordsJob, files: Sequence[str], number: int, elements: Iterable[Element]
) -> tuple[int, WrittenShard]:
    written = write_record_shard(job, files[number], elements)
    _SHARDS.inc()
    return 0, written


def _finish(job: RecordsJob, files: Sequence[str], _: int, gathered: Iterable[WrittenShard | int]) -> str:
    """Writes the manifest, after a check that the runner has brought every record to a shard."""
    found = list(gathered)
    shards = [each for each in found if isinstance(each, WrittenShard)]
    given, arrived = sum(each for each in found if isinstance(each, int)), sum(shard.info.records for shard in shards)
    if arrived != given:
        raise DataError(
            f"All {given:,} records must reach a shard of {job.output}, and {arrived:,} did: Beam's runner lost or "
            "repeated the others. Run it again with another runner, or without worker processes."
        )
    return job.finish(files, shards)
