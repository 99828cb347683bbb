"""A job in parts that other processes do: shares, notes about what is begun, the end, and parts that are killed."""

import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from beam_jobs import part_job
from beam_jobs.config import ShardConfig
from beam_jobs.part_job import order_shards, plan_parts, run_part
from beam_jobs.shards.work_dir import WorkDir
from tests.beam_jobs.commands import list_processes, start_command, wait_for
from tests.beam_jobs.datasets import join_datasets, make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, write_files, write_many
from tests.refusals import refusal
from tfpipe.errors import ConfigError, DataError
from tfpipe.storage import file_io

OPTIONS = {"num_shards": 6, "seed": 3}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_files(tmp_path / "in", make_photos({"cat": 12, "dog": 9}) | {"cat/bad.jpg": b"bad"})


def plan(source: Path, output: Path, **options: Any) -> ShardConfig:
    plan_parts(ShardConfig(str(source), str(output), **OPTIONS | options))
    return ShardConfig(str(source), str(output), workers=1)


def check_whole(source: Path, tmp_path: Path) -> None:
    """Checks that the parts have made the dataset of a plain run."""
    make_dataset(source, tmp_path / "straight", **OPTIONS)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


def test_a_part_begins_with_its_share_and_goes_on_from_behind() -> None:
    assert order_shards((0, 3), 7) == [0, 1, 6, 5, 4, 3, 2]
    assert order_shards((1, 3), 7) == [2, 3, 1, 0, 6, 5, 4]
    assert order_shards((2, 3), 7) == [4, 5, 6, 3, 2, 1, 0]
    assert order_shards((5, 3), 7) == order_shards((2, 3), 7)
    assert order_shards((0, 9), 2) == [1, 0]


def test_the_first_part_makes_all_that_nobody_begins(photos: Path, tmp_path: Path) -> None:
    config = plan(photos, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    result = run_part(config, (1, 3))
    assert (result.written, result.finished, result.num_shards, result.is_complete) == (6, 6, 6, True)
    check_whole(photos, tmp_path)
    before = read_tree(tmp_path / "out")
    late = run_part(config, (2, 3))
    assert (late.written, late.is_complete) == (0, True)
    assert refusal(ConfigError, run_part, ShardConfig("/data/more", config.output), (0, 1)) == (
        f"{config.output} holds a dataset made from another input, in, got /data/more. Choose an empty directory."
    )
    plan(photos, tmp_path / "out")  # a plan of a complete dataset leaves it alone
    assert read_tree(tmp_path / "out") == before
    assert run_part(config, (0, 1)).is_complete


def test_what_another_part_has_begun_is_left_to_it(photos: Path, tmp_path: Path) -> None:
    config = plan(photos, tmp_path / "out")
    work = WorkDir(str(tmp_path / "out"))
    files = work.read_header().files
    assert work.begin(files[4], (0, 2))
    assert not work.begin(files[4], (1, 2))
    first = run_part(config, (1, 2))
    assert (first.written, first.finished, first.is_complete) == (5, 5, False)
    second = run_part(config, (0, 2))  # whose note that is
    assert (second.written, second.finished, second.is_complete) == (1, 6, True)
    check_whole(photos, tmp_path)


def test_the_end_is_left_to_the_part_that_began_it(photos: Path, tmp_path: Path) -> None:
    config = plan(photos, tmp_path / "out")
    assert WorkDir(str(tmp_path / "out")).begin("manifest.json", (0, 2))
    result = run_part(config, (1, 2))
    assert (result.written, result.finished, result.is_complete) == (6, 6, False)
    assert run_part(config, (0, 2)).is_complete
    check_whole(photos, tmp_path)


@pytest.mark.parametrize("completed_by", ["a new plan", "a plain run"])
def test_what_parts_have_left_is_completed(photos: Path, tmp_path: Path, completed_by: str) -> None:
    config = plan(photos, tmp_path / "out")
    work = WorkDir(str(tmp_path / "out"))
    for file in work.read_header().files[:2]:
        assert work.begin(file, (7, 8))
    assert run_part(config, (0, 2)).finished == 4
    if completed_by == "a new plan":  # which forgets who began what
        plan(photos, tmp_path / "out")
        assert run_part(config, (0, 1)).is_complete
    else:
        make_dataset(photos, tmp_path / "out", **OPTIONS)
    check_whole(photos, tmp_path)


def test_records_of_datasets_go_in_parts_too(photos: Path, tmp_path: Path) -> None:
    make_dataset(photos, tmp_path / "a")
    datasets = (str(tmp_path / "a"), str(tmp_path / "a"))
    join_datasets(datasets, tmp_path / "straight", num_shards=3)
    plan_parts(ShardConfig("a, a", str(tmp_path / "out"), datasets=datasets, num_shards=3))
    assert run_part(ShardConfig("a, a", str(tmp_path / "out"), datasets=datasets, workers=1), (0, 2)).is_complete
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


def test_what_is_refused(photos: Path, tmp_path: Path) -> None:
    config = ShardConfig(str(photos), str(tmp_path / "out"), workers=1)
    assert refusal(DataError, run_part, config, (0, 2)) == (
        f"There is no plan in {tmp_path / 'out'}. Write it with --plan-only, and the options of the job, before its "
        "parts begin."
    )
    plan(photos, tmp_path / "out")
    other = ShardConfig(str(tmp_path), str(tmp_path / "out"))
    assert refusal(ConfigError, run_part, other, (0, 2)) == (
        f"The plan in {tmp_path / 'out'} is that of {photos}, got {tmp_path}. Name the same input by the same path."
    )
    message = "`overwrite` replaces a dataset in one run, which parts are not. Choose another OUTPUT."
    assert refusal(ConfigError, plan, photos, tmp_path / "out", overwrite=True) == message
    plan(photos, tmp_path / "none", max_bad=0)
    strict = ShardConfig(str(photos), str(tmp_path / "none"), workers=1)
    assert refusal(DataError, run_part, strict, (0, 1)).startswith("At most 0 of 22 images may be bad, got 1, ")


def test_a_part_that_ended_while_it_gave_shards_other_names(tmp_path: Path, monkeypatch) -> None:
    files = {f"a/{i}.jpg": b"bad" if i in (0, 2, 5) else make_jpeg(i) for i in range(6)}
    source, options = write_files(tmp_path / "in", files), {"num_shards": 6, "seed": 0, "shuffle": False, "max_bad": 3}
    make_dataset(source, tmp_path / "straight", **options)
    config = plan(source, tmp_path / "out", **options)
    with monkeypatch.context() as patch:
        patch.setattr(file_io, "rename", Mock(wraps=file_io.rename, side_effect=[*[DEFAULT] * 3, KeyboardInterrupt]))
        with pytest.raises(KeyboardInterrupt):
            run_part(config, (0, 2))
    assert not run_part(config, (1, 2)).is_complete
    assert run_part(config, (0, 2)).is_complete
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "straight")


def test_a_part_that_comes_as_another_ends_leaves_nothing(photos: Path, tmp_path: Path, monkeypatch) -> None:
    """The note about a shard would make the working folder anew, after the other part has removed it."""
    config = plan(photos, tmp_path / "out")
    work = WorkDir(str(tmp_path / "out"))
    header = work.read_header()
    job = part_job.Job(work, header.fingerprint, header.versions)
    assert job.header == header
    assert run_part(config, (0, 2)).is_complete
    before = read_tree(tmp_path / "out")
    assert part_job._write_begun(job, (1, 2), 0) is None
    assert part_job._finish_last(job, (1, 2)) == (6, True)
    assert read_tree(tmp_path / "out") == before
    assert not (tmp_path / "out" / ".tfpipe").exists()
    (tmp_path / "out" / ".tfpipe" / "digests").mkdir(parents=True)  # of a part killed while it removed the folder
    assert run_part(config, (1, 2)).is_complete
    assert not (tmp_path / "out" / ".tfpipe").exists()


def kill_at_random(source: Path, output: Path, parts: int, rng: random.Random, most: int) -> int:
    """Runs all parts, and kills and starts again one after the other until all have ended; returns the kills."""

    def start(number: int) -> subprocess.Popen[str]:
        return start_command(source, output, "--part", f"{number}/{parts}", "--workers", 1)

    running, kills = {number: start(number) for number in range(parts)}, 0
    while kills < most and any(process.poll() is None for process in running.values()):
        time.sleep(rng.uniform(0, 1))
        number = rng.randrange(parts)
        if running[number].poll() is None:
            running[number].kill()
            wait_for(lambda session=running[number].pid: not list_processes(session), 60)
            running[number].communicate()
            running[number], kills = start(number), kills + 1
    for process in running.values():
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    return kills


@pytest.mark.parametrize(("kills", "parts"), [(2, 2), pytest.param(100, 8, marks=pytest.mark.slow)])
def test_parts_killed_at_random_give_the_bytes_of_one_process(rng, tmp_path, kills: int, parts: int) -> None:
    many, done = write_many(tmp_path / "photos", 300), 0
    make_dataset(many, tmp_path / "straight", num_shards=60)
    expected = read_tree(tmp_path / "straight")
    while done < kills:
        plan(many, tmp_path / "out", num_shards=60, seed=0)
        done += kill_at_random(many, tmp_path / "out", parts, rng, kills - done)
        assert read_tree(tmp_path / "out") == expected
        shutil.rmtree(tmp_path / "out")
