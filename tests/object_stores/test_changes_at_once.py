"""Processes that change one dataset at once and are killed, here and in a bucket: each change is whole or not made."""

import random
import shutil
from pathlib import Path

import pytest

from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.images import make_jpeg, write_files
from tests.layers.changer import Model, check_rounds
from tests.layers.growth import list_names
from tests.object_stores.conftest import Cloud
from tests.refusals import refusal
from tfpipe import add_column, load_manifest
from tfpipe.columns.add import load_for_column
from tfpipe.errors import DataError
from tfpipe.fields import Values
from tfpipe.integrity.verify import VerifyConfig, verify
from tfpipe.readers.data_source import Record
from tfpipe.storage import stores

FOLDERS = 6


def draw_folders(folder: Path) -> dict[str, frozenset[str]]:
    """Draws folders of two images each, and returns the names of theirs."""
    names = {k: (f"train/cat/{k}.jpg", f"train/dog/{k}.jpg") for k in range(100, 100 + FOLDERS)}
    for k, two in names.items():
        write_files(folder / str(k), {name: make_jpeg(k + at * 50, (20, 20)) for at, name in enumerate(two)})
    return {str(folder / str(k)): frozenset(two) for k, two in names.items()}


def make_model(dataset: Path) -> Model:
    return Model((frozenset(name for split in ("train", "validation") for name in list_names(dataset, split)),))


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


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_on_a_disk(rng: random.Random, small_dataset: Path, tmp_path: Path, rounds: int) -> None:
    dataset = str(shutil.copytree(small_dataset, tmp_path / "pets"))
    images = draw_folders(tmp_path / "images")
    check_rounds(dataset, make_model(small_dataset), images, rng, rounds, {})
    assert verify(dataset, VerifyConfig(workers=0)).damaged == []
