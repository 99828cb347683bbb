"""Which source a plan names."""

from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.shards.dataset_records import DatasetRecords
from beam_jobs.shards.image_files import ImageFiles
from beam_jobs.shards.output_dir import open_work_dir
from beam_jobs.shards.record_source import open_source
from beam_jobs.shards.write_shard import write_shard
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_photos, write_files


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_files(tmp_path / "in", {**make_photos({"cat": 2}), "cat/0005.jpg": b"bad"})


def check_names(config: ShardConfig, source_type: type[Any], names: list[str]) -> None:
    """Checks the source of a job, and the names that it gives to the records of the first shard."""
    with open_work_dir(config, plan_shards(config)) as work:
        header = work.read_header()
        source = open_source(header)
        assert type(source) is source_type
        write_shard(work, header, 0)
        assert source.list_names(work, header.shards[0]) == names


def test_the_plan_knows_the_names_of_image_files(photos: Path, tmp_path: Path) -> None:
    config = ShardConfig(str(photos), str(tmp_path / "out"), shuffle=False)
    check_names(config, ImageFiles, ["cat/000.jpg", "cat/001.jpg"])
    assert not (tmp_path / "out" / ".tfpipe" / "names").exists()


def test_the_records_of_datasets_know_the_names_of_their_images(photos: Path, tmp_path: Path) -> None:
    make_dataset(photos, tmp_path / "dataset", shuffle=False)
    config = ShardConfig("x", str(tmp_path / "out"), datasets=(str(tmp_path / "dataset"),), shuffle=False)
    check_names(config, DatasetRecords, ["cat/000.jpg", "cat/001.jpg"])
