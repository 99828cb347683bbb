"""Estimates from a sample against the job itself, and the arithmetic by hand."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_jobs import estimate
from beam_jobs.config import ShardConfig
from beam_jobs.estimate import estimate_job, extrapolate, infer_processes
from beam_jobs.process_pool import map_unordered
from beam_jobs.shard_job import plan_shards
from tests.beam_jobs.datasets import make_dataset
from tests.beam_jobs.images import make_jpeg, write_files, write_tar
from tfpipe.format.image_form import ImageForm
from tfpipe.format.manifest import Manifest
from tfpipe.system.host_limits import usable_cpus


def make_estimate(source: Path, **options: Any) -> estimate.Estimate:
    config = ShardConfig(str(source), "/nowhere/out", workers=2, **options)
    return estimate_job(config, plan_shards(config), 1.0, ())


def count_bytes(manifest: Manifest) -> int:
    return sum(split.bytes for split in manifest.splits.values())


def make_photos(count: int) -> dict[str, bytes]:
    """Returns JPEG images of many sizes by name."""
    sides = np.random.default_rng(5).integers(8, 160, (count, 2)).tolist()
    return {f"{'ab'[i % 2]}/{i:04d}.jpg": make_jpeg(i, tuple(size)) for i, size in enumerate(sides)}


@pytest.mark.parametrize(
    ("form", "within"),
    [(ImageForm(), 0.001), (ImageForm(resize_short=32), 0.1), (ImageForm(encoding="raw", square=24), 0.001)],
    ids=["keep", "resize", "raw"],
)
def test_the_bytes_are_those_of_the_job(tmp_path: Path, monkeypatch, form: ImageForm, within: float) -> None:
    monkeypatch.setattr(estimate, "SAMPLE_IMAGES", 60)
    source = write_files(tmp_path / "in", make_photos(200))
    estimated = make_estimate(source, form=form)
    written = count_bytes(make_dataset(source, tmp_path / "out", form=form))
    assert (estimated.sampled, estimated.bad, estimated.workers) == (60, 0, 2)
    assert estimated.output_bytes == pytest.approx(written, rel=within)
    assert estimated.wall_s > 1.0  # a small job starts no processes


@pytest.mark.parametrize("kind", ["tar", "dataset", "folder"])
def test_a_sample_of_all_has_the_bytes_of_the_job(tmp_path: Path, monkeypatch, kind: str) -> None:
    """Bad images cost no bytes."""
    files, options = {**make_photos(30), "a/bad.jpg": b"no image", "b/empty.jpg": b""}, dict[str, Any]()
    source = write_files(tmp_path / "in", files)
    (source / "a" / "gone.jpg").symlink_to("nowhere")
    if kind == "dataset":
        make_dataset(source, tmp_path / "one")
        source, options = tmp_path / "one", {"datasets": (str(tmp_path / "one"),)}
    elif kind != "folder":
        source = write_tar(tmp_path / "a.tar", files)
    assert list(map_unordered(abs, [-1], 1)) == [1]  # the pool has its socket before
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(estimate.tempfile, "tempdir", str(tmp_path / "scratch"))
    estimated = make_estimate(source, **options)
    assert (estimated.sampled, estimated.bad) == {"folder": (33, 3), "dataset": (30, 0)}.get(kind, (32, 2))
    assert os.listdir(tmp_path / "scratch") == []  # nothing is left behind
    assert estimated.output_bytes == pytest.approx(count_bytes(make_dataset(source, tmp_path / "out", **options)))


def test_a_line_is_found_exactly_and_equal_sizes_give_the_mean() -> None:
    assert extrapolate([(size, 3 * size + 7) for size in (1, 2, 5)], total=1000, count=100) == pytest.approx(3700)
    assert extrapolate([(1, 1.0), (1, 3.0)], total=400, count=400) == 800


def test_the_processes_are_those_of_the_runner() -> None:
    assert infer_processes(ShardConfig("/in", "/out", workers=7), ()) == (7, 3.0)
    for beam_args in ((), ("--direct_running_mode=multi_threading",)):
        assert infer_processes(ShardConfig("/in", "/out"), beam_args) == (usable_cpus(), 3.0)
    machines, kind = "--max_num_workers=10", "--machine_type=n2-standard-4"
    for options, processes in (((), 1), ((machines,), 10), ((machines, kind), 40)):
        beam_args = ("--runner=DataflowRunner", *options)
        assert infer_processes(ShardConfig("/in", "/out"), beam_args) == (processes, 180.0)
