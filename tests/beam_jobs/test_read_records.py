"""`beam_jobs.ReadRecords` in whole pipelines: a dataset goes in and comes out, views, hidden records, columns."""

import shutil
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import beam_jobs
import tfpipe
from beam_jobs import read_records
from tests.beam_jobs.records import SCHEMA, make_record, run
from tests.refusals import refusal
from tfpipe import fields
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError
from tfpipe.layers.delete import delete_records

RECORDS = 40


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("data") / "in"
    tfpipe.write(map(make_record, range(RECORDS)), path, SCHEMA, num_shards=3, workers=0)
    return path


def read(tmp_path: Path, dataset: Any, split: str = "train", **options: Any) -> list[dict[str, Any]]:
    """Reads records by Beam's local runner, in the order of their ids."""
    found: list[dict[str, Any]] = []
    with beam.Pipeline(FnApiRunner()) as pipeline:
        gathered = pipeline | beam_jobs.ReadRecords(dataset, split, **options) | beam.combiners.ToList()
        _ = gathered | beam.Map(lambda records: np.save(tmp_path / "records.npy", np.array(records, object)))
    found = np.load(tmp_path / "records.npy", allow_pickle=True).tolist()
    return sorted(found, key=lambda record: str(record.get("id")))


def test_a_dataset_goes_in_and_comes_out(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_records, "_BLOCK_RECORDS", 7)
    schema = {"label" if name == "class" else name: field for name, field in SCHEMA.items()}
    pipeline = beam.Pipeline(FnApiRunner())
    writer = beam_jobs.WriteRecords(tmp_path / "out", schema, num_shards=2, key="id")
    _ = pipeline | beam_jobs.ReadRecords(dataset, "train") | writer
    assert run(pipeline) == {"records_read": RECORDS, "records": RECORDS, "shards": 2}
    manifests = [tfpipe.load_manifest(path) for path in (dataset, tmp_path / "out")]
    assert manifests[0].schema.to_json() == manifests[1].schema.to_json()
    before, after = (
        sorted(RecordReader(manifest.directory, manifest, "train").read_payload(number) for number in range(RECORDS))
        for manifest in manifests
    )
    assert before == after


def test_records_are_what_was_written(dataset: Path, tmp_path: Path) -> None:
    records = read(tmp_path, tfpipe.load_manifest(dataset))
    expected = sorted(map(make_record, range(RECORDS)), key=lambda record: record["id"])
    for record, wanted in zip(records, expected, strict=True):
        assert list(record) == ["label", "id", "latents", "tokens"]
        assert (record["label"], record["id"]) == (wanted["class"], wanted["id"])
        for name in ("latents", "tokens"):
            assert record[name].dtype == wanted[name].dtype
            assert np.array_equal(record[name], wanted[name])
    assert read(tmp_path, dataset, features=("id",))[0] == {"id": "r0"}


def test_hidden_records_stay_away_and_columns_and_views_come_along(small_dataset: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "in"
    shutil.copytree(small_dataset, dataset)
    tfpipe.add_column(dataset, "score", lambda record: record.label / 2 or None, fields.Values("float"), missing="view")
    records = {record.name: record.label for record in tfpipe.data_source(dataset, "train")}
    hidden, *shown = records
    manifest = tfpipe.load_manifest(dataset)
    delete_records(dataset, [hidden])
    names = ("image/filename", "score")
    scored = [name for name in shown if records[name]]
    for source, expected in ((dataset, shown), (manifest, records), (f"{dataset}@score", scored)):
        found = {each["image/filename"].decode(): each["score"] for each in read(tmp_path, source, features=names)}
        assert found == {name: records[name] / 2 for name in expected}


def test_images_are_the_bytes_that_are_stored(small_dataset: Path, tmp_path: Path) -> None:
    source = tfpipe.data_source(small_dataset, "train")
    found = read(tmp_path, small_dataset, features=("image", "label", "image/filename", "image/height"))
    records = {record.name: record for record in source}
    assert len(found) == len(records)
    for each in found:
        record = records[each["image/filename"].decode()]
        assert (each["image"], each["label"]) == (record.encoded, record.label)
        assert each["image/height"] == record.image.shape[0]


def test_a_dataset_that_was_written_anew_is_refused_in_the_pipeline(tmp_path: Path) -> None:
    dataset = tmp_path / "in"
    manifest = tfpipe.write(map(make_record, range(3)), dataset, SCHEMA, num_shards=1, workers=0)
    reader = beam_jobs.ReadRecords(manifest, "train")
    shutil.rmtree(dataset)
    tfpipe.write(map(make_record, range(4)), dataset, SCHEMA, num_shards=1, workers=0)
    message = (
        f"{dataset}@1 must stay as it was when the pipeline was built, and split 'train' has other records now. Build "
        "the pipeline again."
    )
    assert refusal(DataError, read_records._open, reader._source) == message


def test_what_is_refused_before_the_pipeline_runs(dataset: Path) -> None:
    message = refusal(ConfigError, beam_jobs.ReadRecords, dataset, "test")
    assert message == "The dataset has no split 'test'; it has train."
    message = refusal(ConfigError, beam_jobs.ReadRecords, dataset, "train", features=("image",))
    assert message == "`features` must be among label, id, latents, tokens, got 'image'."
