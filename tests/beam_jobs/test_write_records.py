"""`beam_jobs.WriteRecords` in whole pipelines; and one shard of it, with the working folder around it, without Beam."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import tfpipe
from beam_jobs import write_records
from beam_jobs.write_records import Element, RecordsJob, _assign_record, find_file_options, write_record_shard
from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.records import SCHEMA, make_job, make_record, make_writer, write
from tests.refusals import refusal
from tfpipe.engine.record_reader import RecordReader
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.example import encode_example
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.writer.shard_folder import ShardWriter
from tfpipe.writer.write import hash_key
from tfpipe.writer.written_shard import WrittenShard


def read_ids(output: Path, split: str = "train") -> list[str]:
    manifest = tfpipe.load_manifest(str(output))
    with RecordReader(str(output), manifest, split) as reader:
        return [record["id"][0].decode() for record in reader]


def test_every_record_comes_back_as_from_tfpipe_write(tmp_path: Path) -> None:
    assert write(tmp_path / "out", range(40)) == {"records": 40, "shards": 3}
    expected = tfpipe.write(map(make_record, range(40)), tmp_path / "b" / "out", SCHEMA, num_shards=3, workers=0)
    manifest = tfpipe.load_manifest(str(tmp_path / "out"))
    train, other = manifest.splits["train"], expected.splits["train"]
    assert (manifest.name, manifest.schema, manifest.label_names) == ("out", expected.schema, ("cat", "dog"))
    assert (train.class_counts, train.tensors, train.sizes) == (other.class_counts, other.tensors, other.sizes)
    assert read_tree(tmp_path / "out").keys() == read_tree(tmp_path / "b" / "out").keys()
    ids = read_ids(tmp_path / "out")
    assert sorted(ids) == sorted(f"r{number}" for number in range(40))
    assert ids != sorted(ids)
    report = verify(str(tmp_path / "out"), VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (40, [])


@pytest.mark.parametrize("mode", ["multi_threading", pytest.param("multi_processing", marks=pytest.mark.slow)])
def test_neither_order_nor_bundles_nor_workers_change_a_byte(tmp_path: Path, mode: str) -> None:
    write(tmp_path / "a" / "out", range(40))
    write(tmp_path / "b" / "out", reversed(range(40)), [f"--direct_running_mode={mode}", "--direct_num_workers=2"])
    assert read_tree(tmp_path / "a" / "out") == read_tree(tmp_path / "b" / "out")


def test_several_splits_and_shards_without_a_record(tmp_path: Path) -> None:
    with beam.Pipeline(FnApiRunner()) as pipeline:
        train = pipeline | "train" >> beam.Create([make_record(number) for number in range(5)])
        test = pipeline | "test" >> beam.Create([make_record(0)])
        _ = {"train": train, "test": test} | make_writer(tmp_path / "out", num_shards={"train": 2, "test": 4})
    splits = tfpipe.load_manifest(str(tmp_path / "out")).splits
    assert {name: (split.records, len(split.shards)) for name, split in splits.items()} == {
        "train": (5, 2),
        "test": (1, 4),
    }
    assert read_ids(tmp_path / "out", "test") == ["r0"]


def test_a_run_after_one_that_failed_writes_all_shards_again(tmp_path: Path, monkeypatch) -> None:
    output = tmp_path / "a" / "out"
    with monkeypatch.context() as patch:
        patch.setattr(RecordsJob, "finish", Mock(side_effect=DataError("The network is down.")))
        assert refusal(DataError, write, output, range(40)).startswith("The network is down.")
    assert not (output / "manifest.json").exists()
    damaged = output / "train-00001-of-00003.tfrecord"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    write(output, range(40))
    write(tmp_path / "b" / "out", range(40))
    assert read_tree(output) == read_tree(tmp_path / "b" / "out")  # without the working folder


def place(record: Any, **options: Any) -> Any:
    return _assign_record(make_job(Path("out"), **options), "train", 3, 0, record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            make_record(7) | {"latents": np.zeros((2, 2))},
            "Record 'r7' of 'train': Feature 'latents' must be float32 [2, 2], got float64 [2, 2].",
        ),
        (make_record(7) | {"id": 7}, "Record 7 of 'train': Feature 'id' must be one value of text, got a int."),
        (
            make_record(7) | {"latents": np.float32([[0, 0], [0, np.nan]])},
            "Record 'r7' of 'train': Feature 'latents' must hold no NaN, since `refuse_nan` is set.",
        ),
        (3, "A record of 'train': A record must be a mapping from names to values, got a int."),
    ],
)
def test_a_record_that_does_not_fit_is_named(record: Any, message: str) -> None:
    assert refusal(ConfigError, place, record, refuse_nan=True) == message


def test_the_place_of_a_record_follows_from_its_key() -> None:
    numbers = [place(make_record(number))[0] for number in range(300)]
    assert {number: numbers.count(number) > 70 for number in numbers} == {0: True, 1: True, 2: True}
    assert place(make_record(1)) == place(make_record(1))
    assert place(make_record(1))[1][0] == place(make_record(1) | {"class": 0})[1][0]


def test_inputs_that_do_not_fit(tmp_path: Path) -> None:
    assert refusal(ConfigError, make_writer, "out", num_shards=0) == "`num_shards` must be from 1 to 100,000, got 0."
    message = "`key` must name a text or a whole number of id, latents, tokens, class, got 'name'."
    assert refusal(ConfigError, make_writer, "out", key="name") == message
    pipeline = beam.Pipeline(FnApiRunner())
    records = pipeline | beam.Create([make_record(0)])
    stream = pipeline | "stream" >> beam.Create([make_record(0)])
    stream.is_bounded = False
    for collections, message in (
        ({"1": records}, "A split's name must be letters, digits and underscores and begin with a letter, got"),
        (stream, "The records of 'train' must be bounded, got a stream. Read them in a batch job."),
    ):
        assert refusal(ConfigError, make_writer(tmp_path / "out").expand, collections).startswith(message)


def test_the_stores_get_the_options_of_the_pipeline() -> None:
    args = ["--s3_endpoint_url=http://store", "--s3_disable_ssl", "--project=p", "--region=r", "--no_auth"]
    expected = ("--no_auth", "--project=p", "--s3_disable_ssl", "--s3_endpoint_url=http://store")
    assert find_file_options(PipelineOptions(args)) == expected


def test_records_that_the_runner_loses_are_an_error(tmp_path: Path, monkeypatch) -> None:
    def lose(job: RecordsJob, file: str, elements: Iterable[Element]) -> WrittenShard:
        return write_record_shard(job, file, sorted(elements)[:-1])

    monkeypatch.setattr("beam_jobs.write_records.write_record_shard", lose)
    assert refusal(DataError, write, tmp_path / "out", range(40)).startswith(
        f"All 40 records must reach a shard of {tmp_path}/out, and 37 did: Beam's runner lost or repeated the others. "
        "Run it again with another runner, or without worker processes."
    )
    assert not (tmp_path / "out" / "manifest.json").exists()


FILE = "train-00000-of-00001.tfrecord"


def make_element(number: int, **changes: Any) -> Element:
    record = make_record(number) | changes
    label = record.pop("class")
    record |= {"latents": record["latents"].tobytes(), "tokens": record["tokens"].tobytes()}
    return hash_key(record["id"]), encode_example(record | {"image/class/label": label, "image/class/text": "cat"})


ELEMENTS = [(b"", b""), *(make_element(number) for number in range(20))]


def prepare(output: Path, **options: Any) -> RecordsJob:
    job = make_job(output, **options)
    job.prepare([FILE])
    return job


def test_memory_does_not_change_the_bytes(tmp_path: Path, monkeypatch) -> None:
    in_memory = write_record_shard(prepare(tmp_path / "a"), FILE, ELEMENTS)
    monkeypatch.setattr(write_records, "_MEMORY_BYTES", 100)
    on_disk = write_record_shard(prepare(tmp_path / "b"), FILE, reversed(ELEMENTS))
    assert in_memory == on_disk
    assert (on_disk.info.records, on_disk.stats.labels) == (20, {0: 10, 1: 10})
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b")


def test_two_records_of_one_key_are_named(tmp_path: Path) -> None:
    elements = [*ELEMENTS, make_element(3, tokens=make_record(1)["tokens"])]
    message = "Feature 'id' must identify a record, but two of 'train' have 'r3'."
    assert refusal(ConfigError, write_record_shard, prepare(tmp_path / "out"), FILE, elements) == message
    assert list((tmp_path / "out").glob("*.tfrecord")) == []


def test_a_bundle_that_fails_leaves_nothing_half_written(tmp_path: Path, monkeypatch) -> None:
    job = prepare(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "write", Mock(side_effect=OSError(28, os.strerror(28))))
        message = refusal(DataError, write_record_shard, job, FILE, ELEMENTS)
    assert message == (
        f"Could not write {tmp_path / 'out' / FILE}: No space left on device. Free some and run the same command again."
    )
    assert read_tree(tmp_path / "out").keys() == {".tfpipe/plan.json"}
    assert write_record_shard(job, FILE, ELEMENTS).info.records == 20


def test_another_job_begins_anew(tmp_path: Path) -> None:
    write_record_shard(prepare(tmp_path / "out"), FILE, ELEMENTS)
    other = make_job(tmp_path / "out", refuse_nan=True)
    assert refusal(DataError, write_record_shard, other, FILE, ELEMENTS) == (
        f"All workers must find this job in {tmp_path / 'out' / '.tfpipe'}, and this one does not. They must reach the "
        "output by the same name, and no other job may write to it."
    )
    other.prepare([FILE])
    assert read_tree(tmp_path / "out").keys() == {".tfpipe/plan.json"}


def test_a_dataset_without_all_shards_is_not_finished(tmp_path: Path) -> None:
    job = prepare(tmp_path / "out")
    assert refusal(DataError, job.finish, [FILE], []).startswith(
        f"All 1 shards must be in {tmp_path / 'out'}, but 1 are not, the first {FILE}. Do all workers write to the "
        "same place? Run the same command again to make the others."
    )
    assert not (tmp_path / "out" / "manifest.json").exists()
    empty = write_record_shard(job, FILE, ELEMENTS[:1])
    assert refusal(DataError, job.finish, [FILE], iter([empty])) == "Split 'train' must have a record, got none."


def test_a_finished_dataset_may_be_finished_twice(tmp_path: Path) -> None:
    """Beam may try the last bundle again."""
    job = prepare(tmp_path / "out")
    written = write_record_shard(job, FILE, ELEMENTS)
    fingerprint = job.finish([FILE], iter([written]))
    files = read_tree(tmp_path / "out")
    assert job.finish([FILE], iter([written])) == fingerprint
    assert read_tree(tmp_path / "out") == files
