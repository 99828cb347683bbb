"""One shard of records, and the working folder around it, without Beam."""

import os
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.records import write_records
from beam_jobs.records.write_records import Element, RecordsJob, write_record_shard
from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.images import write_files
from tests.beam_jobs.records.records import make_job, make_record
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.format.example import encode_example
from tfpipe.writer.job import hash_key
from tfpipe.writer.shard_folder import ShardWriter

FILE = "train-00000-of-00001.tfrecord"


def make_element(number: int, **changes: Any) -> Element:
    record = make_record(number) | changes
    label = record.pop("class")
    record |= {"latents": record["latents"].tobytes(), "tokens": record["tokens"].tobytes()}
    features = record | {"image/class/label": label, "image/class/text": "cat"}
    return hash_key(record["id"]), encode_example(features)


ELEMENTS = [(b"", b""), *(make_element(number) for number in range(20))]


def prepare(output: Path, **options: Any) -> RecordsJob:
    job = make_job(output, **options)
    job.prepare([FILE])
    return job


def test_memory_does_not_change_the_bytes(tmp_path: Path, monkeypatch) -> None:
    in_memory, *_ = write_record_shard(prepare(tmp_path / "a"), FILE, ELEMENTS)
    monkeypatch.setattr(write_records, "_MEMORY_BYTES", 100)
    on_disk, is_kept, _ = write_record_shard(prepare(tmp_path / "b"), FILE, reversed(ELEMENTS))
    assert (in_memory, is_kept) == (on_disk, False)
    assert (on_disk.info.records, on_disk.stats.labels) == (20, {0: 10, 1: 10})
    assert read_tree(tmp_path / "a") == read_tree(tmp_path / "b")


def test_two_records_of_one_key_are_named(tmp_path: Path) -> None:
    elements = [*ELEMENTS, make_element(3, tokens=make_record(1)["tokens"])]
    message = "Feature 'id' must identify a record, but two of 'train' have 'r3'."
    assert refusal(ConfigError, write_record_shard, prepare(tmp_path / "out"), FILE, elements) == message
    assert list((tmp_path / "out").glob("*.tfrecord")) == []


def test_a_bundle_that_fails_leaves_nothing_half_written(tmp_path: Path, monkeypatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    job = prepare(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "write", fail)
        message = refusal(DataError, write_record_shard, job, FILE, ELEMENTS)
    assert message == (
        f"Could not write {tmp_path / 'out' / FILE}: No space left on device. Free some and run the same command again."
    )
    assert read_tree(tmp_path / "out").keys() == {".tfpipe/plan.json"}
    assert write_record_shard(job, FILE, ELEMENTS)[1] is False


def test_a_finished_shard_is_kept_for_the_same_keys_only(tmp_path: Path) -> None:
    job = prepare(tmp_path / "out")
    written, *_ = write_record_shard(job, FILE, ELEMENTS)
    before = (tmp_path / "out" / FILE).stat()
    prepare(tmp_path / "out")
    assert write_record_shard(job, FILE, reversed(ELEMENTS)) == (written, True, 20)
    assert (tmp_path / "out" / FILE).stat().st_ino == before.st_ino
    more, is_kept, _ = write_record_shard(job, FILE, [*ELEMENTS, make_element(20)])
    assert (more.info.records, is_kept) == (21, False)


def test_another_job_begins_anew(tmp_path: Path) -> None:
    write_record_shard(prepare(tmp_path / "out"), FILE, ELEMENTS)
    other = make_job(tmp_path / "out", refuse_nan=True)
    assert refusal(DataError, write_record_shard, other, FILE, ELEMENTS) == (
        f"All workers must find this job in {tmp_path / 'out' / '.tfpipe'}, and this one does not. They must reach the "
        "output by the same name, and no other job may write to it."
    )
    other.prepare([FILE])
    assert read_tree(tmp_path / "out").keys() == {".tfpipe/plan.json"}


@pytest.mark.parametrize("name", ["manifest.json", ".tfpipe/plan.json"])
def test_other_files_are_not_touched(tmp_path: Path, name: str) -> None:
    write_files(tmp_path / "out", {name: b"{}"})
    assert refusal(ConfigError, prepare, tmp_path / "out") == (
        f"{tmp_path}/out must be empty or not exist yet, and holds {name.partition('/')[0]}. Choose another directory."
    )
    assert read_tree(tmp_path / "out") == {name: b"{}"}


def test_a_dataset_without_all_shards_is_not_finished(tmp_path: Path) -> None:
    job = prepare(tmp_path / "out")
    assert refusal(DataError, job.finish, [FILE], []) == (
        f"All 1 shards must be in {tmp_path / 'out'}, but 1 are not, the first {FILE}. Do all workers write to the "
        "same place? Run the same command again to make the others."
    )
    empty, *_ = write_record_shard(job, FILE, ELEMENTS[:1])
    assert refusal(DataError, job.finish, [FILE], iter([empty])) == "Split 'train' must have a record, got none."


def test_a_finished_dataset_may_be_finished_twice(tmp_path: Path) -> None:
    """Beam may try the last bundle again."""
    job = prepare(tmp_path / "out")
    written, *_ = write_record_shard(job, FILE, ELEMENTS)
    fingerprint = job.finish([FILE], iter([written]))
    files = read_tree(tmp_path / "out")
    assert job.finish([FILE], iter([written])) == fingerprint
    assert read_tree(tmp_path / "out") == files
