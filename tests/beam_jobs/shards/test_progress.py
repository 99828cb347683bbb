"""The lines that workers leave in a folder, added up."""

import os
from pathlib import Path

import pytest

from beam_jobs.shards.progress import ProgressFile, progress_folder, read_finished, read_progress
from beam_jobs.shards.work_dir import PlanHeader, PlannedShard, WorkDir
from tfpipe.format.image_form import ImageForm
from tfpipe.format.schema import image_schema
from tfpipe.system.progress import Progress

SHARDS = (PlannedShard("train", 0, 2, 3, 0, 10), PlannedShard("train", 1, 2, 2, 10, 20))


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    folder = tmp_path / ".tfpipe" / "progress"
    folder.mkdir(parents=True)
    return WorkDir(str(tmp_path), str(folder))


@pytest.fixture
def header() -> PlanHeader:
    schema = image_schema(labeled=False, boxes=False, box_labels=False)
    return PlanHeader("n", "/r", "f", 0, ImageForm(), schema, (), {}, 0, False, {}, SHARDS)


def test_sums(work: WorkDir, header: PlanHeader) -> None:
    assert read_progress(work, header) == Progress(0, 5, num_shards=2)
    with ProgressFile(work, SHARDS[0]) as first:
        first.step(100, bad=0)
        assert read_progress(work, header) == Progress(1, 5, bytes=100, num_shards=2)
        first.step(50, bad=1)
        first.step(50, bad=1)
    assert read_progress(work, header) == Progress(3, 5, bytes=200, bad=1, shards=1, num_shards=2)
    with ProgressFile(work, SHARDS[1]):  # a kept shard is done without a step
        pass
    assert read_progress(work, header) == Progress(5, 5, bytes=200, bad=1, shards=2, num_shards=2)


def test_by_finished_shards(work: WorkDir, header: PlanHeader, monkeypatch) -> None:
    assert read_finished(work, header) == Progress(0, 5, num_shards=2)
    notes = Path(work.path("rows"))
    notes.mkdir()
    for name in (f"{SHARDS[0].file}.json", f"{SHARDS[1].file}.json.tmp", "other.json"):
        (notes / name).touch()
    assert read_finished(work, header) == Progress(3, 5, shards=1, num_shards=2)

    def fail(_: str) -> list[str]:
        raise OSError("no answer")

    monkeypatch.setattr("tfpipe.storage.file_io.list_names", fail)
    assert read_finished(work, header) is None


def test_the_folder_is_new_and_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / ".tfpipe" / "progress").mkdir(parents=True)
    (tmp_path / ".tfpipe" / "progress" / "old").touch()
    with progress_folder(WorkDir(str(tmp_path))) as folder:
        assert (folder, os.listdir(folder)) == (f"{tmp_path}/.tfpipe/progress", [])
    with progress_folder(WorkDir("gs://bucket/out")) as folder:
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


def test_a_line_that_is_being_written(work: WorkDir, header: PlanHeader) -> None:
    folder = Path(work.progress or "")
    for name, line in (("a", b""), ("b", b"1 2"), ("c", b"x y z"), ("d", b"1 2 3\n")):
        (folder / name).write_bytes(line)
    assert read_progress(work, header) == Progress(1, 5, bytes=2, bad=3, num_shards=2)


def test_a_shard_that_fails_is_not_done(work: WorkDir, header: PlanHeader) -> None:
    def fail() -> None:
        with ProgressFile(work, SHARDS[0]):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert read_progress(work, header).shards == 0
