"""Estimates from a sample against the job itself, and the arithmetic by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_jobs import estimate
from beam_jobs.config import ShardConfig
from beam_jobs.estimate import Parallelism, estimate_job, infer_parallelism
from beam_jobs.make_plan import plan_shards
from beam_jobs.sample import ImageCost, ShardCost
from tests.beam_jobs.datasets import join_datasets, make_dataset
from tests.beam_jobs.images import make_jpeg, write_files, write_tar
from tfpipe.format.image_form import ImageForm
from tfpipe.system.host_limits import usable_cpus


def make_estimate(source: Path, **options: Any) -> estimate.Estimate:
    config = ShardConfig(str(source), "/nowhere/out", **options)
    return estimate_job(config, plan_shards(config), 1.0, Parallelism(2, 0.5))


def make_photos(count: int) -> dict[str, bytes]:
    """Returns JPEG images of many sizes by name."""
    rng = np.random.default_rng(5)
    sides = rng.integers(8, 160, (count, 2)).tolist()
    return {f"{'ab'[i % 2]}/{i:04d}.jpg": make_jpeg(i, tuple(size)) for i, size in enumerate(sides)}


@pytest.mark.parametrize(
    ("form", "within"),
    [
        (ImageForm(), 0.001),
        (ImageForm(resize_short=32), 0.1),
        (ImageForm(encoding="raw", square=24), 0.001),
    ],
    ids=["keep", "resize", "raw"],
)
def test_the_bytes_are_those_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: ImageForm, within: float
) -> None:
    monkeypatch.setattr(estimate, "SAMPLE_IMAGES", 120)
    source = write_files(tmp_path / "in", make_photos(400))
    estimated = make_estimate(source, form=form)
    manifest = make_dataset(source, tmp_path / "out", form=form)
    written = sum(split.bytes for split in manifest.splits.values())
    assert (estimated.images, estimated.sampled, estimated.bad) == (400, 120, 0)
    assert estimated.output_bytes.value == pytest.approx(written, rel=within)
    assert 0 < estimated.cpu_s.low <= estimated.cpu_s.value <= estimated.cpu_s.high
    assert 1.5 <= estimated.serial_s < estimated.wall_s.low <= estimated.wall_s.value <= estimated.wall_s.high


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_images_in_an_archive_are_estimated(tmp_path: Path, mode: str) -> None:
    """Samples all images, so the bytes are known. A compressed tar file is read once and not unpacked."""
    path = write_tar(tmp_path / ("a.tar" if mode == "w" else "a.tar.gz"), make_photos(30), mode)
    estimated = make_estimate(path)
    manifest = make_dataset(path, tmp_path / "out")
    assert estimated.output_bytes.value == pytest.approx(sum(split.bytes for split in manifest.splits.values()))
    assert estimated.output_bytes.low == estimated.output_bytes.value == estimated.output_bytes.high


def test_records_of_a_dataset_are_estimated(tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "in", make_photos(30)), tmp_path / "one")
    estimated = make_estimate(tmp_path / "one", datasets=(str(tmp_path / "one"),))
    manifest = join_datasets([tmp_path / "one"], tmp_path / "two")
    assert estimated.output_bytes.value == pytest.approx(sum(split.bytes for split in manifest.splits.values()))


def test_bad_images_are_counted_and_cost_no_bytes(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", {**make_photos(6), "a/bad.jpg": b"no image", "b/empty.jpg": b""})
    (source / "a" / "gone.jpg").symlink_to("nowhere")
    estimated = make_estimate(source)
    assert (estimated.sampled, estimated.bad) == (9, 3)
    manifest = make_dataset(source, tmp_path / "out")
    assert estimated.output_bytes.value == pytest.approx(sum(split.bytes for split in manifest.splits.values()))


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(estimate.tempfile, "tempdir", str(scratch))
    make_estimate(write_files(tmp_path / "in", make_photos(3)))
    assert os.listdir(scratch) == []


# By hand


def test_a_line_is_found_exactly() -> None:
    sizes = np.array([1.0, 2.0, 5.0])
    total = estimate._estimate_total(sizes, 3 * sizes + 7, 100, 1000)
    assert (total.value, total.low, total.high) == pytest.approx((3700, 3700, 3700))


def test_equal_sizes_give_the_mean_and_its_error() -> None:
    total = estimate._estimate_total(np.ones(4), np.array([1.0, 3.0, 1.0, 3.0]), 400, 400)
    # The residuals are 1 each, and two degrees of freedom are lost: a variance of 4/2 over 4 of 400 images.
    error = 1.96 * (4 / 2 / 4) ** 0.5 * 0.99**0.5 * 400
    assert (total.value, total.low, total.high) == pytest.approx((800, 800 - error, 800 + error))


def test_the_overhead_of_shards_is_found_exactly() -> None:
    def make_cost(stored: int) -> ShardCost:
        return ShardCost([ImageCost(1, stored, 0.1, 0.1)], 0.25 + 2e-6 * stored)

    assert estimate._fit_overhead([make_cost(1000), make_cost(50_000), make_cost(1000)]) == pytest.approx((0.25, 2e-6))


@pytest.mark.parametrize(
    ("beam_args", "expected"),
    [
        ((), Parallelism(usable_cpus())),
        (("--direct_running_mode=multi_processing",), Parallelism(usable_cpus())),
        (("--runner=DataflowRunner",), Parallelism(1, 180.0)),
        (("--runner=DataflowRunner", "--max_num_workers=100"), Parallelism(100, 180.0)),
        (("--runner=DataflowRunner", "--max_num_workers=10", "--machine_type=n2-standard-4"), Parallelism(40, 180.0)),
    ],
)
def test_the_processes_are_those_of_the_runner(beam_args: tuple[str, ...], expected: Parallelism) -> None:
    assert infer_parallelism(ShardConfig("/in", "/out"), beam_args) == expected
    if not beam_args:
        assert infer_parallelism(ShardConfig("/in", "/out", workers=7), beam_args) == Parallelism(7)
