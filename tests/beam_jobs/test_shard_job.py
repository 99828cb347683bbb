"""The whole job by Beam: the same bytes with any workers, and every run goes on where the last one ended."""

import os
import re
import shutil
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from beam_jobs import process_pool, shard_job
from beam_jobs.config import ShardConfig
from beam_jobs.shard_job import ShardResult
from tests.beam_jobs.commands import (
    POOL_DIED,
    check_no_orphans,
    finish_command,
    list_processes,
    start_command,
    wait_for,
)
from tests.beam_jobs.datasets import make_dataset, read_tree
from tests.beam_jobs.images import make_jpeg, make_photos, make_png, write_files, write_many, write_tar, write_zip
from tests.observers import Recorder
from tests.refusals import refusal
from tfpipe.errors import DataError
from tfpipe.system.process_pool import running
from tfpipe.system.progress import Progress

THREADS = ("--direct_running_mode=multi_threading", "--direct_num_workers=2")


def run(source: Path, output: Path, *beam_args: str, **options: Any) -> ShardResult:
    return shard_job.run(ShardConfig(str(source), str(output), **{"workers": 1, **options}), beam_args)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """A folder with splits, PNGs, a bad image and duplicates, so that a dataset holds every kind of file."""
    folder = tmp_path_factory.mktemp("beam") / "photos"
    write_files(folder / "train", make_photos({"cat": 12, "dog": 9}))
    write_files(folder / "val", make_photos({"cat": 3, "dog": 4}, seed=1))
    write_files(folder, {"train/cat/bad.jpg": b"bad", "train/dog/x.png": make_png(7), "val/dog/copy.jpg": make_jpeg(3)})
    write_files(folder, {"train/dog/twin.jpg": make_jpeg(3), "notes.txt": b"x"})
    return folder


OPTIONS = {"num_shards": 4, "seed": 5, "keep_quarantined": True}


@pytest.fixture(scope="module")
def straight(photos: Path, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("beam") / "out"
    assert run(photos, output, **OPTIONS).kept_shards == 0
    return output


@pytest.mark.parametrize(("beam_args", "workers"), [((), 2), ((), 0), (THREADS, 1)])
def test_the_same_bytes_whoever_does_the_work(photos, straight, tmp_path, beam_args, workers):
    assert run(photos, tmp_path / "out", *beam_args, workers=workers, **OPTIONS).kept_shards == 0
    assert read_tree(tmp_path / "out") == read_tree(straight)


@pytest.mark.parametrize(
    ("name", "data", "options", "starts"),
    [
        ("x.JPG", make_jpeg(1), {}, False),
        ("x.png", make_png(1), {}, False),
        ("x.gif", make_jpeg(1), {}, True),
        ("x.jpg", make_jpeg(1), {"workers": 2}, True),
        ("x.jpg", make_jpeg(1) + bytes(40 << 20), {}, True),
    ],
)
def test_few_images_start_no_process(tmp_path, monkeypatch, name, data, options, starts):
    source = write_files(tmp_path / "in", {f"a/{name}": data, "b/y.jpg": make_jpeg(2)})
    monkeypatch.setattr("beam_jobs.shards.job.map_unordered", Mock(side_effect=NotImplementedError))
    config = ShardConfig(str(source), str(tmp_path / "out"), num_shards=2, **options)
    assert process_pool.holds_little(str(source)) == (len(data) < 40 << 20)
    if starts:
        with pytest.raises(NotImplementedError):
            shard_job.run(config)
    else:
        assert shard_job.run(config).manifest.splits["train"].records == 2


def test_which_input_holds_little(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", {f"a/{k}": b"x" for k in range(999)})
    assert process_pool.holds_little(str(source))
    (source / "an empty folder").mkdir()  # counts as a file: there may be millions
    assert not process_pool.holds_little(str(source))
    assert not process_pool.holds_little(str(tmp_path / "none"))
    assert not process_pool.holds_little("gs://bucket/photos")


def test_too_many_bad_images_end_other_threads_early(tmp_path, monkeypatch):
    source = write_files(tmp_path / "in", {f"a/{k:03}.jpg": b"bad" if k % 2 else make_jpeg(k) for k in range(200)})
    monkeypatch.setattr("beam_jobs.runners.base.usable_cpus", lambda: 4)
    with pytest.raises(DataError, match=r"At most 0 of 200 images may be bad, got [0-9]+, the first a/"):
        shard_job.run(ShardConfig(str(source), str(tmp_path / "out"), num_shards=40, max_bad=0))
    assert len([*(tmp_path / "out").glob(".tfpipe/rows/*.json")]) < 40
    assert not [*(tmp_path / "out").glob(".tfpipe/tmp/*")]


def test_an_archive_gives_the_records_of_its_folder(photos: Path, straight: Path, tmp_path: Path) -> None:
    files = read_tree(photos)
    archives = [
        write_tar(tmp_path / "photos.tar", files),
        write_tar(tmp_path / "photos.tar.gz", files, "w:gz"),
        write_zip(tmp_path / "photos.zip", files, 0),
        write_zip(tmp_path / "deflated" / "photos.zip", files),
    ]
    for k, archive in enumerate(archives):
        output = tmp_path / f"out{k}"
        manifest = run(archive, output, **OPTIONS).manifest if k == 1 else make_dataset(archive, output, **OPTIONS)
        assert manifest.name == "photos"
        for name, data in read_tree(straight).items():
            if name != "manifest.json":  # its fingerprint knows the places in the archive
                assert (output / name).read_bytes() == data


def test_a_second_run_keeps_everything(photos: Path, straight: Path, tmp_path: Path) -> None:
    done = Path(shutil.copytree(straight, tmp_path / "out"))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in done.rglob("*") if path.is_file()}
    for beam_args in ((), THREADS):
        assert run(photos, done, *beam_args, **OPTIONS).kept_shards == 8
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in done.rglob("*") if path.is_file()} == before


def test_the_observer_and_the_result_agree(photos: Path, tmp_path: Path) -> None:
    observer = Recorder()
    result = shard_job.run(ShardConfig(str(photos), str(tmp_path / "out"), workers=1, **OPTIONS), observer=observer)
    (plan,) = observer.plans
    assert plan.num_images == 32
    assert observer.progresses[-1] == Progress(32, 32, bytes=plan.num_bytes, bad=1, shards=8, num_shards=8)
    assert result.images_per_second == 32 / result.seconds


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    return write_many(tmp_path_factory.mktemp("many") / "photos", 900)


MANY = {"num_shards": 30}


@pytest.fixture(scope="module")
def many_straight(many: Path, tmp_path_factory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("many") / "out"
    run(many, output, workers=2, **MANY)
    return read_tree(output)


@pytest.mark.parametrize("beam_args", [(), ("--runner=DirectRunner",)])
def test_a_killed_worker_ends_the_job(many, many_straight, tmp_path, beam_args):
    """The youngest worker is killed once shards are coming."""
    output = tmp_path / "out"

    def kill() -> None:
        wait_for(lambda: len([*output.glob(".tfpipe/rows/*.json")]) >= 2, 60)
        (pool,) = running
        os.kill(max(pool._processes), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    message = refusal(DataError, run, many, output, *beam_args, workers=2, **MANY)
    killer.join()
    assert len([*output.glob(".tfpipe/rows/*.json")]) < MANY["num_shards"]  # the others did not go on to the end
    assert message == POOL_DIED
    assert not (output / "manifest.json").exists()
    assert run(many, output, workers=2, **MANY).kept_shards >= 2
    assert read_tree(output) == many_straight


@pytest.mark.parametrize("mode", [("--workers", 2), (), pytest.param(("--", *THREADS), marks=pytest.mark.slow)])
def test_an_interrupted_job_leaves_no_process_and_can_go_on(many, many_straight, tmp_path, mode, tfpipe):
    output = tmp_path / "out"
    process = start_command(many, output, "--num-shards", 30, *mode)
    wait_for(lambda: len([*output.glob(".tfpipe/rows/*.json")]) >= 2, 60)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    code, out, err = finish_command(process)
    assert len([*output.glob(".tfpipe/rows/*.json")]) < 30  # it did not go on to its end
    assert (code, out) == (130, "")
    assert re.fullmatch(
        r"Interrupted\. (\d+ of 30 shards are finished\. )?Run the same command again to go on\.",
        err.strip().splitlines()[-1],
    )
    assert "Traceback" not in err
    wait_for(lambda: not list_processes(process.pid), 5)
    again = tfpipe("shard", many, output, "--num-shards", 30, "--workers", 2)
    assert again.code == 0
    assert re.search(r", \d+ shards? finished before\n$", again.out)
    assert read_tree(output) == many_straight


def test_a_job_killed_while_overwriting_leaves_the_old_dataset(many: Path, many_straight, tmp_path: Path) -> None:
    small = write_files(tmp_path / "small", make_photos({"cat": 5}))
    output = tmp_path / "out"
    make_dataset(small, output)
    before = read_tree(output)
    process = start_command(many, output, "--num-shards", 30, "--workers", 2, "--overwrite")
    wait_for(lambda: len([*tmp_path.glob("out.tfpipe-new/.tfpipe/rows/*.json")]) >= 2, 60)
    process.kill()
    check_no_orphans(process)
    finish_command(process)
    assert {name: data for name, data in read_tree(output).items() if not name.startswith(".tfpipe/")} == before
    make_dataset(small, output)  # the old one is still there to be run again
    assert read_tree(output) == before
    assert run(many, output, workers=2, overwrite=True, **MANY).kept_shards >= 2
    assert read_tree(output) == many_straight
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "small"]
