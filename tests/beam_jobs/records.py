"""Records for `WriteRecords`, and pipelines that write them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import beam_jobs
from beam_jobs.write_records import RecordsJob
from tfpipe import fields
from tfpipe.writer.record_form import RecordForm

SCHEMA = {
    "id": fields.Text(),
    "latents": fields.Tensor("float32", (2, 2)),
    "tokens": fields.Tensor("int32", (None,)),
    "class": fields.Label(("cat", "dog")),
}


def make_record(number: int) -> dict[str, Any]:
    return {
        "id": f"r{number}",
        "latents": np.full((2, 2), number, np.float32),
        "tokens": np.arange(number % 4, dtype=np.int32),
        "class": number % 2,
    }


def make_writer(output: Path | str, **options: Any) -> beam_jobs.WriteRecords:
    return beam_jobs.WriteRecords(output, SCHEMA, **{"num_shards": 3, "key": "id", **options})


def make_job(output: Path, **options: Any) -> RecordsJob:
    settings = {"key": "id", "refuse_nan": False, "num_shards": 1, **options}
    return RecordsJob(str(output), RecordForm(SCHEMA), **settings)


def write(output: Path | str, numbers: Iterable[int], args: Iterable[str] = (), **options: Any) -> dict[str, int]:
    """Writes records by Beam's local runner; returns Beam's counters."""
    pipeline = beam.Pipeline(FnApiRunner(), PipelineOptions(list(args)))
    _ = pipeline | beam.Create(list(numbers)) | beam.Map(make_record) | make_writer(output, **options)
    return run(pipeline)


def run(pipeline: Any) -> dict[str, int]:
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace("tfpipe"))["counters"]
    return {counter.key.metric.name: counter.committed for counter in counters}
