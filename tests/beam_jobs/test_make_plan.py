"""The plan by Beam: on every runner the same files as by the launcher."""

from pathlib import Path
from typing import Any

import pytest

from beam_jobs import shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.make_plan import make_plan
from beam_jobs.shards import search_steps
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, write_files
from tests.beam_jobs.plans import CASES, plan_by_launcher, read_plan
from tests.observers import Recorder
from tfpipe.errors import DataError
from tfpipe.format import file_names

PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


def plan_by_engine(source: Path, output: Path, *beam_args: str, **options: Any) -> dict[str, Any]:
    config = ShardConfig(str(source), str(output), plan="engine", **options)
    with make_plan(config, beam_args) as plan:
        return read_plan(config, plan)


@pytest.mark.parametrize(
    ("case", "beam_args"),
    [
        ("table without copies", ()),
        pytest.param("table with groups", PROCESSES, marks=pytest.mark.slow),
        pytest.param("folder without copies", PROCESSES, marks=pytest.mark.slow),
        pytest.param("archives without copies", PROCESSES, marks=pytest.mark.slow),
    ],
)
def test_a_runner_makes_the_plan_of_the_launcher(case: str, beam_args: tuple[str, ...], tmp_path: Path, monkeypatch):
    write, options = CASES[case]
    source = write(tmp_path / "in")
    if not beam_args:
        options = {**options, "workers": 1 if case == "table without copies" else 2}  # a process imports for a second
    expected = plan_by_launcher(source, tmp_path / "out", **options)
    assert plan_by_engine(source, tmp_path / "out", *beam_args, **options) == expected


@pytest.mark.slow
def test_a_dataset_of_the_engine_is_the_same_and_resumes(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", make_photos({"cat": 5, "dog": 4}))
    make_dataset(source, tmp_path / "straight", num_shards=3)
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=3, plan="engine", workers=1)
    observer = Recorder()
    assert shard_job.run(config, observer=observer).kept_shards == 0
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
    assert observer.choices == ["The engine makes the plan: `plan` says so."]
    next((tmp_path / "out").glob("*.tfrecord")).unlink()
    assert shard_job.run(config).kept_shards == 2
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


@pytest.mark.parametrize(
    ("beam_args", "workers"),
    [
        ((), 1),
        pytest.param((), 2, marks=pytest.mark.slow),
        pytest.param(PROCESSES, 0, marks=pytest.mark.slow),
    ],
)
def test_tasks_search_for_duplicates_as_the_launcher_does(
    beam_args: tuple[str, ...], workers: int, tmp_path: Path, monkeypatch
) -> None:
    images = {f"cat/{i}.jpg": make_jpeg(i % 4) for i in range(9)} | {"dog/bad.jpg": b"bad", "dog/a.jpg": make_jpeg(1)}
    source = write_files(tmp_path / "in", images)
    if beam_args != PROCESSES:  # whose workers do not see it
        monkeypatch.setattr(file_names, "LIST_PART_BYTES", 300)
    make_dataset(source, tmp_path / "straight", num_shards=3, max_bad=1)
    assert len(list((tmp_path / "straight").rglob("*.jsonl"))) == (2 if beam_args == PROCESSES else 4)
    searched: list[int] = []
    count = search_steps.count_search_tasks
    monkeypatch.setattr(search_steps, "_RECORDS_PER_TASK", 4)
    monkeypatch.setattr(shard_job, "count_search_tasks", lambda images: searched.append(count(images)) or searched[-1])
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=3, max_bad=1, plan="engine", workers=workers)
    shard_job.run(config, beam_args)
    assert searched == [3]
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")
    if workers == 2 or beam_args == PROCESSES:
        next((tmp_path / "out").glob("*.tfrecord")).unlink()
        assert shard_job.run(config, beam_args).kept_shards == 2  # of a complete dataset nothing is searched
        assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


def test_a_fault_of_a_task_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tar").write_bytes(b"no archive" * 100)
    config = ShardConfig(str(tmp_path / "in"), str(tmp_path / "out"), plan="engine", workers=1)
    with (
        pytest.raises(DataError, match=rf"^{tmp_path}/in/a\.tar is damaged or is not a valid archive"),
        make_plan(config),
    ):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
