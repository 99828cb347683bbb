"""The steps that make a plan: the sizes of their pieces change no byte of it, and faults of an input are named."""

from pathlib import Path
from typing import Any

import pytest

from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import plan_shards
from beam_jobs.plan import list_step
from tests.beam_jobs.images import write_files, write_tar
from tests.beam_jobs.plans import CASES, SPLITS, make_plan, write_tables
from tfpipe.errors import TfpipeError


@pytest.mark.parametrize("case", CASES)
def test_the_pieces_in_which_it_is_made_change_nothing(case: str, tmp_path: Path, monkeypatch) -> None:
    write, options = CASES[case]
    source = write(tmp_path / "in")
    expected = make_plan(source, tmp_path / "out", **options)
    assert (expected["dropped"] > 0) == ("without copies" in case)
    monkeypatch.setattr("beam_jobs.inputs.table.RUN_IMAGES", 11)
    monkeypatch.setattr(list_step, "_BUCKET_IMAGES", 20)
    monkeypatch.setattr(list_step, "RUN_IMAGES", 11)
    monkeypatch.setattr("beam_jobs.plan.scratch._SLICE_IMAGES", 2)
    assert make_plan(source, tmp_path / "out", **options) == expected
    monkeypatch.setattr("beam_jobs.plan.split_and_shard.PART_IMAGES", 5)
    parts = make_plan(source, tmp_path / "out", **options)
    names = sorted(name for name in parts if name.startswith("plan/"))
    assert len(names) > 1
    assert b"".join(parts[name] for name in names) == expected["plan/00000.jsonl"]


def refuse(source: Path, tmp_path: Path, **options: Any) -> str:
    with pytest.raises(TfpipeError) as caught:
        plan_shards(ShardConfig(str(source), str(tmp_path / "out"), **options))
    assert not (tmp_path / "out").exists()
    return str(caught.value)


def test_faults_of_an_input(tmp_path: Path) -> None:
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
