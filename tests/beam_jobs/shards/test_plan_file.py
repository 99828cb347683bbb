"""The plan on disk and its fingerprint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.plan import plan as plan_module
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.output_dir import make_plan_header, write_plan
from beam_jobs.shards.work_dir import WorkDir
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_photos, write_files


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_files(tmp_path / "in", make_photos({"cat": 3, "dog": 4}))


def get_fingerprint(source: Path, **options: Any) -> str:
    config = ShardConfig(str(source), "/nowhere", **options)
    return make_plan_header(config, plan_shards(config)).fingerprint


def test_another_image_library_changes_the_fingerprint(photos: Path, monkeypatch) -> None:
    fingerprint = get_fingerprint(photos)
    monkeypatch.setattr("beam_jobs.shards.job.get_codec_versions", lambda: {"pillow": "0"})
    assert get_fingerprint(photos) != fingerprint


def test_another_form_of_finished_datasets_changes_the_fingerprint(photos: Path, tmp_path: Path) -> None:
    make_dataset(photos, tmp_path / "dataset")
    datasets = (str(tmp_path / "dataset"),)
    fingerprint = get_fingerprint(photos, datasets=datasets)
    assert get_fingerprint(photos, datasets=datasets) == fingerprint
    assert get_fingerprint(photos, datasets=datasets, form_changes={"resize_short": 8}) != fingerprint


def test_each_shard_finds_its_lines(photos: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(plan_module, "_ROWS_AT_ONCE", 3)  # a shard more and a shard less
    config = ShardConfig(str(photos), "/nowhere", num_shards=3)
    plan = plan_shards(config)
    header, work = make_plan_header(config, plan), WorkDir(str(tmp_path / "out"))
    write_plan(work, replace(header, unpacked={"a": "b"}), plan)
    assert work.read_header() == replace(header, unpacked={"a": "b"})
    assert [shard.images for shard in header.shards] == [2, 2, 3]
    assert [shard.begin for shard in header.shards] == [0, *(shard.end for shard in header.shards[:-1])]
    assert sorted(path.name for path in (tmp_path / "out/.tfpipe").iterdir()) == ["plan.json", "plan.jsonl"]
    for shard, planned in zip(plan.shards, header.shards, strict=True):
        assert list(work.read_images(planned)) == list(plan.read_lines(shard))
