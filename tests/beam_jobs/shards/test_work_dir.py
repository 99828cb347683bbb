"""The working folder: the plan and its fingerprint, the notes about finished shards, and the progress of workers."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.plan import plan as plan_module
from beam_jobs.shard_job import plan_shards
from beam_jobs.shards.output_dir import make_plan_header, write_plan
from beam_jobs.shards.progress import ProgressFile, progress_folder, read_finished, read_progress
from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir
from tests.beam_jobs.images import make_photos, write_files
from tests.beam_jobs.plans import read_lines
from tfpipe.errors import DataError, FormatError
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import image_schema
from tfpipe.system.progress import Progress

SHARDS = (PlannedShard("train", 0, 2, 3, 0, 10), PlannedShard("train", 1, 2, 2, 10, 20))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b'{"form": {"encoding": "gif"}}'])
def test_a_damaged_header(data: bytes, tmp_path: Path) -> None:
    (tmp_path / ".tfpipe").mkdir()
    (tmp_path / ".tfpipe" / "plan.json").write_bytes(data)
    with pytest.raises(FormatError, match=r"^The plan of an earlier run cannot be read \(.*\)\.$"):
        WorkDir(str(tmp_path)).read_header()


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
    assert [list(work.read_images(shard)) for shard in header.shards] == read_lines(plan)


@pytest.fixture
def running(tmp_path: Path) -> WorkDir:
    folder = tmp_path / ".tfpipe" / "progress"
    folder.mkdir(parents=True)
    return WorkDir(str(tmp_path), str(folder))


@pytest.fixture
def header() -> PlanHeader:
    schema = image_schema(labeled=False, boxes=False, box_labels=False)
    return PlanHeader("n", "/r", "f", 0, ImageForm(), schema, (), {}, 0, False, {}, SHARDS)


def test_sums(running: WorkDir, header: PlanHeader) -> None:
    assert read_progress(running, header) == Progress(0, 5, num_shards=2)
    with ProgressFile(running, SHARDS[0]) as first:
        first.step(100, bad=0)
        assert read_progress(running, header) == Progress(1, 5, bytes=100, num_shards=2)
        first.step(50, bad=1)
        first.step(50, bad=1)
    assert read_progress(running, header) == Progress(3, 5, bytes=200, bad=1, shards=1, num_shards=2)
    with ProgressFile(running, SHARDS[1]):  # a kept shard is done without a step
        pass
    assert read_progress(running, header) == Progress(5, 5, bytes=200, bad=1, shards=2, num_shards=2)
    for name, line in (("a", b""), ("b", b"1 2"), ("c", b"x y z"), ("d", b"1 2 3\n")):  # some are being written
        Path(running.progress or "", name).write_bytes(line)
    assert read_progress(running, header) == Progress(6, 5, bytes=202, bad=4, shards=2, num_shards=2)
    with pytest.raises(ZeroDivisionError), ProgressFile(running, SHARDS[0]):  # one that fails is not done
        raise ZeroDivisionError
    assert read_progress(running, header).shards == 1


def test_by_finished_shards(running: WorkDir, header: PlanHeader, monkeypatch) -> None:
    assert read_finished(running, header) == Progress(0, 5, num_shards=2)
    notes = Path(running.path("rows"))
    notes.mkdir()
    for name in (f"{SHARDS[0].file}.json", f"{SHARDS[1].file}.json.tmp", "other.json"):
        (notes / name).touch()
    assert read_finished(running, header) == Progress(3, 5, shards=1, num_shards=2)
    for error in (OSError("no answer"), DataError("it cannot be read")):
        monkeypatch.setattr("tfpipe.storage.file_io.list_names", Mock(side_effect=error))
        assert read_finished(running, header) is None


def test_the_folder_is_new_and_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / ".tfpipe" / "progress").mkdir(parents=True)
    (tmp_path / ".tfpipe" / "progress" / "old").touch()
    with progress_folder(WorkDir(str(tmp_path))) as folder:
        assert (folder, os.listdir(folder)) == (f"{tmp_path}/.tfpipe/progress", [])
    with progress_folder(WorkDir("gs://bucket/out")) as folder:
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)
