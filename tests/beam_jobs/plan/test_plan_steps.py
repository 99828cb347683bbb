"""Tasks over pieces of the input make the very plan that the launcher makes of the whole: every byte of every file."""

from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.estimate import estimate_job
from beam_jobs.make_plan import plan_shards
from beam_jobs.plan import list_step
from beam_jobs.shards.output_dir import open_planning
from tests.beam_jobs.images import make_photos, write_files, write_tar
from tests.beam_jobs.plans import CASES, SPLITS, plan_by_launcher, plan_by_tasks, run_tasks, write_tables
from tfpipe.errors import DataError, TfpipeError


@pytest.fixture
def small(monkeypatch) -> None:
    """Makes everything that is cut by size so small that a few images are cut too."""
    monkeypatch.setattr("beam_jobs.plan.split_and_shard.PART_IMAGES", 5)
    monkeypatch.setattr("beam_jobs.inputs.table.RUN_IMAGES", 11)
    monkeypatch.setattr(list_step, "_BUCKET_IMAGES", 20)
    monkeypatch.setattr(list_step, "RUN_IMAGES", 11)
    monkeypatch.setattr("beam_jobs.plan.scratch._SLICE_IMAGES", 2)


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_that_of_the_launcher(case: str, tmp_path: Path, small: None) -> None:
    write, options = CASES[case]
    source = write(tmp_path / "in")
    expected = plan_by_launcher(source, tmp_path / "out", **options)
    assert plan_by_tasks(source, tmp_path / "out", **options) == expected
    assert len([name for name in expected if name.startswith("plan/")]) > 1
    assert (expected["dropped"] > 0) == ("without copies" in case)


@pytest.mark.parametrize("numeric", [False, True])
def test_labels_are_those_of_a_file(tmp_path: Path, small: None, numeric: bool) -> None:
    source = write_tables(tmp_path / "in", **({"label": "007"} if numeric else {}))
    (tmp_path / "labels.txt").write_text("\n".join(f"c{k}" for k in range(9, -1, -1)))
    options = {"labels": str(tmp_path / "labels.txt")}
    expected = plan_by_launcher(source, tmp_path / "out", **options)
    assert plan_by_tasks(source, tmp_path / "out", **options) == expected


def refuse(source: Path, tmp_path: Path, **options: Any) -> str:
    """Returns the message with which the tasks and the launcher alike refuse an input."""
    config = ShardConfig(str(source), str(tmp_path / "out"), **options)
    with pytest.raises(TfpipeError) as expected:
        plan_shards(config)
    with pytest.raises(TfpipeError) as caught, open_planning(config) as base:
        run_tasks(config, base)
    assert (type(caught.value), str(caught.value)) == (type(expected.value), str(expected.value))
    assert not (tmp_path / "out").exists()
    return str(caught.value)


def test_faults_are_those_that_the_launcher_finds(tmp_path: Path, small: None) -> None:
    table = write_tables(tmp_path / "t")
    assert refuse(table, tmp_path, splits={"train": 0.99999, "test": 0.00001}).startswith("Split 'test' would get none")
    assert "`group_by` must name a column" in refuse(table, tmp_path, splits=SPLITS, group_by="nobody")
    with (tmp_path / "t" / "t-2.csv").open("a") as file:
        file.write("last.jpg,,p,x\n")
    assert "every row must have a 'label' or none may, but 1 of 126 have none" in refuse(table, tmp_path)
    write_files(tmp_path / "loose", {"a/1.jpg": b"1", "2.jpg": b"2", "1.jpg": b"3"})
    assert "2 of 3 images in" in refuse(tmp_path / "loose", tmp_path)
    write_files(tmp_path / "none", {"a/1.txt": b"1"})
    assert refuse(tmp_path / "none", tmp_path).endswith("/none. Skipped by name: 1 *.txt.")
    write_files(tmp_path / "named", {"train/a/1.jpg": b"1", "val/a/2.jpg": b"2"})
    assert refuse(tmp_path / "named", tmp_path, split="x").startswith("The input names its own splits")
    assert refuse(tmp_path / "nowhere", tmp_path).endswith("/nowhere does not exist.")


def test_one_path_in_two_places_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"a/1.jpg": b"1"})
    write_tar(tmp_path / "in" / "a.tar", {"1.jpg": b"1"})
    write_tar(tmp_path / "in" / "b.tar", {"1.jpg": b"1", "2.jpg": b"2"})
    assert refuse(tmp_path / "in", tmp_path) == (
        f"{tmp_path}/in holds a/1.jpg twice, in a folder and in a.tar. Rename one of them."
    )


def test_a_split_of_copies_is_refused(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"train/a/1.jpg": b"1", "val/a/2.jpg": b"1"})
    assert refuse(tmp_path / "in", tmp_path, drop_duplicates=True) == (
        "Split 'train' holds nothing but copies of images in other splits."
    )


def test_a_job_is_estimated_from_lines_on_disk(tmp_path: Path) -> None:
    write_files(tmp_path / "in", make_photos({"cat": 9, "dog": 4}))
    write_tar(tmp_path / "in" / "bird.tar.gz", make_photos({"x": 3}, seed=1), "w:gz")
    config = ShardConfig(str(tmp_path / "in"), str(tmp_path / "out"), num_shards=3, workers=1)
    with open_planning(config) as base:
        estimate = estimate_job(config, run_tasks(config, base), 0, ())
    assert (estimate.sampled, estimate.bad) == (16, 0)
    assert estimate.output_bytes == estimate_job(config, plan_shards(config), 0, ()).output_bytes


def test_a_worker_without_the_folder_says_so(tmp_path: Path) -> None:
    planning = list_step.Planning(ShardConfig("in", "out"), list_step.Scratch(str(tmp_path)))
    with pytest.raises(DataError) as caught:
        list_step.list_piece(planning, 0)
    assert str(caught.value) == (
        f"A worker does not find {tmp_path}/input. All workers must reach images and output by the same names: on a "
        "disk they share, or in a bucket."
    )
