"""`beam_jobs.AddColumn` in whole pipelines."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import beam_jobs
import tfpipe
from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.records.records import run
from tfpipe.errors import ConfigError, DataError
from tfpipe.integrity.verify import VerifyConfig, verify

KIND = tfpipe.Values("int64")


@pytest.fixture
def pets(small_dataset: Path, tmp_path: Path) -> str:
    """A copy of the dataset of twelve images for training and three for validation, in two shards each."""
    return str(shutil.copytree(small_dataset, tmp_path / "pets"))


def count_batches(records: list[Any]) -> list[int]:
    return [record.index for record in records]


def add(dataset: str, function: Any = count_batches, args: tuple[str, ...] = (), **options: Any) -> dict[str, int]:
    pipeline = beam.Pipeline(FnApiRunner(), options=PipelineOptions(list(args)))
    _ = pipeline | beam_jobs.AddColumn(dataset, "index", function, KIND, **{"batch_size": 4, **options})
    return run(pipeline)


@pytest.mark.parametrize("args", [(), ("--direct_running_mode=multi_threading", "--direct_num_workers=3")])
def test_it_writes_what_one_machine_writes(pets: str, tmp_path: Path, args: tuple[str, ...]) -> None:
    other = str(shutil.copytree(pets, tmp_path / "other"))
    assert add(pets, args=args) == {"shards": 4, "kept": 0}
    tfpipe.add_column(other, "index", count_batches, KIND, batch_size=4)
    assert read_tree(Path(pets, "columns")) == read_tree(Path(other, "columns"))
    assert sorted(path.name for path in Path(pets, "columns").iterdir()) == ["index"]
    report = verify(pets, VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (15, [])


def test_a_failed_run_goes_on_without_its_finished_shards(pets: str) -> None:
    def fail(records: list[Any]) -> list[int]:
        if records[0].split == "validation":
            raise RuntimeError("no memory")
        return count_batches(records)

    fail.__qualname__ = count_batches.__qualname__  # the same job
    with pytest.raises(DataError, match=r"^Record 0 of shard \d of 'validation' could not be made: Runtime"):
        add(pets, fail)
    assert tfpipe.load_manifest(pets).columns == ()
    finished = len([*Path(pets, "columns/index.tfpipe-write/rows").iterdir()])  # the runner may take any shard first
    assert add(pets) == {"shards": 4, "kept": finished}
    assert [record.features["index"].tolist() for record in tfpipe.data_source(pets, "validation")] == [[0], [1], [2]]


def test_a_column_takes_the_place_of_another(pets: str, tmp_path: Path) -> None:
    def add_ten(records: list[Any]) -> list[int]:
        return [int(record.features["index"][0]) + 10 for record in records]

    add(pets)
    other = str(shutil.copytree(pets, tmp_path / "other"))
    assert add(pets, add_ten, replace=True) == {"shards": 4, "kept": 0}
    values = [record.features["index"].tolist() for record in tfpipe.data_source(pets, "validation")]
    assert values == [[10], [11], [12]]
    tfpipe.add_column(other, "index", add_ten, KIND, batch_size=4, replace=True)
    assert read_tree(Path(pets, "columns")) == read_tree(Path(other, "columns"))
    report = verify(pets, VerifyConfig(workers=0))
    assert (report.records, report.damaged) == (15, [])


def test_records_without_a_value_are_left_out_of_a_view(pets: str) -> None:
    add(pets, lambda record: record.index if record.index % 2 else None, batch_size=None, missing="view")
    assert tfpipe.load_manifest(f"{pets}@index").splits["train"].records == 6


def test_mistakes_are_sentences_before_anything_runs(pets: str) -> None:
    add(pets)
    with pytest.raises(
        ConfigError, match=r" has a feature 'index' in its column 'index'\. Give the new one another name, or set "
    ):
        add(pets)
    with pytest.raises(DataError, match=r" does not exist\.$"):
        add(f"{pets}-2")
