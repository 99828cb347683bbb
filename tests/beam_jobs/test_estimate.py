"""What a sample says of a job, against the job itself; the arithmetic by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_jobs import estimate
from beam_jobs.config import ShardConfig
from beam_jobs.estimate import Guess, Parallel, estimate_job, parallel_of
from beam_jobs.list_and_plan import plan_shards
from tests.beam_jobs.datasets import join_datasets, make_dataset
from tests.beam_jobs.images import make_jpeg, write_files, write_tar
from tfpipe.format.image_form import ImageForm
from tfpipe.system.host_limits import usable_cpus


def estimated(source: Path, **options: Any) -> estimate.Estimate:
    config = ShardConfig(str(source), "/nowhere/out", **options)
    return estimate_job(config, plan_shards(config), 1.0, Parallel(2, 0.5))


def photos(count: int) -> dict[str, bytes]:
    """JPEGs of many sizes."""
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
def test_bytes_are_those_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: ImageForm, within: float
) -> None:
    monkeypatch.setattr(estimate, "SAMPLE_IMAGES", 120)
    source = write_files(tmp_path / "in", photos(400))
    found = estimated(source, form=form)
    manifest = make_dataset(source, tmp_path / "out", form=form)
    written = sum(split.bytes for split in manifest.splits.values())
    assert (found.images, found.sampled, found.bad) == (400, 120, 0)
    assert found.output_bytes.value == pytest.approx(written, rel=within)
    assert 0 < found.cpu_s.low <= found.cpu_s.value <= found.cpu_s.high
    assert 1.5 < found.serial_s < found.wall_s.low <= found.wall_s.value <= found.wall_s.high


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_images_in_an_archive(tmp_path: Path, mode: str) -> None:
    """All of them are sampled, so the bytes are known; a compressed tar is read once and not unpacked."""
    path = write_tar(tmp_path / ("a.tar" if mode == "w" else "a.tar.gz"), photos(30), mode)
    found = estimated(path)
    manifest = make_dataset(path, tmp_path / "out")
    assert found.output_bytes.value == pytest.approx(sum(split.bytes for split in manifest.splits.values()))
    assert found.output_bytes.low == found.output_bytes.value == found.output_bytes.high


def test_records_of_a_dataset(tmp_path: Path) -> None:
    make_dataset(write_files(tmp_path / "in", photos(30)), tmp_path / "one")
    found = estimated(tmp_path / "one", datasets=(str(tmp_path / "one"),))
    manifest = join_datasets([tmp_path / "one"], tmp_path / "two")
    assert found.output_bytes.value == pytest.approx(sum(split.bytes for split in manifest.splits.values()))


def test_bad_images_are_counted_and_cost_no_bytes(tmp_path: Path) -> None:
    source = write_files(tmp_path / "in", {**photos(6), "a/bad.jpg": b"no image", "b/empty.jpg": b""})
    (source / "a" / "gone.jpg").symlink_to("nowhere")
    found = estimated(source)
    assert (found.sampled, found.bad) == (9, 3)
    manifest = make_dataset(source, tmp_path / "out")
    assert found.output_bytes.value == pytest.approx(sum(split.bytes for split in manifest.splits.values()))


def test_the_sample_depends_on_the_seed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "SAMPLE_IMAGES", 10)
    config = ShardConfig(str(write_files(tmp_path, photos(40))), "/nowhere/out", num_shards=7)
    plan = plan_shards(config)
    first, again, other = (estimate._sample(plan, seed) for seed in (1, 1, 2))
    names = [
        [plan.listing.images[i].path for shard in one.shards for i in shard.images.tolist()]
        for one in (first, again, other)
    ]
    assert names[0] == names[1] != names[2]
    assert [len(set(found)) for found in names] == [10, 10, 10]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(estimate.tempfile, "tempdir", str(scratch))
    estimated(write_files(tmp_path / "in", photos(3)))
    assert os.listdir(scratch) == []


# By hand


def test_a_line_is_found_exactly() -> None:
    sizes = np.array([1.0, 2.0, 5.0])
    assert estimate._total(sizes, 3 * sizes + 7, 100, 1000) == Guess(pytest.approx(3700), *[pytest.approx(3700)] * 2)


def test_equal_sizes_give_the_mean_and_its_error() -> None:
    found = estimate._total(np.ones(4), np.array([1.0, 3.0, 1.0, 3.0]), 400, 400)
    # Residuals of 1 each, two of them taken: variance 4/2 over 4 images, of which 4 in 400 are known.
    error = 1.96 * (4 / 2 / 4) ** 0.5 * 0.99**0.5 * 400
    assert (found.value, found.low, found.high) == pytest.approx((800, 800 - error, 800 + error))


def test_what_a_shard_costs_besides_its_images() -> None:
    def batch(stored: int) -> estimate._Batch:
        return estimate._Batch([estimate._Measured(1, stored, 0.1, 0.1)], 0.25 + 2e-6 * stored)

    assert estimate._rest([batch(1000), batch(50_000), batch(1000)]) == pytest.approx((0.25, 2e-6))


@pytest.mark.parametrize(
    ("beam_args", "expected"),
    [
        ((), Parallel(usable_cpus())),
        (("--direct_running_mode=multi_processing",), Parallel(usable_cpus())),
        (("--runner=DataflowRunner",), Parallel(1, 180.0)),
        (("--runner=DataflowRunner", "--max_num_workers=100"), Parallel(100, 180.0)),
        (("--runner=DataflowRunner", "--max_num_workers=10", "--machine_type=n2-standard-4"), Parallel(40, 180.0)),
    ],
)
def test_who_does_the_work(beam_args: tuple[str, ...], expected: Parallel) -> None:
    assert parallel_of(ShardConfig("/in", "/out"), beam_args) == expected
    if not beam_args:
        assert parallel_of(ShardConfig("/in", "/out", workers=7), beam_args) == Parallel(7)
