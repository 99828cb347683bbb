"""The job without Beam."""

from __future__ import annotations

from pathlib import Path

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.run_in_process import run_in_process
from tests.beam_jobs.datasets import read_tree
from tests.beam_jobs.images import make_photos, write_files


def test_the_same_dataset_as_by_beam(tmp_path: Path) -> None:
    photos = write_files(tmp_path / "in", {**make_photos({"cat": 7, "dog": 5}), "cat/bad.jpg": b"bad"})
    manifest = run_in_process(ShardConfig(str(photos), str(tmp_path / "straight"), num_shards=3))
    result = shard_job.run(ShardConfig(str(photos), str(tmp_path / "beam"), num_shards=3, workers=1))
    assert manifest == result.manifest
    assert read_tree(tmp_path / "straight") == read_tree(tmp_path / "beam")
