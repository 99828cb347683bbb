"""Two changes of a dataset in a bucket: the second one says that the first got there before it, and is made again."""

import random
from pathlib import Path

import pytest

from tests.beam_jobs.datasets import read_tree
from tests.layers.changer import check_rounds
from tests.layers.test_changes_at_once import draw_folders, make_model
from tests.object_stores.conftest import Cloud
from tests.refusals import refusal
from tfpipe import add_column, load_manifest
from tfpipe.columns.add import load_for_column
from tfpipe.errors import DataError
from tfpipe.fields import Values
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.readers.data_source import Record
from tfpipe.storage import stores


@pytest.fixture
def bucket(cloud: Cloud, small_dataset: Path) -> str:
    stores.configure()
    return cloud.put(cloud.new(), read_tree(small_dataset))


def test_the_second_of_two_changes_is_refused(bucket: str) -> None:
    def add_beside(record: Record) -> int:
        if not load_manifest(bucket).columns:
            add_column(bucket, "first", lambda other: other.index, Values("int64"))
        return record.index

    assert refusal(DataError, add_column, bucket, "second", add_beside, Values("int64")) == (
        f"Another process changed {bucket} meanwhile, so this change is not made. Run the same command again."
    )
    assert [column.name for column in load_manifest(bucket).columns] == ["first"]
    add_column(bucket, "second", add_beside, Values("int64"))
    assert [column.name for column in load_for_column(bucket).columns] == ["first", "second"]
    assert verify(bucket, VerifyConfig(workers=0)).damaged == []


@pytest.mark.slow
def test_processes_change_it_at_once_and_are_killed(
    bucket: str, cloud: Cloud, rng: random.Random, small_dataset: Path, tmp_path: Path
) -> None:
    images = draw_folders(tmp_path / "images")
    check_rounds(bucket, make_model(small_dataset), images, rng, 4, cloud.environment)
