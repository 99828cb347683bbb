"""`WriteRecords`: the end of a user's own Beam pipeline, which makes a dataset of its elements.

The hash of its key gives a record its shard and its place there. So the files are the same on every run. Beam's own
grouping carries the payloads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, S3Options

from beam_jobs.records.write_shard import DIGEST_BYTES, Element, RecordsJob, write_record_shard
from tfpipe.errors import ConfigError, DataError
from tfpipe.fields import Field
from tfpipe.format.example import encode_example
from tfpipe.format.file_names import check_split_name, shard_name
from tfpipe.format.shard_stats import ShardStats
from tfpipe.writer.count_record import count_record
from tfpipe.writer.job import check_key, count_shards, hash_key, naming
from tfpipe.writer.record_form import RecordForm
from tfpipe.writer.written_shard import WrittenShard

_NO_DIGEST = b""
_GOOGLE_OPTIONS = ("project", "no_auth", "impersonate_service_account")  # those that the store reads


class WriteRecords(beam.PTransform):
    """The end of a Beam pipeline that writes its elements as a dataset, as `tfpipe.write` does on one machine.

    The input is a PCollection of mappings from the names in `schema` to values, or a mapping from the names of splits
    to such PCollections; otherwise the split is "train". It must be bounded. The output has one element: the
    fingerprint of the finished dataset.

    A record goes to a shard by the hash of its key, and stands there in the order of these hashes. So the same records
    give the same bytes on every run, and the shards differ a little in size.

    A shard appears whole or not at all, and the manifest comes last. When the same pipeline runs again after a failure,
    shards that are finished are not written again, if the same keys come. The steps before this one do run again.

    Args:
        output: The directory of the dataset, as a path or URL (gs://, s3://, az://) that every worker reaches. It must
            not exist yet, or be empty.
        schema: The kind of each value by its name: `tfpipe.fields.Tensor`, `Text`, `Values` or `Label`.
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
        """Builds the steps."""
        by_split = dict(records) if isinstance(records, Mapping) else {"train": records}
        if not by_split:
            raise ConfigError("`records` must name a split, got none.")
        for split, collection in by_split.items():
            check_split_name(split)
            if not collection.is_bounded:
                raise ConfigError(f"The records of {split!r} must be bounded, got a stream. Read them in a batch job.")
        counts = count_shards(self._job.num_shards, by_split)
        pipeline = next(iter(by_split.values())).pipeline
        job = replace(self._job, file_options=find_file_options(pipeline.options))
        job.check_output()
        files = [shard_name(split, number, count) for split, count in counts.items() for number in range(count)]
        prepared = (
            pipeline | "Start" >> beam.Create([None], reshuffle=False) | "Prepare" >> _place_by(_PrepareFn(job, files))
        )
        placed: list[Any] = []
        first = 0
        for split, collection in by_split.items():
            windowed = collection | f"Gather {split}" >> beam.WindowInto(beam.window.GlobalWindows())
            placed.append(windowed | f"Check {split}" >> _place_by(_PlaceFn(job, split, counts[split], first)))
            first += counts[split]
        grouped = [prepared, *placed] | beam.Flatten() | beam.GroupByKey()
        shards = grouped | "Write shard" >> beam.ParDo(_WriteShardFn(job, files))
        joined = placed | "Join splits" >> beam.Flatten()
        given = joined | "Count records" >> beam.combiners.Count.Globally() | "Place count" >> beam.Map(_place)
        gathered = [shards, given] | "Join count" >> beam.Flatten() | "Gather shards" >> beam.GroupByKey()
        return gathered | "Write manifest" >> beam.MapTuple(_FinishFn(job, files))


def _place(count: int) -> tuple[int, int]:
    return 0, count


def _place_by(step: beam.DoFn) -> Any:
    """Returns a step whose elements Beam encodes without pickling."""
    return beam.ParDo(step).with_output_types(tuple[int, tuple[bytes, bytes]])


def find_file_options(options: PipelineOptions) -> tuple[str, ...]:
    """Returns the options of a pipeline that the stores need, as arguments."""
    values = options.view_as(S3Options).get_all_options(drop_default=True, retain_unknown_options=False)
    google = options.view_as(GoogleCloudOptions).get_all_options(drop_default=True, retain_unknown_options=False)
    chosen = {name: value for name, value in values.items() if name.startswith("s3_")}
    chosen |= {name: google[name] for name in _GOOGLE_OPTIONS if name in google}
    return tuple(f"--{name}" if value is True else f"--{name}={value}" for name, value in sorted(chosen.items()))


class _PrepareFn(beam.DoFn):
    """The making of the working folder. Then every shard is named, so that one without a record is written too."""

    def __init__(self, job: RecordsJob, files: list[str]) -> None:
        super().__init__()
        self._job, self._files = job, files

    def process(self, _: None) -> Iterator[tuple[int, Element]]:
        self._job.prepare(self._files)
        for number in range(len(self._files)):
            yield number, (_NO_DIGEST, b"")


class _PlaceFn(beam.DoFn):
    """The check of each record, its encoding, and the choice of its shard."""

    def __init__(self, job: RecordsJob, split: str, num_shards: int, first: int) -> None:
        super().__init__()
        self._job, self._split, self._num_shards, self._first = job, split, num_shards, first
        self._records = Metrics.counter("tfpipe", "records")

    def process(self, record: Any) -> Iterator[tuple[int, Element]]:
        job = self._job
        with naming(self._find_name(record)):
            checked = job.form.check(record)
            if job.refuse_nan:
                count_record(ShardStats(), checked, schema=job.form.schema, refuse_nan=True)
            payload = encode_example(checked)
        digest = hash_key(checked[job.key])
        assert len(digest) == DIGEST_BYTES
        self._records.inc()
        # The order in the shard begins with other bytes of the hash than those that choose the shard.
        yield self._first + int.from_bytes(digest[8:], "big") % self._num_shards, (digest, payload)

    def _find_name(self, record: Any) -> str:
        key = record.get(self._job.key) if isinstance(record, Mapping) else None
        return f"A record of {self._split!r}" if key is None else f"Record {key!r:.80} of {self._split!r}"


class _WriteShardFn(beam.DoFn):
    """The writing of each shard."""

    def __init__(self, job: RecordsJob, files: list[str]) -> None:
        super().__init__()
        self._job, self._files = job, files
        self._shards, self._kept = Metrics.counter("tfpipe", "shards"), Metrics.counter("tfpipe", "kept")

    def process(self, group: tuple[int, Iterable[Element]]) -> Iterator[tuple[int, tuple[WrittenShard, int]]]:
        number, elements = group
        shard, is_kept, num_records = write_record_shard(self._job, self._files[number], elements)
        self._shards.inc()
        self._kept.inc(int(is_kept))
        yield 0, (shard, num_records)


class _FinishFn:
    """The writing of the manifest, if the runner has brought every record to a shard."""

    def __init__(self, job: RecordsJob, files: list[str]) -> None:
        self._job, self._files = job, files

    def __call__(self, _: int, gathered: Iterable[tuple[WrittenShard, int] | int]) -> str:
        given, arrived, shards = 0, 0, []
        for each in gathered:
            if isinstance(each, int):
                given += each
            else:
                shards.append(each[0])
                arrived += each[1]
        if arrived != given:
            raise DataError(
                f"All {given:,} records must reach a shard of {self._job.output}, and {arrived:,} did: Beam's runner "
                "lost or repeated the others. Run it again with another runner, or without worker processes."
            )
        return self._job.finish(self._files, shards)
